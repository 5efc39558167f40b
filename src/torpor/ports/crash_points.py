"""Where a server may die: numbered points on the way of a session, at which a test kills the process.

Between any two neighbours an effect has been carried out. A point is named after what has just been done. In production
nothing is armed and ``reach`` does nothing. The numbers are stable: reports and failing runs name them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum


class CrashPoint(IntEnum):
    """What has just been done."""

    PAUSE_ORDERED = 1  # the record says pausing
    CAPTURE_QUIESCED = 2
    CAPTURE_CHECKPOINTED = 3
    SEAL_FIRST_CHUNKS = 4
    UPLOAD_PACK = 5
    UPLOAD_MANIFEST = 6
    COMMIT_HEAD = 7  # the store's pointer names the new snapshot
    COMMIT_RECORD = 8  # the record says paused, the instance is still there
    RELEASE_DONE = 9
    RESUME_ORDERED = 10  # the record says resuming
    RESUME_FETCHED = 11
    RESUME_RESTORED = 12  # the instance runs, parked
    RESUME_READY = 13  # user code goes on
    RESUME_RECORDED = 14
    FORK_INSERTED = 15  # a record without a snapshot
    FORK_STORED = 16  # the fork's own manifest is there
    FORK_RECORDED = 17  # its record names it
    DELETE_ORDERED = 18
    DELETE_INSTANCE_GONE = 19
    DELETE_KEY_DESTROYED = 20
    DELETE_OBJECT = 21  # one of its objects
    DELETE_OBJECTS_GONE = 22
    GC_PLANNED = 23
    GC_OBJECT = 24  # one of the garbage
    CREATE_KEY_MADE = 25
    CREATE_INSERTED = 26


_hook: Callable[[CrashPoint], None] | None = None


def reach(point: CrashPoint) -> None:
    """Say that ``point`` was reached."""
    if _hook is not None:
        _hook(point)


def arm(hook: Callable[[CrashPoint], None] | None) -> None:
    """Call ``hook`` at every point from now on, in this process; None: at none. For tests."""
    global _hook  # noqa: PLW0603 - one process, one way to die; handing it through every layer would say nothing more
    _hook = hook
