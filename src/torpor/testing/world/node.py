"""A node's model: does what it is ordered, once, and restates what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from torpor.domain.ids import InstanceId, SessionId
from torpor.domain.lifecycle import Deleted, Effect, InstanceLost, OperationFailed, Report, SnapshotStored, Started
from torpor.domain.session import Durability, SnapshotRecord
from torpor.testing.world.conditions import Faults, Safeguards
from torpor.testing.world.messages import Heartbeat, Holding, Order
from torpor.testing.world.shelf import Shelf

WORK_TICKS_MAX = 4

Tell = Callable[[SessionId, Report], None]
Starts = Callable[[SessionId, int, int], None]


@dataclass(slots=True)
class Instance:
    """``counter`` counts ticks of running and stands for all that is in memory."""

    generation: int
    counter: int
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Undertaking:
    """An order under way. ``captured``: the counter in a checkpoint, which outlives its instance."""

    order: Order
    ends_at_tick: int
    captured: int = 0


@dataclass(slots=True)
class Seat:
    """What a node knows of one session."""

    generation: int = 0
    operation: int = 0
    instance: Instance | None = None
    work: Undertaking | None = None
    reports: list[Report] = field(default_factory=list)


class Node:
    """``tell`` sends a report; ``starts`` lets the witness see an instance come to life."""

    def __init__(self, name: str, shelf: Shelf, random: Random, safeguards: Safeguards) -> None:
        self.name = name
        self.incarnation = 1
        self.tell: Tell = lambda _session, _report: None
        self.starts: Starts = lambda _session, _generation, _counter: None
        self._shelf = shelf
        self._random = random
        self._safeguards = safeguards
        self._seats: dict[SessionId, Seat] = {}

    @property
    def address(self) -> str:
        """Where orders for this incarnation go."""
        return f"{self.name}.{self.incarnation}"

    def instance_of(self, session: SessionId) -> Instance | None:
        """The session's instance here."""
        seat = self._seats.get(session)
        return None if seat is None else seat.instance

    def crash(self) -> None:
        """Everything in memory is gone."""
        self._seats.clear()
        self.incarnation += 1

    def heartbeat(self, plane: int) -> Heartbeat:
        """The whole condition, for one control plane."""
        holdings = [
            Holding(
                session,
                seat.generation,
                None if seat.instance is None else seat.instance.frozen,
                seat.work is not None,
                tuple(seat.reports) if self._safeguards.reports_restated else (),
            )
            for session, seat in self._seats.items()
            if seat.instance is not None or seat.work is not None or seat.reports
        ]
        return Heartbeat(plane, self.address, tuple(holdings))

    def step(self, faults: Faults, *, tick: int) -> None:
        """One tick of everything that is here."""
        for session, seat in self._seats.items():
            if seat.instance is not None:
                seat.instance.counter += not seat.instance.frozen
                if self._random.random() < faults.instance_death:
                    self._lose(session, seat)
            if seat.work is not None and seat.work.ends_at_tick <= tick:
                work, seat.work = seat.work, None
                self._finish(seat, work, fails=self._random.random() < faults.work_failure)

    def receive(self, order: Order, *, tick: int) -> None:
        """Carry an order out, or begin to."""
        if order.node != self.address and self._safeguards.incarnation_check:
            return
        seat = self._seats.setdefault(order.session, Seat())
        if order.effect is Effect.RELEASE:
            # Not an order of its own: it may be repeated after newer ones, and names what has to go.
            if seat.generation <= order.generation:
                seat.instance, seat.work, seat.reports = None, None, []
            return
        if order.operation < seat.operation and self._safeguards.order_fence:
            return
        match order.effect:
            case Effect.RESTORE | Effect.CHECKPOINT:
                self._begin(seat, order, tick=tick)
            case Effect.THAW:
                self._thaw(seat, order)
            case Effect.ERASE:
                seat.generation, seat.operation = order.generation, order.operation
                seat.instance, seat.work, seat.reports = None, None, []
                self._end(seat, order, Deleted(order.generation, order.operation))

    def _begin(self, seat: Seat, order: Order, *, tick: int) -> None:
        if order.operation == seat.operation and self._safeguards.order_memory:
            self._restate(seat, order)
            return
        seat.operation, seat.reports = order.operation, []
        captured = 0
        if order.effect is Effect.RESTORE:
            seat.generation, seat.instance = order.generation, None  # one instance of a session, the newest
        elif seat.instance is None or seat.instance.generation != order.generation:
            self._end(seat, order, InstanceLost(order.generation, order.operation, "no such instance"))
            return
        else:
            seat.instance.frozen, captured = True, seat.instance.counter
        seat.work = Undertaking(order, tick + self._random.randint(1, WORK_TICKS_MAX), captured)
        if order.effect is Effect.CHECKPOINT and not self._safeguards.commit_before_report:
            self._end(seat, order, self._stored(order, self._shelf.next_sequence(order.session)))

    def _thaw(self, seat: Seat, order: Order) -> None:
        if seat.instance is None or seat.instance.generation != order.generation:
            self._restate(seat, order)
            return
        if order.operation > seat.operation:
            seat.operation, seat.work, seat.reports = order.operation, None, []  # a pause is given up
        elif seat.work is not None and self._safeguards.order_fence:
            return
        seat.instance.frozen = False

    def _finish(self, seat: Seat, work: Undertaking, *, fails: bool) -> None:
        if work.order.effect is Effect.RESTORE:
            self._finish_restore(seat, work.order, fails=fails)
            return
        order = work.order
        kept = None
        if not fails:
            kept = self._shelf.commit(order.session, order.generation, order.operation, work.captured)
        if seat.instance is not None and (kept is None or not self._safeguards.stays_frozen):
            seat.instance.frozen = False
        if kept is None:
            self._end(seat, order, OperationFailed(order.generation, order.operation, "capture failed"))
        elif self._safeguards.commit_before_report:
            self._end(seat, order, self._stored(order, kept.sequence))

    def _finish_restore(self, seat: Seat, order: Order, *, fails: bool) -> None:
        counter = None if fails else self._shelf.counter_at(order.session, order.sequence)
        if counter is None:
            self._end(seat, order, OperationFailed(order.generation, order.operation, "restore failed"))
            return
        seat.instance = Instance(order.generation, counter)
        self.starts(order.session, order.generation, counter)
        self._end(seat, order, Started(order.generation, order.operation, InstanceId(f"i{order.generation:019d}")))

    def _lose(self, session: SessionId, seat: Seat) -> None:
        seat.instance = None  # a capture that is under way has all it needs
        lost = InstanceLost(seat.generation, seat.operation, "instance died")
        seat.reports.append(lost)
        self.tell(session, lost)

    def _end(self, seat: Seat, order: Order, report: Report) -> None:
        seat.reports.append(report)
        self.tell(order.session, report)

    def _restate(self, seat: Seat, order: Order) -> None:
        for report in seat.reports:
            self.tell(order.session, report)

    def _stored(self, order: Order, sequence: int) -> SnapshotStored:
        snapshot = SnapshotRecord({}, sequence, float(sequence), image_bytes=0, new_bytes=0)
        durability = self._random.choice((Durability.DISK, Durability.OBJECT))
        return SnapshotStored(order.generation, order.operation, snapshot, durability)
