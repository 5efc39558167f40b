"""What must hold at every step, and once all is quiet. Sees the machine, the store and every stored record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torpor.adapters.engines.fake.host import FakeInstance
from torpor.domain import clocks
from torpor.domain.clocks import LiveClock, live_clock
from torpor.domain.ids import InstanceId, SessionId
from torpor.domain.session import Session, Status
from torpor.domain.snapshot import SnapshotRef
from torpor.ports.engine import InstanceStatus
from torpor.services.requests import Outcome, Resumption
from torpor.store.layout import manifest_key, pack_key
from torpor.store.snapshots import SnapshotStore
from torpor.testing.fake_guest import FakeGuestProgram
from torpor.testing.node import FakeMachine

COUNTER = "n"


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class Promise:
    """What the clients of one session were told. ``acknowledged``: the highest counter a burst returned.

    ``kept``: what its last good snapshot holds at least. ``attempts``: how many bursts may have counted.
    ``epoch``: how often it was knowingly taken back to an older state. ``suspicions``: results that showed an older
    one, which is right only if a result of the same resume says so.
    """

    acknowledged: int = 0
    kept: int = 0
    attempts: int = 0
    epoch: int = 0
    suspicions: list[str] = field(default_factory=list)
    stepped_down: bool = False


@dataclass(slots=True)
class Witness:
    """``tell`` hears the story. ``store`` reads the objects as they are, past every fault."""

    machine: FakeMachine
    store: SnapshotStore
    tell: Callable[[str], None]
    records: dict[SessionId, Session] = field(default_factory=dict)
    promises: dict[SessionId, Promise] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    dead: set[InstanceId] = field(default_factory=set)

    def promise(self, session: SessionId) -> Promise:
        """The session's, made on first use."""
        return self.promises.setdefault(session, Promise())

    def note(self, complaint: str) -> None:
        """An invariant does not hold; the world stops at the next step."""
        self.tell(f"violation: {complaint}")
        self.violations.append(Violation(complaint))

    # ---- what holds at every step ------------------------------------------------------------------------------------

    def look(self, call: str, about: object) -> None:
        """After every effect on the machine."""
        if not call.startswith(("engine.", "channel.")):
            return
        if call.startswith("engine."):
            self.tell(f"{call} {about}")
        running: dict[str, int] = {}
        for instance in self.machine.host.instances.values():
            name = runs_user_code_of(instance)
            if name is not None:
                running[name] = running.get(name, 0) + 1
        for name, count in running.items():
            if count > 1:
                self.note(f"{name} has {count} running instances")

    async def stored(self, record: Session) -> None:
        """A record was written."""
        before = self.records.get(record.id)
        self.records[record.id] = record
        shown = _shown(record)
        self.tell(f"stored: {shown}")
        self._check_clocks(record, before)
        if record.status is Status.LOST and before is not None and before.status in clocks.RUNS:
            died = before.instance in self.dead
            self._expect(died, f"{shown} was lost, but {before.instance} had not died: {record.last_error}")
        if before is None:
            self._inherit(record)
            return
        self._expect(record.operation >= before.operation, f"{shown}: operation goes back")
        self._expect(record.generation >= before.generation, f"{shown}: generation goes back")
        promise = self.promise(record.id)
        if before.status is Status.LOST and record.status is Status.RESUMING:
            await self._check_loss(before)
            promise.acknowledged = promise.kept
            promise.epoch += 1
        if record.snapshot is None or record.snapshot == before.snapshot:
            return
        if before.snapshot is not None:
            newer = record.snapshot.sequence > before.snapshot.sequence
            self._expect(newer, f"{shown}: its snapshot goes back in time")
        promise.kept = promise.acknowledged
        await self.check_restorable(record)

    async def _check_loss(self, lost: Session) -> None:
        """What a lost session goes back to is the newest that was committed under its last order."""
        head = await self.store.head(lost.tenant, lost.id)
        committed = head is not None and head.sequence == lost.operation
        known = lost.snapshot is not None and lost.snapshot.sequence == lost.operation
        self._expect(known or not committed, f"{_shown(lost)} goes back, although its last capture was committed")

    def _inherit(self, record: Session) -> None:
        """A fork holds what its source's last snapshot does."""
        if record.forked_from is not None:
            source, fork = self.promise(record.forked_from), self.promise(record.id)
            fork.acknowledged = fork.kept = source.kept
            fork.attempts = source.attempts

    async def check_restorable(self, record: Session) -> None:
        """All that the record's snapshot names is in the store."""
        if record.snapshot is None or live_clock(record) is LiveClock.TERMINAL:
            return
        ref = SnapshotRef.from_json(record.snapshot.ref)
        names = {info.key async for info in self.machine.objects.list("")}
        if manifest_key(ref) not in names:
            self.note(f"{_shown(record)}: the manifest of its last good snapshot is gone")
            return
        manifest = await self.store.open(ref)
        missing = [pack_key(pack) for pack in manifest.packs if pack_key(pack) not in names]
        self._expect(not missing, f"{_shown(record)}: packs of its last good snapshot are gone: {missing}")

    def _check_clocks(self, record: Session, before: Session | None) -> None:
        shown, live = _shown(record), live_clock(record)
        runs = record.status in clocks.RUNS and record.policy.timeout_s is not None
        self._expect(
            (record.run_deadline_at_s is not None) == runs or live is LiveClock.TERMINAL, f"{shown}: run clock"
        )
        rests = live is LiveClock.RETENTION and record.policy.retention_s is not None
        self._expect((clocks.expires_at_s(record) is not None) == rests, f"{shown}: retention clock")
        ends = clocks.next_due_at_s(record) is None
        self._expect(ends or live is not LiveClock.TERMINAL, f"{shown}: a clock runs on after the end")
        if before is None or record.timeline == before.timeline:  # an owner set its clocks
            return
        for name, old_s, new_s in (
            ("run deadline", before.run_deadline_at_s, record.run_deadline_at_s),
            ("hard deadline", before.hard_deadline_at_s, record.hard_deadline_at_s),
        ):
            if old_s is not None and new_s is not None:
                self._expect(new_s >= old_s, f"{shown}: its {name} was shortened")

    # ---- what clients saw --------------------------------------------------------------------------------------------

    def counted(self, session: SessionId, value: int, *, floor: int, epoch: int) -> None:
        """A burst that counts up returned ``value``; ``floor`` was acknowledged when it was asked for."""
        promise = self.promise(session)
        self.tell(f"counted: {session} {value}")
        if promise.epoch != epoch:
            return
        if value <= floor:
            promise.suspicions.append(f"{session}: a burst shows {value}, but {floor} had been acknowledged")
            return
        if value > promise.attempts:
            self.note(f"{session}: a burst shows {value} after {promise.attempts} attempts: one was run twice")
        promise.acknowledged = max(promise.acknowledged, value)

    def told(self, session: SessionId, resumption: Resumption | None) -> bool:
        """A result says how the session came back; True if without its memory."""
        if resumption is None or resumption.outcome in {Outcome.CREATED, Outcome.RESUMED}:
            return False
        if resumption.outcome is Outcome.RESTORED_OLDER and not resumption.stepped_down:
            return False  # it was lost, and this is the last snapshot, which is promised
        self.tell(f"told: {session} {resumption.outcome}")
        promise = self.promise(session)
        promise.acknowledged = promise.kept = 0
        promise.epoch += 1
        promise.suspicions.clear()
        return True

    def logged(self, event: Mapping[str, object]) -> None:
        """Whom a server would have told may be gone; what it logs counts as well."""
        if event.get("event") == "step down":
            self.promise(SessionId(str(event.get("session")))).stepped_down = True

    def check_told(self) -> None:
        """Whoever was shown an older state was told so, be it by another's result."""
        for promise in self.promises.values():
            for suspicion in () if promise.stepped_down else promise.suspicions:
                self.note(f"{suspicion}, and no result said so")

    def _expect(self, holds: bool, complaint: str) -> None:  # noqa: FBT001 - reads as a sentence
        if not holds:
            self.note(complaint)


def runs_user_code_of(instance: FakeInstance) -> str | None:
    """The hostname of the session whose code the instance runs now; None if it runs none."""
    program = instance.program
    assert isinstance(program, FakeGuestProgram)
    if instance.status is not InstanceStatus.RUNNING or program.parked or program.hostname == "template":
        return None
    return program.hostname


def _shown(record: Session) -> str:
    sequence = "" if record.snapshot is None else f" seq{record.snapshot.sequence}"
    return f"{record.id} {record.status.value} g{record.generation} op{record.operation}{sequence}"
