"""The host's cgroups of one instance, version 1 or 2: freeze, count, kill, remove. runsc makes them and sets the caps.

Version 1 has a folder per controller, version 2 one for all; both are found from the mounts, once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.domain.errors import EngineError, Unsupported
from torpor.ports.clock import Clock

FREEZE_TIMEOUT_S = 10.0
REMOVE_TIMEOUT_S = 10.0
POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where cgroups are mounted: ``unified`` (version 2 alone) or ``controllers`` (version 1, by name)."""

    unified: Path | None
    controllers: Mapping[str, Path]


def hierarchies_of(mountinfo: str) -> Hierarchies:
    """Read /proc/self/mountinfo. Version 2 counts only where no version-1 controller is mounted, as in runsc."""
    unified: Path | None = None
    controllers: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        place = Path(fields[4])
        if kinds[0] == "cgroup2":
            unified = unified or place
        elif kinds[0] == "cgroup":
            controllers.update(dict.fromkeys(place.name.split(","), place))
    return Hierarchies(unified=None if controllers else unified, controllers=controllers)


class Cgroup:
    """The cgroups at ``path`` (absolute below the mounts, such as /torpor/h1a2b3c4d/ID)."""

    def __init__(self, path: str, hierarchies: Hierarchies, clock: Clock) -> None:
        self._clock = clock
        self._unified = hierarchies.unified / path.lstrip("/") if hierarchies.unified else None
        self._places = {name: mount / path.lstrip("/") for name, mount in hierarchies.controllers.items()}

    @property
    def can_freeze(self) -> bool:
        """True if this host has a freezer."""
        return self._unified is not None or "freezer" in self._places

    async def freeze(self) -> None:
        """Stop every process in it; returns when all are stopped. Idempotent. Raises: Unsupported, EngineError."""
        await self._set_frozen(frozen=True)

    async def thaw(self) -> None:
        """Let every process go on. Idempotent. Raises: Unsupported, EngineError."""
        await self._set_frozen(frozen=False)

    def is_frozen(self) -> bool:
        """True if its processes are stopped."""
        if self._unified is not None:
            return "frozen 1" in _read(self._unified / "cgroup.events")
        freezer = self._places.get("freezer")
        return freezer is not None and _read(freezer / "freezer.state").strip() in {"FROZEN", "FREEZING"}

    def pids(self) -> tuple[int, ...]:
        """The processes in it."""
        place = self._unified or self._places.get("freezer") or next(iter(self._places.values()), None)
        return tuple(int(pid) for pid in _read(place / "cgroup.procs").split()) if place else ()

    def usage(self) -> dict[str, float]:
        """``cpu_s`` used so far and ``memory_bytes`` held; zeros if it is gone."""
        if self._unified is not None:
            stat = dict(line.split() for line in _read(self._unified / "cpu.stat").splitlines())
            return {
                "cpu_s": int(stat.get("usage_usec", 0)) / 1e6,
                "memory_bytes": float(_read(self._unified / "memory.current") or 0),
            }
        cpu, memory = self._places.get("cpuacct"), self._places.get("memory")
        return {
            "cpu_s": float(_read(cpu / "cpuacct.usage") or 0) / 1e9 if cpu else 0.0,
            "memory_bytes": float(_read(memory / "memory.usage_in_bytes") or 0) if memory else 0.0,
        }

    def forbid_swap(self) -> None:
        """Keep guest memory out of the host's swap, which is a disk. Nothing where the kernel counts no swap."""
        place, name = (
            (self._unified, "memory.swap.max") if self._unified else (self._places.get("memory"), "memory.swappiness")
        )
        if place is not None:
            with contextlib.suppress(OSError):
                (place / name).write_text("0")

    def limit_memory(self, limit_bytes: int | None) -> None:
        """Set the limit; None: none. What is held already stays: version 1 refuses a lower limit, 2 kills over it."""
        if self._unified is not None:
            files = [self._unified / "memory.max"]
        else:
            place = self._places.get("memory")
            both = [] if place is None else [place / "memory.limit_in_bytes", place / "memory.memsw.limit_in_bytes"]
            files = both[::-1] if limit_bytes is None else both  # the second is never the lower one
        unlimited = "max" if self._unified is not None else "-1"
        for file in files:
            with contextlib.suppress(OSError):
                if file.exists():  # a kernel may count no swap
                    file.write_text(unlimited if limit_bytes is None else str(limit_bytes))

    def kill(self) -> None:
        """SIGKILL to every process in it; they die once it is thawed."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def remove(self) -> None:
        """Remove it everywhere, waiting for its last process. Idempotent. Raises: EngineError."""
        deadline_s = self._clock.monotonic_s() + REMOVE_TIMEOUT_S
        for place in [self._unified] if self._unified else set(self._places.values()):
            while not _remove(place):
                if self._clock.monotonic_s() > deadline_s:
                    raise EngineError(f"cannot remove the cgroup {place}: processes {self.pids()} are still in it")
                await self._clock.sleep(POLL_S)

    async def _set_frozen(self, *, frozen: bool) -> None:
        if self._unified is not None:
            file, word = self._unified / "cgroup.freeze", "1" if frozen else "0"
        elif "freezer" in self._places:
            file, word = self._places["freezer"] / "freezer.state", "FROZEN" if frozen else "THAWED"
        else:
            raise Unsupported(
                "cannot freeze: this host has no cgroup freezer; mount one or use version 2", lacks="freezer"
            )
        deadline_s = self._clock.monotonic_s() + FREEZE_TIMEOUT_S
        while True:
            try:
                file.write_text(word)
            except OSError as error:
                raise EngineError(f"cannot write {word} to {file}: {error.strerror}") from error
            if self._is_settled(frozen=frozen):
                return
            if self._clock.monotonic_s() > deadline_s:
                raise EngineError(f"cannot {'freeze' if frozen else 'thaw'} {file.parent}: it takes too long")
            await self._clock.sleep(POLL_S)

    def _is_settled(self, *, frozen: bool) -> bool:
        if self._unified is not None:
            return self.is_frozen() is frozen
        return _read(self._places["freezer"] / "freezer.state").strip() == ("FROZEN" if frozen else "THAWED")


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _remove(place: Path) -> bool:
    """True if the folder is gone."""
    try:
        place.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in {errno.EBUSY, errno.ENOTEMPTY}:
            return False
        raise EngineError(f"cannot remove the cgroup {place}: {error.strerror}") from error
    return True
