"""What /proc says of the processes here. Reading only."""

from __future__ import annotations

import os
from dataclasses import dataclass

STOPPED = frozenset("Tt")
DEAD = frozenset("ZX")


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process. ``cpu_ticks``: its own time and that of its reaped children."""

    pid: int
    parent: int
    state: str
    cpu_ticks: int
    name: str = ""

    @property
    def is_stopped(self) -> bool:
        """Somebody has stopped it."""
        return self.state in STOPPED

    @property
    def runs(self) -> bool:
        """After a SIGSTOP: it may still be executing. D cannot: it meets the signal before it is back in user mode."""
        return self.state not in STOPPED and self.state not in DEAD and self.state != "D"


def parse_stat(stat: str) -> ProcessRow:
    """A line of /proc/PID/stat; the name in parentheses may hold anything, parentheses too."""
    pid, _, rest = stat.partition(" ")
    name, _, tail = rest.rpartition(")")
    fields = tail.split(None, 15)
    return ProcessRow(int(pid), int(fields[1]), fields[0], sum(map(int, fields[11:15])), name[1:])


def state_of(pid: int) -> str:
    """The state of one process, "X" if there is none."""
    try:
        return parse_stat(_content(f"/proc/{pid}/stat")).state
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def processes(*, descendants_of: int | None = None) -> list[ProcessRow]:
    """Every process but this one; with ``descendants_of`` only what that process started, directly or not."""
    rows, own = [], str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdigit() and name != own:
            try:
                rows.append(parse_stat(_content(f"/proc/{name}/stat")))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
    if descendants_of is None:
        return rows
    family, size = {descendants_of}, 0
    while len(family) != size:
        size = len(family)
        family |= {row.pid for row in rows if row.parent in family}
    return [row for row in rows if row.pid in family]


def _content(path: str) -> str:
    """A small file's text, in three system calls."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).decode(errors="replace")
    finally:
        os.close(fd)
