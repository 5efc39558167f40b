"""Four clocks per session, each an instant with its own policy. Pure; times are wall seconds.

| Clock | Runs | At its end |
|---|---|---|
| idle window | while running, from the last work on (``domain.activity``) | pause |
| run deadline | while running; stands still otherwise | pause or delete, as the policy says |
| hard deadline | from create on, in every status | delete |
| retention | while paused or lost | delete, announced before |

Invariant: exactly one of run clock, retention clock and terminal is live in each status, and no read, burst, connect or
resume moves an instant nearer: only ``SetClocks`` does. Retention is derived from when the rest began, so that a resume
that fails cannot clear or restart it.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from torpor.domain.session import PAUSED, DeadlineAction, Policy, Session, Status

WARNING_S_MAX = 3 * 24 * 3600.0
WARNING_SHARE = 0.1  # of the retention


class LiveClock(StrEnum):
    """Which clock a status runs."""

    RUN = "run"
    RETENTION = "retention"
    TERMINAL = "terminal"


class Due(StrEnum):
    """What has come to its end."""

    HARD_DEADLINE = "hard_deadline"
    RUN_DEADLINE_PAUSES = "run_deadline_pauses"
    RUN_DEADLINE_KILLS = "run_deadline_kills"
    RETENTION = "retention"
    WARNING = "warning"


DELETES = frozenset({Due.HARD_DEADLINE, Due.RUN_DEADLINE_KILLS, Due.RETENTION})
RUNS = frozenset({Status.RUNNING, Status.SNAPSHOTTING, Status.PAUSING})
RESTS = PAUSED | {Status.LOST}


def live_clock(session: Session) -> LiveClock:
    """The one clock that is live where the session stands. Total."""
    if session.status in {Status.DELETING, Status.DELETED}:
        return LiveClock.TERMINAL
    return LiveClock.RETENTION if session.status in RESTS else LiveClock.RUN


def expires_at_s(session: Session) -> float | None:
    """When a resting session is deleted; None if it does not rest or is kept for ever."""
    began_s = session.lost_at_s if session.paused_at_s is None else session.paused_at_s
    if session.status not in RESTS or session.policy.retention_s is None or began_s is None:
        return None
    return began_s + session.policy.retention_s


def warns_at_s(session: Session) -> float | None:
    """When the coming expiry is announced; None once it was."""
    expires_s = expires_at_s(session)
    if expires_s is None or session.expiry_warned_at_s is not None:
        return None
    assert session.policy.retention_s is not None
    return expires_s - min(WARNING_S_MAX, WARNING_SHARE * session.policy.retention_s)


def due(session: Session, now_s: float) -> Due | None:
    """What of the session's record is due, the gravest first. The idle window is judged elsewhere: it needs samples."""
    if live_clock(session) is LiveClock.TERMINAL:
        return None
    if _reached(session.hard_deadline_at_s, now_s):
        return Due.HARD_DEADLINE
    if _reached(expires_at_s(session), now_s):
        return Due.RETENTION
    if session.status is Status.RUNNING and _reached(session.run_deadline_at_s, now_s):
        kills = session.policy.timeout_action is DeadlineAction.KILL
        return Due.RUN_DEADLINE_KILLS if kills else Due.RUN_DEADLINE_PAUSES
    if _reached(warns_at_s(session), now_s):
        return Due.WARNING
    return None


def next_due_at_s(session: Session) -> float | None:
    """The next instant at which ``due`` may answer; None if no clock of the record will ever end. For an index."""
    if live_clock(session) is LiveClock.TERMINAL:
        return None
    instants = (session.hard_deadline_at_s, session.run_deadline_at_s, expires_at_s(session), warns_at_s(session))
    return min((instant for instant in instants if instant is not None), default=None)


def keep_time(session: Session, *, was: Status, now_s: float) -> Session:
    """The run clock after a change of status: it starts with an instance, and stands still without one."""
    runs, ran = session.status in RUNS, was in RUNS
    if runs and not ran:
        left_s = session.run_left_s
        if left_s is None or left_s <= 0:  # spent: a resume that was asked for gets the whole time again
            left_s = session.policy.timeout_s
        at_s = None if left_s is None else now_s + left_s
        return replace(session, run_deadline_at_s=at_s, run_left_s=None, lost_at_s=None, expiry_warned_at_s=None)
    if ran and not runs:
        at_s = session.run_deadline_at_s
        left_s = None if at_s is None else max(0.0, at_s - now_s)
        lost_at_s = now_s if session.status is Status.LOST else None
        return replace(session, run_deadline_at_s=None, run_left_s=left_s, lost_at_s=lost_at_s)
    return session


def set_clocks(
    session: Session, policy: Policy, hard_deadline_at_s: float | None, *, restart: bool, now_s: float
) -> Session:
    """What an owner asks for, and nothing else, may shorten an instant. ``restart``: the run deadline starts over."""
    changed = replace(session, policy=policy, hard_deadline_at_s=hard_deadline_at_s, expiry_warned_at_s=None)
    if not restart:
        return changed
    if session.status not in RUNS:
        return replace(changed, run_left_s=policy.timeout_s)
    at_s = None if policy.timeout_s is None else now_s + policy.timeout_s
    return replace(changed, run_deadline_at_s=at_s)


def _reached(instant_s: float | None, now_s: float) -> bool:
    return instant_s is not None and instant_s <= now_s
