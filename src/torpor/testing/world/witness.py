"""What must hold at every step, and once all is quiet. Sees everything; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torpor.domain.ids import SessionId
from torpor.domain.lifecycle import Event
from torpor.domain.session import PAUSED, TRANSIENT, Session, Status
from torpor.testing.world.node import Node
from torpor.testing.world.shelf import Shelf

_WITHOUT_INSTANCE = PAUSED | {Status.LOST, Status.DELETED}


class Violation(AssertionError):
    """An invariant does not hold."""


class Witness:
    """Remembers what was promised. ``tell`` hears the story."""

    def __init__(self, shelf: Shelf, nodes: Iterable[Node], tell: Callable[[str], None]) -> None:
        self.records: dict[SessionId, Session] = {}
        self._shelf = shelf
        self._nodes = tuple(nodes)
        self._tell = tell
        self._acknowledged: dict[SessionId, int] = {}
        self._started: set[tuple[SessionId, int]] = set()
        self._reached: dict[tuple[SessionId, int], int] = {}

    def stored(self, record: Session) -> None:
        """A record was written."""
        self._tell(f"stored: {_shown(record)}")
        before = self.records.get(record.id)
        self.records[record.id] = record
        if before is not None:
            _expect(record.operation >= before.operation, record, "operation goes back")
            _expect(record.generation >= before.generation, record, "generation goes back")
        taken = record.snapshot
        if taken is None:
            return
        if before is not None and before.snapshot is not None:
            _expect(taken.sequence >= before.snapshot.sequence, record, "snapshot goes back in time")
        counter = self._shelf.counter_at(record.id, taken.sequence)
        if counter is None:
            return
        self._acknowledged[record.id] = max(counter, self._acknowledged.get(record.id, 0))
        # A resume that failed is paused again too, and its instance may have run unseen.
        if before is not None and record.status in PAUSED and before.status is not Status.RESUMING:
            reached = self._reached.get((record.id, record.generation), 0)
            _expect(counter >= reached, record, f"is paused at {counter}, but had come to {reached}")

    def denied(self, session: SessionId, event: Event, reason: str) -> None:
        """A report was refused; honest nodes give no cause."""
        raise Violation(f"{session}: the report {event} was denied: {reason}")

    def starts(self, session: SessionId, generation: int, counter: int) -> None:
        """An instance came to life."""
        self._tell(f"starts: {session} as generation {generation} at {counter}")
        if (session, generation) in self._started:
            raise Violation(f"{session}: generation {generation} starts twice")
        self._started.add((session, generation))
        if counter < self._acknowledged.get(session, 0):
            raise Violation(f"{session}: a start shows {counter}, but {self._acknowledged[session]} was acknowledged")

    def check(self) -> None:
        """What holds at every step."""
        for record in self.records.values():
            instances = [node.instance_of(record.id) for node in self._nodes]
            for instance in instances:
                if instance is not None:
                    self._reached[record.id, instance.generation] = instance.counter
            running = len([instance for instance in instances if instance is not None and not instance.frozen])
            _expect(running <= 1, record, "runs twice")
            _expect(running == 0 or record.status not in _WITHOUT_INSTANCE, record, "runs although it rests")
            if record.snapshot is not None and record.status is not Status.DELETING:
                held = self._shelf.kept.get(record.id, {})
                _expect(record.snapshot.sequence in held, record, "last good snapshot is not in the store")

    def unsettled(self) -> Violation | None:
        """What does not hold yet of a quiet world."""
        try:
            for record in self.records.values():
                self._check_settled(record)
        except Violation as violation:
            return violation
        return None

    def _check_settled(self, record: Session) -> None:
        _expect(record.status not in TRANSIENT, record, "is stuck")
        instances = [node.instance_of(record.id) for node in self._nodes]
        held = [instance for instance in instances if instance is not None]
        if record.status is Status.RUNNING:
            _expect(bool(held), record, "is running without an instance")
            _expect(len(held) == 1, record, "left an orphan instance")
            _expect(held[0].generation == record.generation, record, "runs under another generation")
            _expect(not held[0].frozen, record, "is running, and frozen")
        else:
            _expect(not held, record, "left an orphan instance")
        if record.status is Status.LOST:
            commit = self._shelf.commit_of(record.id, record.generation, record.operation)
            known = record.snapshot.sequence if record.snapshot else 0
            _expect(commit is None or commit.sequence <= known, record, "is lost although it was committed")
        if record.status is Status.DELETED:
            _expect(not self._shelf.kept.get(record.id), record, "left objects")


def _expect(holds: bool, record: Session, complaint: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise Violation(f"{record.id} {complaint}: {_shown(record)}")


def _shown(record: Session) -> str:
    sequence = "" if record.snapshot is None else f" seq{record.snapshot.sequence}"
    return f"{record.id} {record.status.value} g{record.generation} op{record.operation}{sequence} on {record.node}"
