"""The node's memory from /proc/meminfo and from the limits of this process's cgroup and all cgroups above it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KIB = 1024
UNLIMITED_BYTES = 1 << 60  # version 1 writes "no limit" as the largest multiple of a page


@dataclass(slots=True)
class SetMemory:
    """``ports.memory.Memory`` that says what a test sets."""

    total: int
    available: int

    def total_bytes(self) -> int:
        """See the port."""
        return self.total

    def available_bytes(self) -> int:
        """See the port."""
        return self.available


class HostMemory:
    """``ports.memory.Memory`` of this machine. ``proc``: another one's /proc, for tests. Limits are looked for once."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._meminfo = proc / "meminfo"
        own = (proc / "self/cgroup").read_text()
        folders = memory_cgroups((proc / "self/mountinfo").read_text(), own)
        self._folders = tuple(folder for folder in folders if _limit_bytes(folder) is not None)

    def total_bytes(self) -> int:
        """See the port."""
        limits = (limit for folder in self._folders if (limit := _limit_bytes(folder)) is not None)
        return min((_meminfo_bytes(self._meminfo, "MemTotal"), *limits))

    def available_bytes(self) -> int:
        """See the port. Below a limit: what is left of it, and the file cache that the kernel would give up first."""
        rooms = (room for folder in self._folders if (room := _room_bytes(folder)) is not None)
        return max(0, min((_meminfo_bytes(self._meminfo, "MemAvailable"), *rooms)))


def memory_cgroups(mountinfo: str, own: str) -> Iterator[Path]:
    """The folders of a process's memory cgroups, its own first, up to the mount. ``own``: /proc/self/cgroup."""
    paths = {names: path for line in own.splitlines() for _, names, path in [line.split(":", 2)]}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(maxsplit=2)
        is_version_1 = kind == "cgroup" and "memory" in options.split(",")
        if not is_version_1 and kind != "cgroup2":
            continue
        path = next((at for names, at in paths.items() if "memory" in names.split(",")), None)
        if not is_version_1:
            path = paths.get("")
        if path is not None:
            yield from _upwards(Path(fields[4]), _below(path, root=fields[3]))


def _below(path: str, *, root: str) -> tuple[str, ...]:
    """The parts of ``path`` under a mount that shows only ``root`` of the tree."""
    inside = path.removeprefix(root) if path == root or path.startswith(root.rstrip("/") + "/") else path
    return tuple(part for part in inside.split("/") if part not in {"", ".."})


def _upwards(mount: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    for length in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:length])
        if folder.is_dir():
            yield folder


def _limit_bytes(folder: Path) -> int | None:
    """None without a limit."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        said = _read(folder / name)
        if said.isdigit() and int(said) < UNLIMITED_BYTES:
            return int(said)
    return None


def _room_bytes(folder: Path) -> int | None:
    limit = _limit_bytes(folder)
    if limit is None:
        return None
    used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
    stat = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
    cache = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
    return limit - int(used or 0) + int(cache)


def _meminfo_bytes(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * KIB
    raise AssertionError(f"{file} has no {name}: Linux has had it since 3.14")


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
