"""What isolates and freezes. No session, tenant, key or chunk below this line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from torpor.domain.ids import InstanceId


class InstanceStatus(StrEnum):
    """What an engine knows of an instance."""

    CREATED = "created"
    RUNNING = "running"
    FROZEN = "frozen"
    STOPPED = "stopped"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What was *probed* on this host with this build, not what the name implies.

    ``build`` identifies the binary (name, version and digest); an image restores only under the same build.
    ``cpu_flags``: sorted flags of the host; an image restores only where all of its flags are present.
    """

    engine: str
    version: str
    build: str
    filesystem_part: bool
    freeze: bool
    cpu_flags: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InstanceShape:
    """All that is fixed when an instance is created: the frozen spec's inputs.

    Two instances of equal shape are interchangeable for a restore. ``rootfs`` is read-only to the instance; its
    writes go to an overlay of at most ``disk_bytes``. ``memory_bytes`` and ``disk_bytes`` together bound host memory.
    ``cpus`` may be a fraction. ``argv`` is PID 1. ``spec_version`` names the spec generator (docs/design/).
    ``memory_bytes`` and ``cpus`` alone may differ between a capture and its restore. ``shared_bytes``: of /dev/shm,
    which may not; None: half of ``memory_bytes``.
    """

    rootfs: Path
    argv: tuple[str, ...]
    env: tuple[str, ...] = ()
    memory_bytes: int = 512 * 1024 * 1024
    disk_bytes: int = 512 * 1024 * 1024
    cpus: float = 2.0
    pids_max: int = 512
    spec_version: int = 1
    shared_bytes: int | None = None

    @property
    def shm_bytes(self) -> int:
        """Size of /dev/shm."""
        return self.memory_bytes // 2 if self.shared_bytes is None else self.shared_bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A capture on local disk: a directory with two independently restorable parts, taken at one frozen instant.

    ``memory_files``: names inside ``directory`` that ``restore`` needs. ``filesystem_file``: the filesystem delta as a
    tar (whiteouts as character devices 0/0), or None where the engine has no filesystem part.
    ``requirements``: everything a restore must check (build, cpu_flags, spec, overlay mode, network kind, …), JSON.
    ``timings_ms``: what each step took, by name.
    """

    directory: Path
    memory_files: tuple[str, ...]
    filesystem_file: str | None
    requirements: Mapping[str, Any]
    timings_ms: Mapping[str, float] = field(default_factory=dict)


class Channel(Protocol):
    """The one duplex byte stream to PID 1 of an instance. Not framed here. One reader and one writer at a time."""

    async def read(self, count_max: int) -> bytes:
        """1 to ``count_max`` bytes; ``b""`` once the instance is gone or the channel was closed."""
        ...

    async def write(self, data: bytes) -> None:
        """All of ``data``, waiting while the instance does not read. Raises: GuestError once it is gone."""
        ...

    async def close(self) -> None:
        """Let go of this host's ends. The instance lives on. Idempotent."""
        ...


class Engine(Protocol):
    """Instances, by id. Every method may be called concurrently for different ids; one at a time for one id.

    Errors of every method: EngineError; Unsupported for what ``capabilities`` does not offer (never a silent skip).
    """

    async def capabilities(self) -> EngineCapabilities:
        """What this build can do on this host. Cached after the first call. Raises: Unsupported if it cannot run."""
        ...

    async def create(self, instance: InstanceId, shape: InstanceShape, *, filesystem: Path | None = None) -> None:
        """Make an instance that has not started: sandbox, caps, network namespace, channel. May be pooled.

        ``filesystem``: a filesystem part (tar) to lay over ``rootfs`` before the start; for ``start`` only.
        On failure nothing of it is left. Raises: Conflict if the id is in use.
        """
        ...

    async def start(self, instance: InstanceId) -> None:
        """Run ``argv`` in a created instance."""
        ...

    async def restore(
        self, instance: InstanceId, directory: Path, *, requirements: Mapping[str, Any], background: bool = False
    ) -> None:
        """Bring the memory part in ``directory`` to life in a created instance of an equal shape. Runs on return.

        The same directory may be restored into many instances. Requirements are checked *before* anything starts.
        With ``background`` the pages may still be read after return; keep the files until ``loaded``.
        Raises: Unsupported naming what differs; then the instance is still created. EngineError: destroy it.
        """
        ...

    async def loaded(self, instance: InstanceId) -> None:
        """Return once a background restore has read all of its files. At once where there was none."""
        ...

    async def checkpoint(self, instance: InstanceId, into: Path, *, memory: bool = True) -> Checkpoint:
        """Stop the instance at one instant and write both parts into ``into``, a fresh empty directory.

        Without ``memory`` the filesystem part alone: ``memory_files`` is empty. Raises: Unsupported if it has none.
        On success the instance is left frozen: ``destroy`` it or ``thaw`` it. On failure it goes on running, and
        nothing of the attempt is left in ``into``. Raises: StorageFull, EngineError.
        """
        ...

    async def freeze(self, instance: InstanceId) -> None:
        """Stop it in memory so that it uses no CPU. Idempotent.

        Of one that was created only (the pool), or left paused by ``checkpoint``: what runs may not survive it.
        """
        ...

    async def thaw(self, instance: InstanceId) -> None:
        """Let a frozen instance go on, also one left frozen by ``checkpoint``. Idempotent."""
        ...

    async def destroy(self, instance: InstanceId) -> None:
        """Remove it and all that belongs to it (processes, cgroup, namespace, mounts, channel). Idempotent."""
        ...

    async def inspect(self, instance: InstanceId) -> InstanceStatus:
        """Its status; ABSENT if there is none. Never raises NotFound."""
        ...

    async def usage(self, instance: InstanceId) -> Mapping[str, float]:
        """``cpu_s`` used and ``memory_bytes`` held now, as the host counts them; zeros if absent."""
        ...

    async def instances(self) -> tuple[InstanceId, ...]:
        """All ids that exist under this engine's root, also those a dead server left."""
        ...

    async def attach(self, instance: InstanceId) -> Channel:
        """The channel. Also for an instance that a dead server made; closing the earlier one is the caller's duty.

        Raises: NotFound if absent.
        """
        ...
