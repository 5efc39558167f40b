"""Exit codes, on one page. ``sh`` and ``exec`` end with the command's own code when the command ran."""

from __future__ import annotations

from collections.abc import Mapping

from torpor.domain.errors import TorporError

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
UNAVAILABLE = 5
REFUSED = 6
TIMED_OUT = 124
INTERRUPTED = 130
UNREAD = 141
SIGNAL_BASE = 128

MEANINGS: Mapping[int, str] = {
    OK: "it worked",
    FAILED: "the code raised, or a check found something",
    USAGE: "the command line or a value on it is wrong",
    NOT_FOUND: "no such session, template, file or engine",
    CONFLICT: "the state of the session, home or port does not allow it",
    UNAVAILABLE: "no server answers, or it cannot now; repeat later",
    REFUSED: "any other error: key, limits, disk, engine, guest, damage; the message says which",
    TIMED_OUT: "the time given with --timeout ran out",
    INTERRUPTED: "Ctrl-C",
    UNREAD: "nobody reads the output any more, as after `| head -1`",
}

_BY_CODE: Mapping[str, int] = {
    "invalid_argument": USAGE,
    "not_found": NOT_FOUND,
    "conflict": CONFLICT,
    "aborted": CONFLICT,
    "unavailable": UNAVAILABLE,
    "deadline_exceeded": UNAVAILABLE,
}


def exit_code(error: TorporError) -> int:
    """The exit code that tells of ``error``."""
    return _BY_CODE.get(error.code, REFUSED)


def of_command(code: int | None) -> int:
    """The exit code that passes a command's own on: 128 + N for one killed by signal N, as shells do."""
    if code is None:
        return OK
    return SIGNAL_BASE - code if code < 0 else code
