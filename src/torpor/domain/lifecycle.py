"""What a session may do: one table, and ``decide``, which is total, pure and never raises.

Rule 1: the record is stored by compare-and-swap *before* its effects run; who loses the race decides again.
Rule 2: effects are level-triggered: repeated with the same operation number until a report ends them.
Rule 3: a report counts only under the generation *and* the operation it was ordered with. A generation fences
        reports, not processes: whoever places a session anew must first know the old instance gone or stopped.
Rule 4: a pair that stands in neither table is ``Denied("cannot_<event>_while_<status>")``; the reason is API.
Rule 5: the last good snapshot changes only with ``SnapshotStored``, which is sent after the store's pointer moved, and
        only to one of a higher sequence. Between its capture and the next order an instance stays frozen.
Rule 6: a report may be lost, late, repeated or overtaken by another; that is never an error: it is ``Ignored``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from torpor.domain.clocks import DELETES, RUNS, Due, due, keep_time, set_clocks
from torpor.domain.ids import InstanceId
from torpor.domain.session import (
    PAUSED,
    TIMELINE_MAX,
    Durability,
    Moment,
    Persistence,
    Policy,
    Session,
    SnapshotRecord,
    Status,
)


class Effect(StrEnum):
    """What has to be done once the record is stored."""

    RESTORE = "restore"  # place: restore the snapshot (or the template's golden one) under the new generation
    CHECKPOINT = "checkpoint"  # quiesce, capture, seal, commit
    RELEASE = "release"  # destroy the instance: its state is safe in the store
    THAW = "thaw"  # let the captured instance go on in place
    ERASE = "erase"  # destroy the instance, shred the key, remove objects


@dataclass(frozen=True, slots=True)
class Command:
    """Something a client or a clock wants. Imperative names."""


@dataclass(frozen=True, slots=True)
class Report:
    """Something that happened to an order. Past tense names. Counts only under its own two numbers."""

    generation: int
    operation: int


@dataclass(frozen=True, slots=True)
class Create(Command):
    """Make the session's first instance. Only for a record that was never ordered (operation 0)."""


@dataclass(frozen=True, slots=True)
class Adopt(Command):
    """Give a new record, before its first order, the snapshot that it is a copy of."""

    snapshot: SnapshotRecord
    durability: Durability


@dataclass(frozen=True, slots=True)
class Pause(Command):
    """Snapshot and release. ``reason``: who wants it; for ``RUN_DEADLINE`` it must have come."""

    reason: str = "asked"


@dataclass(frozen=True, slots=True)
class Release(Command):
    """The pause of an ephemeral session: let its instance go; nothing of it is kept. ``reason`` as ``Pause``."""

    reason: str = "asked"


@dataclass(frozen=True, slots=True)
class Snapshot(Command):
    """Snapshot and go on."""


@dataclass(frozen=True, slots=True)
class Resume(Command):
    """Place and restore; of a lost session only with ``allow_older``, since its newest state is gone."""

    allow_older: bool = False


@dataclass(frozen=True, slots=True)
class Wake(Command):
    """A burst arrived: give up a pause that is not committed yet, resume one that is."""


@dataclass(frozen=True, slots=True)
class Delete(Command):
    """Remove everything of the session."""


@dataclass(frozen=True, slots=True)
class Expire(Command):
    """Remove it because a clock has ended. Refused unless one has, *now*: it may have been set anew meanwhile."""


@dataclass(frozen=True, slots=True)
class SetClocks(Command):
    """Set those clocks anew that ``fields`` names, of ``policy`` or ``HARD_DEADLINE``; the others stay as they are now.

    With ``timeout_s`` among them the run deadline starts over, now; else it stays where it is.
    """

    policy: Policy = field(default_factory=Policy)
    hard_deadline_at_s: float | None = None
    fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WarnExpiry(Command):
    """Announce that a resting session will be deleted soon."""


@dataclass(frozen=True, slots=True)
class Started(Report):
    """The instance answered READY under this generation. ``distrusts``: some of its newest snapshot was unreadable."""

    instance: InstanceId
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    distrusts: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotStored(Report):
    """The snapshot is committed; the store's pointer names it."""

    snapshot: SnapshotRecord
    durability: Durability
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OperationFailed(Report):
    """The order could not be carried out; what it was to change is as before. ``code``: the error's wire name."""

    reason: str
    code: str = "internal"


@dataclass(frozen=True, slots=True)
class InstanceLost(Report):
    """The instance is gone for certain, with what it had since the last snapshot."""

    reason: str


@dataclass(frozen=True, slots=True)
class Deleted(Report):
    """Nothing of the session is left."""


Event = Command | Report


@dataclass(frozen=True, slots=True)
class Accepted:
    """Store ``session``, then perform ``effects`` in order."""

    session: Session
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Ignored:
    """Already so, or a report of an order that is no longer current. Harmless."""

    reason: str


@dataclass(frozen=True, slots=True)
class Denied:
    """Not while the session stands where it does. ``reason`` is API."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One arrow. ``target`` None: where the session rests without an instance (paused as durable as it is, or lost)."""

    source: Status
    event: type[Event]
    target: Status | None
    effects: tuple[Effect, ...] = ()


S, E = Status, Effect

RULES: tuple[Rule, ...] = (
    Rule(S.CREATING, Create, S.CREATING, (E.RESTORE,)),
    Rule(S.CREATING, Adopt, S.CREATING),
    Rule(S.CREATING, Started, S.RUNNING),
    Rule(S.CREATING, OperationFailed, S.DELETING, (E.ERASE,)),
    Rule(S.CREATING, InstanceLost, S.DELETING, (E.ERASE,)),
    Rule(S.RUNNING, Pause, S.PAUSING, (E.CHECKPOINT,)),
    Rule(S.RUNNING, Release, S.PAUSED_LOCAL, (E.RELEASE,)),
    Rule(S.RUNNING, Snapshot, S.SNAPSHOTTING, (E.CHECKPOINT,)),
    Rule(S.RUNNING, InstanceLost, S.LOST),
    Rule(S.SNAPSHOTTING, SnapshotStored, S.RUNNING, (E.THAW,)),
    Rule(S.SNAPSHOTTING, OperationFailed, S.RUNNING, (E.THAW,)),
    Rule(S.SNAPSHOTTING, InstanceLost, S.LOST),
    Rule(S.PAUSING, SnapshotStored, None, (E.RELEASE,)),
    Rule(S.PAUSING, OperationFailed, S.RUNNING, (E.THAW,)),
    Rule(S.PAUSING, Wake, S.RUNNING, (E.THAW,)),
    Rule(S.PAUSING, Resume, S.RUNNING, (E.THAW,)),
    Rule(S.PAUSING, InstanceLost, S.LOST),
    Rule(S.PAUSED_LOCAL, Resume, S.RESUMING, (E.RESTORE,)),
    Rule(S.PAUSED_LOCAL, Wake, S.RESUMING, (E.RESTORE,)),
    Rule(S.PAUSED_DURABLE, Resume, S.RESUMING, (E.RESTORE,)),
    Rule(S.PAUSED_DURABLE, Wake, S.RESUMING, (E.RESTORE,)),
    Rule(S.RESUMING, Started, S.RUNNING),
    Rule(S.RESUMING, OperationFailed, None, (E.RELEASE,)),
    Rule(S.RESUMING, InstanceLost, None, (E.RELEASE,)),
    Rule(S.LOST, Resume, S.RESUMING, (E.RESTORE,)),
    # The instance died frozen, after its capture was committed: the loss was told first, and nothing is lost.
    Rule(S.LOST, SnapshotStored, None, (E.RELEASE,)),
    *(
        Rule(source, event, S.DELETING, (E.ERASE,))
        for event in (Delete, Expire)
        for source in S
        if source not in {S.DELETING, S.DELETED}
    ),
    Rule(S.DELETING, Deleted, S.DELETED),
    *(Rule(source, SetClocks, source) for source in S if source not in {S.DELETING, S.DELETED}),
    *(Rule(source, WarnExpiry, source) for source in (S.PAUSED_LOCAL, S.PAUSED_DURABLE, S.LOST)),
)

ALREADY: frozenset[tuple[Status, type[Event]]] = frozenset(
    {
        (S.PAUSING, Pause),
        (S.PAUSED_LOCAL, Pause),
        (S.PAUSED_DURABLE, Pause),
        (S.PAUSED_LOCAL, Release),
        (S.SNAPSHOTTING, Snapshot),
        (S.SNAPSHOTTING, Wake),
        (S.SNAPSHOTTING, Resume),
        (S.RUNNING, Resume),
        (S.RUNNING, Wake),
        (S.RESUMING, Resume),
        (S.RESUMING, Wake),
        (S.CREATING, Resume),
        (S.CREATING, Wake),
        (S.DELETING, Delete),
        (S.DELETED, Delete),
        (S.DELETING, Expire),
        (S.DELETED, Expire),
        (S.DELETED, Deleted),
        # Reports of the last order that come again, or were overtaken by the loss of the instance.
        *((status, Started) for status in (S.RUNNING, S.LOST, *PAUSED)),
        *((status, OperationFailed) for status in (S.RUNNING, S.LOST, *PAUSED, S.DELETING, S.DELETED)),
        *((status, InstanceLost) for status in (S.LOST, *PAUSED, S.DELETING, S.DELETED)),
    }
)

_RULE_FOR = {(rule.source, rule.event): rule for rule in RULES}
INSTANCE_LOST = "instance_lost"  # what ``last_error_code`` says of a loss, which is nobody's failure
IDLE = "idle"
RUN_DEADLINE = "run deadline"
HARD_DEADLINE = "hard_deadline_at_s"
REASON_CHARACTERS_MAX = 200  # in the timeline; ``last_error`` has the whole


def decide(session: Session, event: Event, *, now_s: float) -> Accepted | Ignored | Denied:
    """What ``event`` does to ``session`` at wall time ``now_s``. Total; never raises; no I/O."""
    stale = _staleness(session, event) if isinstance(event, Report) else None
    if stale is not None:
        return Ignored(stale)
    rule = _RULE_FOR.get((session.status, type(event)))
    if rule is None:
        if (session.status, type(event)) in ALREADY:
            return Ignored("already")
        return Denied(f"cannot_{_snake(type(event).__name__)}_while_{session.status.public}")
    refusal = _refusal(session, event, now_s)
    if refusal is not None:
        return Denied(refusal)
    return Accepted(_advance(session, event, rule, now_s), rule.effects)


def _staleness(session: Session, report: Report) -> str | None:
    """Why ``report`` tells nothing new. The loss of an instance counts whatever was ordered of it since."""
    if report.generation != session.generation:
        return "stale_generation"
    if report.operation != session.operation and not isinstance(report, InstanceLost):
        return "stale_operation"
    if isinstance(report, SnapshotStored) and session.snapshot is not None:
        return "already" if report.snapshot.sequence <= session.snapshot.sequence else None
    return None


def _refusal(session: Session, event: Event, now_s: float) -> str | None:
    """Why an event that the table knows is refused all the same; None if it is not."""
    if isinstance(event, Report):
        return None
    is_ephemeral = session.persistence is Persistence.EPHEMERAL
    ended = due(session, now_s)
    lacks = isinstance(event, Resume) and session.status is S.LOST
    refusals = {
        "cannot_create_twice": isinstance(event, Create) and session.operation > 0,
        "cannot_adopt_after_the_first_order": isinstance(event, Adopt) and session.operation > 0,
        "cannot_expire_before_a_clock_has_ended": isinstance(event, Expire) and ended not in DELETES,
        "cannot_pause_before_the_run_deadline": isinstance(event, Pause | Release)
        and event.reason == RUN_DEADLINE
        and ended is not Due.RUN_DEADLINE_PAUSES,
        "cannot_snapshot_ephemeral_session": isinstance(event, Pause | Snapshot) and is_ephemeral,
        "cannot_release_session_that_is_kept": isinstance(event, Release) and not is_ephemeral,
        "cannot_resume_without_snapshot": lacks and session.snapshot is None,
        "cannot_resume_lost_session_unless_older_state_is_allowed": lacks
        and not (isinstance(event, Resume) and event.allow_older),
    }
    return next((reason for reason, holds in refusals.items() if holds), None)


def _advance(session: Session, event: Event, rule: Rule, now_s: float) -> Session:
    changed = _absorb(session, event) if isinstance(event, Report) else _obey(session, event)
    target = rule.target or _rests_as(changed)
    # Giving up a pause is an order too: its new number makes the late end of the capture stale.
    orders = bool(rule.effects) and (isinstance(event, Command) or E.ERASE in rule.effects)
    advanced = replace(
        changed,
        status=target,
        generation=session.generation + (E.RESTORE in rule.effects),
        operation=session.operation + orders,
        ordered_at_s=now_s if orders else session.ordered_at_s,
        paused_at_s=now_s if isinstance(event, Release) else changed.paused_at_s,
    )
    if isinstance(event, WarnExpiry):
        return replace(advanced, expiry_warned_at_s=now_s)
    if isinstance(event, SetClocks):
        named = {name: getattr(event.policy, name) for name in event.fields - {HARD_DEADLINE}}
        hard_deadline_at_s = (event if HARD_DEADLINE in event.fields else session).hard_deadline_at_s
        restart = "timeout_s" in event.fields
        return set_clocks(advanced, replace(session.policy, **named), hard_deadline_at_s, restart=restart, now_s=now_s)
    reason = _why(session, event, now_s)[:REASON_CHARACTERS_MAX]
    moment = Moment(now_s, target, _snake(type(event).__name__), reason)
    advanced = replace(advanced, timeline=(*session.timeline, moment)[-TIMELINE_MAX:])
    return keep_time(_account(advanced, was=session.status, now_s=now_s), was=session.status, now_s=now_s)


def _obey(session: Session, command: Command) -> Session:
    """What a command itself says of the record, before anything was done."""
    match command:
        case Adopt():
            return replace(session, snapshot=command.snapshot, durability=command.durability)
        case Release():
            return replace(session, instance=None, last_error=None, last_error_code=None)
        case _:
            return session


def _absorb(session: Session, event: Report) -> Session:
    """The facts that a report carries, laid into the record."""
    match event:
        case Started():
            return replace(
                session,
                instance=event.instance,
                last_timings_ms=event.timings_ms,
                distrusts_snapshot=event.distrusts,
                last_error=None,
                last_error_code=None,
                paused_at_s=None,
                resumes_count=session.resumes_count + (session.status is S.RESUMING),
            )
        case SnapshotStored():
            paused = session.status in {S.PAUSING, S.LOST}
            return replace(
                session,
                snapshot=event.snapshot,
                distrusts_snapshot=False,
                durability=event.durability,
                paused_at_s=event.snapshot.instant_s if paused else session.paused_at_s,
                instance=None if paused else session.instance,
                cpu_s=session.cpu_s + (event.cpu_s if paused else 0.0),
                last_error=None,
                last_error_code=None,
            )
        case OperationFailed() | InstanceLost():
            gone = isinstance(event, InstanceLost) or session.status is S.RESUMING
            return replace(
                session,
                last_error=event.reason,
                last_error_code=event.code if isinstance(event, OperationFailed) else INSTANCE_LOST,
                instance=None if gone else session.instance,
            )
        case Deleted():
            return replace(
                session, instance=None, snapshot=None, durability=None, wrapped_key="", paused_at_s=None, env={}
            )
        case _:
            return session


def _why(session: Session, event: Event, now_s: float) -> str:
    if isinstance(event, Expire):
        return due(session, now_s) or ""
    reason: str = getattr(event, "reason", "")
    return "" if reason == "asked" else reason


def _account(session: Session, *, was: Status, now_s: float) -> Session:
    """Compute seconds run exactly while an instance of the session runs."""
    runs, ran = session.status in RUNS, was in RUNS
    if runs and not ran:
        return replace(session, running_since_s=now_s)
    if ran and not runs and session.running_since_s is not None:
        spent_s = max(0.0, now_s - session.running_since_s)
        return replace(session, running_since_s=None, compute_s=session.compute_s + spent_s)
    return session


def _rests_as(session: Session) -> Status:
    """``paused_at_s`` stands from a pause until the next start, so a failed resume of a lost session is still lost."""
    if session.paused_at_s is None:
        return S.LOST
    return S.PAUSED_DURABLE if session.durability is Durability.OBJECT else S.PAUSED_LOCAL


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def is_paused(session: Session) -> bool:
    """True if the session waits in the store."""
    return session.status in PAUSED


def diagram() -> str:
    """The table as a Mermaid state diagram (docs/lifecycle.mmd is this text; a test compares)."""
    lines = ["stateDiagram-v2", "    state resting <<choice>>", "    [*] --> creating"]
    for rule in RULES:
        if rule.source is rule.target and not rule.effects:
            continue  # the clocks' own: no arrow leads anywhere
        target = "resting" if rule.target is None else rule.target.value
        effects = f" / {', '.join(rule.effects)}" if rule.effects else ""
        lines.append(f"    {rule.source.value} --> {target}: {rule.event.__name__}{effects}")
    lines += [
        "    resting --> paused_local: durability cache or disk",
        "    resting --> paused_durable: durability object",
        "    resting --> lost: its newest state is gone",
        "    deleted --> [*]",
    ]
    return "\n".join(lines) + "\n"
