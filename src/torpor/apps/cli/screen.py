"""What people see: results on stdout, everything else on stderr. With ``--json`` only JSON, on both."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from torpor.apps.cli import streams
from torpor.domain.errors import TorporError

PATIENCE_S = 1.0  # what takes longer says so
TICK_S = 0.5

JSON = Mapping[str, Any]


def emit(value: object) -> None:
    """A result as JSON. Values JSON does not know, such as paths, as text."""
    streams.put(json.dumps(value, indent=2, default=str) + "\n")


def say(line: str) -> None:
    """A result for people."""
    streams.put(f"{line}\n")


def note(line: str) -> None:
    """Something worth knowing beside the result."""
    streams.tell(f"torpor: {line}\n")


def report(error: TorporError, *, as_json: bool) -> None:
    """An error, with its remedy."""
    if as_json:
        said = {"code": error.code, "message": error.message, "details": error.details}
        streams.tell(json.dumps(said, default=str) + "\n")
        return
    streams.tell(f"torpor: {error.message}\n")
    if error.code == "not_found" and "session" in error.details and "`" not in error.message:
        streams.tell("`torpor ls` lists your sessions\n")
    if tail := error.details.get("log_tail"):
        streams.tell(f"the last lines of the log:\n{tail}\n")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned columns, two spaces between."""
    widths = [max(len(line[column]) for line in (headings, *rows)) for column in range(len(headings))]
    for line in (headings, *rows):
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def size(count_bytes: float) -> str:
    """``12.3 MB``: decimal units, three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count_bytes < 999.5:
            return f"{count_bytes:.0f} {unit}" if unit == "B" or count_bytes >= 99.95 else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1000
    return f"{count_bytes:.1f} TB"


def span(duration_s: float) -> str:
    """``120 ms``, ``42 s``, ``3 h 12 min``, ``5 d 2 h``."""
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 10:
        return f"{duration_s:.1f} s"
    total_s = round(duration_s)
    for name, unit_s, part, part_s in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if total_s >= unit_s:
            rest = total_s % unit_s // part_s
            return f"{total_s // unit_s} {name}" + (f" {rest} {part}" if rest else "")
    return f"{total_s} s"


def age(instant: str) -> str:
    """How long ago an RFC 3339 instant was."""
    from torpor.adapters.clock.system import SystemClock  # noqa: PLC0415 - it takes asyncio along, --json needs neither

    then = datetime.fromisoformat(instant).astimezone(UTC).timestamp()
    return f"{span(max(1.0, SystemClock().wall_s() - then))} ago"


def label(session: JSON) -> str:
    """The name people gave, or the id."""
    return str(session["name"] or session["id"])


LOST_BY = {
    "restored_older": "an earlier snapshot came back: what came after it is gone",
    "restored_filesystem": "its disk came back: its processes and variables are gone",
    "state_lost": "it is ephemeral and started anew: nothing of it was kept",
}


def woken(who: str, resumed: JSON | None) -> None:
    """A note if a burst had to wake its session."""
    if resumed is None or resumed["cause"] == "created":
        return
    took_ms = resumed["timings_ms"].get("total")
    took = "" if took_ms is None else f" in {span(took_ms / 1000)}"
    note(f"{who} was paused for {span(resumed['gap_s'])}; {resumed['cause']} ({resumed['tier']}){took}")
    if (lost := LOST_BY.get(resumed.get("outcome", ""))) is not None:
        note(lost)
    for why in resumed.get("stepped_down", ()):
        note(f"because: {why}")
    for what in resumed["dropped"]:
        note(f"dropped: {what}")


class Waiting:
    """Tells on stderr what is waited for once it takes longer than a second; quiet with ``--json``."""

    def __init__(self, what: str, *, quiet: bool) -> None:
        self._what = what
        self._quiet = quiet
        self._over = threading.Event()
        self._tty = sys.stderr.isatty()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def start(self) -> None:
        """Begin to wait."""
        if not self._quiet:
            self._thread.start()

    def update(self, what: str) -> None:
        """What is waited for by now; seen on a terminal only."""
        self._what = what

    def end(self) -> None:
        """No longer waiting; what was told is wiped off a terminal. Idempotent."""
        if not self._over.is_set():
            self._over.set()
            if self._thread.is_alive():
                self._thread.join()

    def _tell(self) -> None:
        waited_s = PATIENCE_S
        if self._over.wait(PATIENCE_S):
            return
        if not self._tty:
            note(f"{self._what} …")
            return
        while True:
            streams.tell(f"\r\x1b[2Ktorpor: {self._what} … {waited_s:.0f} s")
            waited_s += TICK_S
            if self._over.wait(TICK_S):
                streams.tell("\r\x1b[2K")
                return


@contextmanager
def counting(what: str, *, quiet: bool) -> Iterator[Callable[[Iterable[bytes]], Iterator[bytes]]]:
    """As ``waiting``, with how much has come so far; the pieces go through what is given."""
    wait = Waiting(what, quiet=quiet)

    def counted(pieces: Iterable[bytes]) -> Iterator[bytes]:
        count_bytes = 0
        for piece in pieces:
            yield piece
            count_bytes += len(piece)
            wait.update(f"{what}: {size(count_bytes)}")

    wait.start()
    try:
        yield counted
    finally:
        wait.end()


@contextmanager
def waiting(what: str, *, quiet: bool) -> Iterator[None]:
    """Say what is waited for, if it takes long."""
    wait = Waiting(what, quiet=quiet)
    wait.start()
    try:
        yield
    finally:
        wait.end()
