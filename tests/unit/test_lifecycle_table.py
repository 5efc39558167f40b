"""The table is closed: every pair is answered, every status is reached and left."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from torpor.domain import lifecycle
from torpor.domain.ids import InstanceId
from torpor.domain.lifecycle import (
    ALREADY,
    HARD_DEADLINE,
    RULES,
    RUN_DEADLINE,
    Accepted,
    Adopt,
    Command,
    Create,
    Delete,
    Deleted,
    Denied,
    Effect,
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
    decide,
)
from torpor.domain.session import (
    PAUSED,
    TRANSIENT,
    DeadlineAction,
    Durability,
    Persistence,
    Policy,
    Session,
    SnapshotRecord,
    Status,
)
from torpor.testing.contracts.catalog import session

S = Status
EVENTS: list[type[Event]] = [
    kind
    for kind in vars(lifecycle).values()
    if isinstance(kind, type) and issubclass(kind, Command | Report) and kind not in {Command, Report}
]
REPORTS = [kind for kind in EVENTS if issubclass(kind, Report)]
RESTS = frozenset({S.PAUSED_LOCAL, S.PAUSED_DURABLE, S.LOST})
ON_A_NODE = TRANSIENT - {S.DELETING}


def snapshot(sequence: int) -> SnapshotRecord:
    return SnapshotRecord({"manifest": f"m{sequence}"}, sequence, instant_s=50.0, image_bytes=2, new_bytes=1)


def standing(status: Status, **changes: object) -> Session:
    """A record as it stands in ``status`` after a snapshot and some running."""
    runs = status in {S.RUNNING, S.SNAPSHOTTING, S.PAUSING}
    record = session(
        status=status,
        generation=2,
        operation=5,
        snapshot=snapshot(3),
        durability=Durability.OBJECT if status is S.PAUSED_DURABLE else Durability.DISK,
        paused_at_s=50.0 if status in {*PAUSED, S.RESUMING} else None,
        running_since_s=60.0 if runs else None,
        instance=InstanceId("i" * 20) if runs else None,
        compute_s=7.0,
        hard_deadline_at_s=99.0,
    )
    return replace(record, **changes)


def event_of(kind: type[Event], *, generation: int = 2, operation: int = 5, sequence: int = 4) -> Event:
    numbers = (generation, operation)
    match kind:
        case lifecycle.Started:
            return Started(*numbers, InstanceId("j" * 20), {"restore": 1.0})
        case lifecycle.SnapshotStored:
            return SnapshotStored(*numbers, snapshot(sequence), Durability.OBJECT, cpu_s=2.0)
        case lifecycle.OperationFailed | lifecycle.InstanceLost:
            return kind(*numbers, "because")
        case lifecycle.Deleted:
            return Deleted(*numbers)
        case lifecycle.Resume:
            return Resume(allow_older=True)
        case lifecycle.Adopt:
            return Adopt(snapshot(0), Durability.DISK)
        case lifecycle.SetClocks:
            return SetClocks(Policy(idle_s=5.0), fields=frozenset({"idle_s"}))
        case _:
            return kind()


def persistence_for(kind: type[Event]) -> Persistence:
    return Persistence.EPHEMERAL if kind is lifecycle.Release else Persistence.MEMORY


def accepted(record: Session, event: Event, *, now_s: float = 100.0) -> Session:
    decision = decide(record, event, now_s=now_s)
    assert isinstance(decision, Accepted), decision
    return decision.session


def targets(status: Status) -> Iterator[Status]:
    for rule in RULES:
        if rule.source is status:
            yield from RESTS if rule.target is None else (rule.target,)


def reached_from(status: Status) -> set[Status]:
    seen, edge = set[Status](), {status}
    while edge:
        seen |= edge
        edge = {target for source in edge for target in targets(source)} - seen
    return seen


@pytest.mark.parametrize(("status", "kind"), [*product(Status, EVENTS)])
def test_every_pair_is_answered_as_the_tables_say(status: Status, kind: type[Event]) -> None:
    record = standing(status, operation=0 if kind in {Adopt, Create} else 5, persistence=persistence_for(kind))
    decision = decide(record, event_of(kind), now_s=100.0)
    rule = next((rule for rule in RULES if (rule.source, rule.event) == (status, kind)), None)
    if rule is not None:
        assert isinstance(decision, Accepted)
        assert decision.effects == rule.effects
        assert decision.session.status in (RESTS if rule.target is None else {rule.target})
    elif (status, kind) in ALREADY:
        assert decision == Ignored("already")
    else:
        assert isinstance(decision, Denied)
        assert decision.reason.startswith("cannot_")
        assert decision.reason.endswith(f"_while_{status.public}")


def test_the_two_tables_do_not_overlap_and_have_no_duplicates() -> None:
    keys = [(rule.source, rule.event) for rule in RULES]
    assert len(keys) == len(set(keys))
    assert not ALREADY & set(keys)


def test_every_event_effect_and_status_is_used() -> None:
    assert {rule.event for rule in RULES} == set(EVENTS)
    assert {effect for rule in RULES for effect in rule.effects} == set(Effect)
    assert {rule.source for rule in RULES} == set(Status) - {S.DELETED}


def test_every_status_is_reachable_from_the_first() -> None:
    assert reached_from(S.CREATING) == set(Status)


@pytest.mark.parametrize("status", Status)
def test_deleted_is_reachable_from_everywhere(status: Status) -> None:
    assert S.DELETED in reached_from(status)


def test_nothing_leaves_deleted() -> None:
    assert reached_from(S.DELETED) == {S.DELETED}


@pytest.mark.parametrize("status", sorted(ON_A_NODE))
def test_each_status_that_passes_on_a_node_ends_when_done_failed_or_lost(status: Status) -> None:
    done = {S.CREATING: Started, S.RESUMING: Started}.get(status, SnapshotStored)
    ends = {rule.event: set(targets(status)) for rule in RULES if rule.source is status}
    for event in (done, OperationFailed, InstanceLost):
        assert event in ends, f"{status} has no exit when {event.__name__}"


@pytest.mark.parametrize("status", sorted(TRANSIENT))
def test_a_passing_status_is_left_by_deleting(status: Status) -> None:
    assert decide(standing(status), Delete(), now_s=100.0) != Denied(f"cannot_delete_while_{status.public}")


@pytest.mark.parametrize(("status", "kind"), [*product(Status, REPORTS)])
def test_a_report_of_another_generation_is_stale(status: Status, kind: type[Report]) -> None:
    for generation in (1, 3):
        report = event_of(kind, generation=generation)
        assert decide(standing(status), report, now_s=100.0) == Ignored("stale_generation")


@pytest.mark.parametrize(("status", "kind"), [*product(Status, REPORTS)])
def test_a_report_of_another_operation_is_stale_but_a_loss_is_not(status: Status, kind: type[Report]) -> None:
    for operation in (4, 6):
        decision = decide(standing(status), event_of(kind, operation=operation), now_s=100.0)
        if kind is InstanceLost:
            assert decision == decide(standing(status), event_of(kind), now_s=100.0)
        else:
            assert decision == Ignored("stale_operation")


@pytest.mark.parametrize("status", Status)
def test_a_snapshot_that_is_not_newer_is_never_taken(status: Status) -> None:
    for sequence in (2, 3):
        report = event_of(SnapshotStored, sequence=sequence)
        assert decide(standing(status), report, now_s=100.0) == Ignored("already")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.source.value}-{rule.event.__name__}")
def test_each_order_has_a_new_number_and_each_placement_a_new_generation(rule: lifecycle.Rule) -> None:
    record = standing(
        rule.source, operation=0 if rule.event in {Adopt, Create} else 5, persistence=persistence_for(rule.event)
    )
    changed = accepted(record, event_of(rule.event))
    places = Effect.RESTORE in rule.effects
    orders = bool(rule.effects) and (issubclass(rule.event, Command) or Effect.ERASE in rule.effects)
    assert changed.generation - record.generation == int(places)
    assert changed.operation - record.operation == int(orders)
    assert changed.ordered_at_s == (100.0 if orders else record.ordered_at_s)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.source.value}-{rule.event.__name__}")
def test_an_accepted_report_that_comes_again_is_ignored(rule: lifecycle.Rule) -> None:
    if issubclass(rule.event, Report):
        report = event_of(rule.event)
        changed = accepted(standing(rule.source), report)
        assert isinstance(decide(changed, report, now_s=101.0), Ignored)


@pytest.mark.parametrize("durability", Durability)
def test_a_pause_rests_where_its_snapshot_is_safe(durability: Durability) -> None:
    report = SnapshotStored(2, 5, snapshot(4), durability, cpu_s=2.0)
    paused = accepted(standing(S.PAUSING), report)
    assert paused.status is (S.PAUSED_DURABLE if durability is Durability.OBJECT else S.PAUSED_LOCAL)
    assert (paused.durability, paused.paused_at_s, paused.instance) == (durability, 50.0, None)
    assert (paused.cpu_s, paused.compute_s, paused.running_since_s) == (2.0, 47.0, None)


def test_a_snapshot_in_passing_leaves_the_clock_running() -> None:
    running = accepted(standing(S.SNAPSHOTTING), event_of(SnapshotStored))
    assert (running.status, running.running_since_s, running.compute_s) == (S.RUNNING, 60.0, 7.0)
    assert (running.snapshot, running.paused_at_s, running.cpu_s) == (snapshot(4), None, 0.0)


def test_a_clock_that_went_back_charges_nothing() -> None:
    assert accepted(standing(S.RUNNING), Delete(), now_s=10.0).compute_s == 7.0


def test_a_failed_resume_rests_where_it_came_from() -> None:
    for kind in (OperationFailed, InstanceLost):
        assert accepted(standing(S.RESUMING), event_of(kind)).status is S.PAUSED_LOCAL
        durable = standing(S.RESUMING, durability=Durability.OBJECT)
        assert accepted(durable, event_of(kind)).status is S.PAUSED_DURABLE
        assert accepted(standing(S.RESUMING, paused_at_s=None), event_of(kind)).status is S.LOST


def test_a_lost_session_goes_back_only_where_there_is_something_and_it_is_asked_for() -> None:
    lost = standing(S.LOST)
    assert decide(lost, Resume(), now_s=1.0) == Denied("cannot_resume_lost_session_unless_older_state_is_allowed")
    nothing = replace(lost, snapshot=None)
    assert decide(nothing, Resume(allow_older=True), now_s=1.0) == Denied("cannot_resume_without_snapshot")
    assert accepted(lost, Resume(allow_older=True)).status is S.RESUMING


def test_a_session_is_created_once() -> None:
    record = standing(S.CREATING)
    assert decide(record, Create(), now_s=1.0) == Denied("cannot_create_twice")


def test_a_start_counts_resumes_and_clears_what_failed_before() -> None:
    record = standing(S.RESUMING, last_error="engine died", last_error_code="engine_error")
    started = accepted(record, event_of(Started))
    assert (started.resumes_count, started.last_error, started.last_error_code) == (1, None, None)
    assert (started.instance, started.last_timings_ms, started.paused_at_s) == ("j" * 20, {"restore": 1.0}, None)
    assert accepted(standing(S.CREATING), event_of(Started)).resumes_count == 0


def test_a_failure_is_kept_with_its_code() -> None:
    failed = accepted(standing(S.PAUSING), OperationFailed(2, 5, "disk full", "storage_full"))
    assert (failed.last_error, failed.last_error_code, failed.instance) == ("disk full", "storage_full", "i" * 20)
    lost = accepted(standing(S.RUNNING), InstanceLost(2, 5, "killed"))
    assert (lost.last_error, lost.last_error_code, lost.instance) == ("killed", "instance_lost", None)


def test_a_deleted_record_keeps_no_state_key_or_environment() -> None:
    record = standing(S.DELETING, env={"TOKEN": "secret"}, wrapped_key="a2V5")
    gone = accepted(record, Deleted(2, 5))
    assert (gone.snapshot, gone.durability, gone.wrapped_key, gone.env, gone.instance) == (None, None, "", {}, None)


def test_the_reason_of_a_refusal_is_the_public_word() -> None:
    assert decide(standing(S.PAUSED_LOCAL), Snapshot(), now_s=1.0) == Denied("cannot_snapshot_while_paused")
    assert decide(standing(S.LOST), Wake(), now_s=1.0) == Denied("cannot_wake_while_lost")
    assert decide(standing(S.CREATING), Pause(), now_s=1.0) == Denied("cannot_pause_while_creating")


@pytest.mark.parametrize("status", Status)
def test_is_paused_says_what_waits_in_the_store(status: Status) -> None:
    assert lifecycle.is_paused(standing(status)) == (status.public == "paused")


def test_an_ephemeral_session_is_released_and_never_captured() -> None:
    record = standing(S.RUNNING, persistence=Persistence.EPHEMERAL, snapshot=None, durability=None)
    for capture in (Pause(), Snapshot()):
        assert decide(record, capture, now_s=100.0) == Denied("cannot_snapshot_ephemeral_session")
    released = accepted(record, Release())
    assert released.status is S.PAUSED_LOCAL
    assert released.paused_at_s == 100.0
    assert released.instance is None
    assert released.snapshot is None
    assert decide(standing(S.RUNNING), Release(), now_s=100.0) == Denied("cannot_release_session_that_is_kept")


def test_clocks_are_set_without_an_order_and_the_run_deadline_starts_over_only_if_asked() -> None:
    policy = Policy(idle_s=5.0, timeout_s=60.0, timeout_action=DeadlineAction.KILL)
    record = standing(S.RUNNING, run_deadline_at_s=500.0)
    kept = accepted(record, SetClocks(policy, 900.0, frozenset({"idle_s", HARD_DEADLINE})))
    assert kept.policy == replace(record.policy, idle_s=5.0)
    assert (kept.run_deadline_at_s, kept.hard_deadline_at_s, kept.operation) == (500.0, 900.0, record.operation)
    timeout = SetClocks(policy, 900.0, frozenset({"timeout_s"}))
    assert accepted(record, timeout).run_deadline_at_s == 160.0
    assert accepted(record, timeout).hard_deadline_at_s == record.hard_deadline_at_s
    resting = accepted(standing(S.PAUSED_LOCAL, run_left_s=7.0), timeout)
    assert (resting.run_deadline_at_s, resting.run_left_s) == (None, 60.0)


def test_the_timeline_tells_each_transition_once_and_stays_short() -> None:
    record = standing(S.RUNNING)
    paused = accepted(accepted(record, Pause("idle")), SnapshotStored(2, 6, snapshot(6), Durability.DISK))
    told = [(moment.event, moment.status, moment.reason) for moment in paused.timeline]
    assert told == [("pause", S.PAUSING, "idle"), ("snapshot_stored", S.PAUSED_LOCAL, "")]
    for _ in range(40):
        paused = accepted(accepted(paused, Wake()), OperationFailed(paused.generation + 1, paused.operation + 1, "no"))
    assert len(paused.timeline) == lifecycle.TIMELINE_MAX


def test_a_session_expires_only_if_a_clock_has_ended_at_that_very_moment() -> None:
    record = standing(S.PAUSED_LOCAL, hard_deadline_at_s=200.0)
    assert decide(record, Expire(), now_s=199.0) == Denied("cannot_expire_before_a_clock_has_ended")
    gone = accepted(record, Expire(), now_s=200.0)
    assert (gone.status, gone.timeline[-1].reason) == (S.DELETING, "hard_deadline")
    extended = accepted(record, SetClocks(Policy(), 300.0, frozenset({HARD_DEADLINE})), now_s=199.0)
    assert isinstance(decide(extended, Expire(), now_s=200.0), Denied)


def test_the_run_deadline_pauses_only_once_it_has_come() -> None:
    record = standing(S.RUNNING, run_deadline_at_s=150.0, hard_deadline_at_s=None)
    assert isinstance(decide(record, Pause(RUN_DEADLINE), now_s=149.0), Denied)
    assert accepted(record, Pause(RUN_DEADLINE), now_s=150.0).status is S.PAUSING
    kills = replace(record, policy=Policy(timeout_action=DeadlineAction.KILL))
    assert isinstance(decide(kills, Pause(RUN_DEADLINE), now_s=150.0), Denied)
    assert accepted(kills, Expire(), now_s=150.0).status is S.DELETING
