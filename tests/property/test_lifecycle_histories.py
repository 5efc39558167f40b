"""What holds of a record after any history of commands and reports, honest or not."""

from dataclasses import dataclass, fields, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.domain.clocks import LiveClock, expires_at_s, live_clock
from torpor.domain.ids import InstanceId
from torpor.domain.lifecycle import (
    Accepted,
    Command,
    Create,
    Delete,
    Deleted,
    Denied,
    Event,
    Expire,
    Ignored,
    InstanceLost,
    OperationFailed,
    Pause,
    Release,
    Report,
    Resume,
    SetClocks,
    Snapshot,
    SnapshotStored,
    Started,
    Wake,
    WarnExpiry,
    decide,
)
from torpor.domain.session import PAUSED, Durability, Policy, Session, SnapshotRecord, Status
from torpor.testing.contracts.catalog import session

S = Status
RUNS = {S.RUNNING, S.SNAPSHOTTING, S.PAUSING}
GIVEN_AT_BIRTH = (
    "id", "tenant", "template", "template_digest", "created_at_s", "name", "persistence", "limits", "metadata",
    "revision", "node",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """An event whose numbers are near the record's own, so that most of them matter."""

    kind: type[Event]
    generation_behind: int
    operation_behind: int
    sequence: int
    durability: Durability
    passed_s: float

    def event_for(self, record: Session, now_s: float) -> Event:
        numbers = (record.generation - self.generation_behind, record.operation - self.operation_behind)
        if issubclass(self.kind, Command):
            if self.kind is SetClocks:
                fields = frozenset({"timeout_s"} if self.sequence % 2 == 0 else {"idle_s"})
                return SetClocks(Policy(idle_s=5.0, timeout_s=float(self.sequence)), fields=fields)
            return Resume(allow_older=self.sequence % 2 == 0) if self.kind is Resume else self.kind()
        if self.kind is Started:
            return Started(*numbers, InstanceId("i" * 20))
        if self.kind is SnapshotStored:
            taken = SnapshotRecord({}, self.sequence, instant_s=now_s, image_bytes=0, new_bytes=0)
            return SnapshotStored(*numbers, taken, self.durability, cpu_s=1.0)
        return Deleted(*numbers) if self.kind is Deleted else self.kind(*numbers, "because")


KINDS = (
    Create, Pause, Pause, Snapshot, Resume, Wake, Delete, Started, Started, SnapshotStored, SnapshotStored,
    OperationFailed, InstanceLost, Deleted, SetClocks, WarnExpiry, Release, Expire,
)  # fmt: skip
STEPS = st.builds(
    Step,
    kind=st.sampled_from(KINDS),
    generation_behind=st.sampled_from([0, 0, 0, 0, 1, -1]),
    operation_behind=st.sampled_from([0, 0, 0, 0, 1, 2, -1]),
    sequence=st.integers(0, 12),
    durability=st.sampled_from(Durability),
    passed_s=st.integers(0, 50).map(float),
)
HISTORIES = st.lists(STEPS, max_size=40)


def assert_coherent(record: Session) -> None:
    """Exactly one clock is live: the run clock, the pause's, or none because the session passes, is lost or over."""
    assert (record.running_since_s is not None) == (record.status in RUNS)
    assert record.status not in PAUSED or record.paused_at_s is not None
    assert record.paused_at_s is None or record.status in {*PAUSED, S.RESUMING, S.DELETING}
    assert record.running_since_s is None or record.paused_at_s is None
    assert (record.snapshot is None) == (record.durability is None)
    assert record.snapshot is not None or record.status not in {*PAUSED, S.RESUMING}
    assert (record.status is S.PAUSED_DURABLE) <= (record.durability is Durability.OBJECT)
    assert (record.status is S.PAUSED_LOCAL) <= (record.durability is not Durability.OBJECT)
    assert (record.instance is not None) <= (record.status in {*RUNS, S.DELETING})
    assert (record.status in RUNS) <= (record.instance is not None)
    assert record.compute_s >= 0.0
    live = live_clock(record)
    assert (record.run_deadline_at_s is not None) <= (record.status in RUNS)
    assert (record.run_left_s is not None) <= (record.status not in RUNS)
    assert (expires_at_s(record) is not None) == (live is LiveClock.RETENTION)  # the policy here always sets one
    assert (live is LiveClock.TERMINAL) == (record.status in {S.DELETING, S.DELETED})


def assert_keeps_deadlines(before: Session, event: Event, after: Session, now_s: float) -> None:
    """No instant comes nearer but by the owner's word."""
    if isinstance(event, SetClocks):
        return
    assert (after.policy, after.hard_deadline_at_s) == (before.policy, before.hard_deadline_at_s)
    expiries = (expires_at_s(before), expires_at_s(after))
    if None not in expiries and not isinstance(event, SnapshotStored):
        assert expiries[0] == expiries[1]
    if before.status in RUNS and after.status in RUNS:
        assert after.run_deadline_at_s == before.run_deadline_at_s
    elif before.status in RUNS and before.run_deadline_at_s is not None:
        assert after.run_left_s == max(0.0, before.run_deadline_at_s - now_s)
    elif after.status in RUNS and after.run_deadline_at_s is not None:
        assert after.run_deadline_at_s - now_s in {before.run_left_s, before.policy.timeout_s}


def assert_follows(before: Session, event: Event, after: Session) -> None:
    """What one accepted event may change."""
    for name in GIVEN_AT_BIRTH:
        assert getattr(after, name) == getattr(before, name)
    assert before.generation <= after.generation <= before.generation + 1
    assert before.operation <= after.operation <= before.operation + 1
    assert after.compute_s >= before.compute_s
    if not isinstance(event, SnapshotStored | Deleted):
        assert (after.snapshot, after.durability) == (before.snapshot, before.durability)
    if isinstance(event, SnapshotStored):
        assert after.snapshot == event.snapshot
        assert before.snapshot is None or event.snapshot.sequence > before.snapshot.sequence
    if isinstance(event, Report):
        assert event.generation == before.generation
        assert event.operation == before.operation or isinstance(event, InstanceLost)


@given(HISTORIES)
def test_after_any_history_the_record_is_coherent(steps: list[Step]) -> None:
    record, now_s, ran_s = session(), 0.0, 0.0
    for step in steps:
        now_s += step.passed_s
        ran_s += step.passed_s if record.status in RUNS else 0.0
        event = step.event_for(record, now_s)
        decision = decide(record, event, now_s=now_s)
        if isinstance(decision, Accepted):
            assert_follows(record, event, decision.session)
            assert_keeps_deadlines(record, event, decision.session, now_s)
            record = decision.session
        assert_coherent(record)
    running_s = now_s - record.running_since_s if record.running_since_s is not None else 0.0
    assert record.compute_s + running_s == ran_s


@given(HISTORIES, st.lists(st.floats(-100.0, 100.0), min_size=40, max_size=40))
def test_a_clock_that_jumps_never_makes_compute_seconds_negative(steps: list[Step], jumps: list[float]) -> None:
    record, now_s = session(), 0.0
    for step, jump in zip(steps, jumps, strict=False):
        now_s += jump
        decision = decide(record, step.event_for(record, now_s), now_s=now_s)
        if isinstance(decision, Accepted):
            assert decision.session.compute_s >= record.compute_s
            record = decision.session
        assert_coherent(record)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.sampled_from(Status), STEPS, st.integers(0, 3), st.integers(0, 3), st.none() | st.integers(0, 12))
def test_decide_answers_anything_about_any_record(
    status: Status, step: Step, generation: int, operation: int, sequence: int | None
) -> None:
    # Records that no history reaches too: a catalog may be restored from a backup or edited by hand.
    taken = None if sequence is None else SnapshotRecord({}, sequence, 0.0, image_bytes=0, new_bytes=0)
    record = session(status=status, generation=generation, operation=operation, snapshot=taken)
    decision = decide(record, step.event_for(record, 5.0), now_s=5.0)
    match decision:
        case Accepted(changed, _):
            assert changed != record or status is S.CREATING or step.kind is SetClocks
        case Ignored(reason) | Denied(reason):
            assert reason.replace("_", "").isalnum()
    assert decision == decide(record, step.event_for(record, 5.0), now_s=5.0)


@given(HISTORIES)
def test_a_deleted_session_stays_deleted(steps: list[Step]) -> None:
    gone = replace(session(), status=S.DELETED, generation=3, operation=7)
    for step in steps:
        assert not isinstance(decide(gone, step.event_for(gone, 1.0), now_s=1.0), Accepted)


def test_the_birth_fields_are_fields() -> None:
    assert {field.name for field in fields(Session)} >= set(GIVEN_AT_BIRTH)
