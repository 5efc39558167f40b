"""What runsc says, turned into values and errors of the domain. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from torpor.domain.errors import EngineError, StorageFull, TorporError

LOG_TAIL_CHARS = 2_000
_FLAG = re.compile(r"[\w.:-]+")
_NO_SPACE = ("no space left on device", "disk quota exceeded")


def version_of(output: str) -> str:
    """The version in ``runsc --version``. Raises: EngineError if there is none."""
    for line in output.splitlines():
        words = line.split()
        if words[:2] == ["runsc", "version"] and len(words) == 3:
            return words[2]
    raise EngineError(f"cannot read the version of runsc: it said {output[:200]!r}")


def cpu_flags_of(output: str) -> tuple[str, ...]:
    """The sorted flags in ``runsc cpu-features``; empty if that is not what ``output`` is, but a usage text."""
    flags = output.strip().split(",")
    return tuple(sorted(flags)) if len(flags) > 1 and all(map(_FLAG.fullmatch, flags)) else ()


def flag_help(flags: str, name: str) -> str:
    """What ``runsc flags`` says of the flag ``name``; empty if it has none. Other flags' texts may mention it."""
    found = re.search(rf"^ +-{re.escape(name)}\b(.*?)(?=^ +-\w|\Z)", flags, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def cpuinfo_flags_of(cpuinfo: str) -> tuple[str, ...]:
    """The sorted flags of the first CPU in /proc/cpuinfo (x86: flags, arm64: Features)."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return tuple(sorted(value.split()))
    return ()


def log_messages(log: str) -> str:
    """The end of what a runsc log in JSON lines says went wrong; whole lines that are not JSON are kept as they are."""
    messages = []
    for line in log.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            messages.append(line)
            continue
        if isinstance(record, dict) and record.get("level") in {"warning", "error", "fatal"}:
            messages.append(str(record.get("msg", "")).strip())
    return "\n".join(messages)[-LOG_TAIL_CHARS:]


def failure(doing: str, said: str, *, argv: Sequence[str] = (), exit_code: int | None = None) -> TorporError:
    """The error for a command or call that failed: StorageFull if it says so, else EngineError.

    ``doing`` completes "cannot ..."; ``said`` is stderr, a log or the error of a call.
    """
    tail = said.strip()[-LOG_TAIL_CHARS:]
    if any(sign in tail.lower() for sign in _NO_SPACE):
        return StorageFull(f"cannot {doing}: no space left; free some and repeat, nothing was lost", log_tail=tail)
    reason = tail.splitlines()[-1] if tail else f"runsc ended with {exit_code}"
    return EngineError(f"cannot {doing}: {reason}", argv=list(argv), exit_code=exit_code, log_tail=tail)
