"""What /proc says of the processes here. Reading only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

STOPPED = frozenset("Tt")
DEAD = frozenset("ZX")


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process. ``cpu_ticks``: its own time and that of its reaped children."""

    pid: int
    parent: int
    state: str
    cpu_ticks: int

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
    fields = rest.rpartition(")")[2].split()
    return ProcessRow(int(pid), int(fields[1]), fields[0], sum(int(field) for field in fields[11:15]))


def processes(*, descendants_of: int | None = None) -> list[ProcessRow]:
    """Every process but this one; with ``descendants_of`` only what that process started, directly or not."""
    rows = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                rows.append(parse_stat(Path("/proc", name, "stat").read_text(errors="replace")))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
    if descendants_of is None:
        return rows
    family, size = {descendants_of}, 0
    while len(family) != size:
        size = len(family)
        family |= {row.pid for row in rows if row.parent in family}
    return [row for row in rows if row.pid in family]
