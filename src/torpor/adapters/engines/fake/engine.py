"""The fake engine itself."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torpor.adapters.engines.fake import image
from torpor.adapters.engines.fake.host import FakeChannel, FakeHost, FakeInstance, ProgramFactory
from torpor.domain.errors import (
    Conflict,
    EngineError,
    InvalidArgument,
    NotFound,
    StorageFull,
    TorporError,
    Unsupported,
)
from torpor.domain.ids import InstanceId, is_id
from torpor.ports.clock import Clock
from torpor.ports.engine import Channel, Checkpoint, EngineCapabilities, InstanceShape, InstanceStatus

OPERATIONS = (
    "capabilities",
    "create",
    "start",
    "restore",
    "loaded",
    "checkpoint.filesystem",
    "checkpoint.memory",
    "freeze",
    "thaw",
    "destroy",
)
DEFAULT_CAPABILITIES = EngineCapabilities(
    engine="fake", version="1", build="fake-1", filesystem_part=True, freeze=True, cpu_flags=("aes", "avx2")
)
MAY_DIFFER = frozenset({"rootfs", "env", "memory_bytes", "cpus"})  # of two shapes, between a capture and its restore


class FakeEngine:
    """Implements ports.engine.Engine. ``programs``: by ``argv[0]``. ``latency_s``: by operation, see OPERATIONS."""

    def __init__(
        self,
        programs: Mapping[str, ProgramFactory],
        clock: Clock,
        *,
        host: FakeHost | None = None,
        capabilities: EngineCapabilities = DEFAULT_CAPABILITIES,
        latency_s: Mapping[str, float] | None = None,
    ) -> None:
        self.host = host or FakeHost()
        self._programs = programs
        self._clock = clock
        self._capabilities = capabilities
        self._latency_s = dict(latency_s or {})
        self._faults: dict[str, list[TorporError]] = {}

    def fail(self, operation: str, error: TorporError, *, times: int = 1) -> None:
        """Let the next ``times`` runs of ``operation`` raise ``error`` at the point where the real thing would."""
        if operation not in OPERATIONS:
            raise InvalidArgument(f"cannot fail {operation!r}: operations are {OPERATIONS}", field="operation")
        self._faults.setdefault(operation, []).extend([error] * times)

    async def capabilities(self) -> EngineCapabilities:
        """See the port."""
        await self._reach("capabilities")
        return self._capabilities

    async def create(self, instance: InstanceId, shape: InstanceShape, *, filesystem: Path | None = None) -> None:
        """See the port."""
        if not is_id(instance):
            raise InvalidArgument(f"cannot use {instance!r} as an instance id", field="instance")
        if instance in self.host.instances:
            raise Conflict(f"cannot create {instance}: the id is in use", reason="instance_exists")
        if filesystem is not None and not self._capabilities.filesystem_part:
            raise Unsupported(
                "cannot lay a filesystem part over the root: this engine has none", lacks="filesystem_part"
            )
        if shape.argv[0] not in self._programs:
            raise EngineError(f"cannot create {instance}: there is no program {shape.argv[0]}")
        await self._reach("create")
        program = self._programs[shape.argv[0]]()
        if filesystem is not None:
            program.filesystem.update(image.unpack_filesystem(filesystem.read_bytes()))
        self.host.instances[instance] = FakeInstance(shape, program)

    async def start(self, instance: InstanceId) -> None:
        """See the port."""
        found = self._startable(instance, "start")
        await self._reach("start")
        found.phase = InstanceStatus.RUNNING
        found.pump()

    async def restore(
        self, instance: InstanceId, directory: Path, *, requirements: Mapping[str, Any], background: bool = False
    ) -> None:
        """See the port."""
        del background  # everything is read at once
        found = self._startable(instance, "restore into")
        self._check(requirements, self._requirements(found.shape))
        try:
            data = (directory / image.MEMORY_FILE).read_bytes()
        except OSError as error:
            raise EngineError(f"cannot use the checkpoint in {directory}: {image.MEMORY_FILE} is missing") from error
        await self._reach("restore")
        dump, inbound, files = image.unpack_memory(data)
        found.program.filesystem.clear()
        found.program.filesystem.update(files)
        found.program.load(dump)
        found.inbound[:0] = inbound
        found.phase = InstanceStatus.RUNNING
        found.pump()

    async def loaded(self, instance: InstanceId) -> None:
        """See the port."""
        self._known(instance)
        await self._reach("loaded")

    async def checkpoint(self, instance: InstanceId, into: Path, *, memory: bool = True) -> Checkpoint:
        """See the port."""
        found = self._known(instance)
        if found.status is not InstanceStatus.RUNNING:
            raise Conflict(f"cannot checkpoint {instance}: it is {found.status}", reason=f"instance_{found.status}")
        if any(into.iterdir()):
            raise EngineError(f"cannot checkpoint into {into}: it is not empty")
        has_filesystem = self._capabilities.filesystem_part
        if not memory and not has_filesystem:
            raise Unsupported("cannot capture the filesystem alone: this engine has no part", lacks="filesystem_part")
        found.is_frozen = True
        program, timings_ms = found.program, {}
        parts: dict[str, tuple[str, bytes]] = {}
        if has_filesystem:
            parts["filesystem"] = (image.FILESYSTEM_FILE, image.pack_filesystem(program.filesystem))
        if memory:
            packed = image.pack_memory(program.dump(), bytes(found.inbound), program.filesystem)
            parts["memory"] = (image.MEMORY_FILE, packed)
        with contextlib.ExitStack() as undo:
            undo.callback(self._go_on, found, into)
            for name, (file, data) in parts.items():
                began_s = self._clock.monotonic_s()
                await self._reach(f"checkpoint.{name}")
                _write(into / file, data)
                timings_ms[name] = (self._clock.monotonic_s() - began_s) * 1000
            if found.phase is InstanceStatus.STOPPED:
                raise EngineError(f"cannot checkpoint {instance}: its sandbox died")
            undo.pop_all()
        return Checkpoint(
            directory=into,
            memory_files=(image.MEMORY_FILE,) if memory else (),
            filesystem_file=image.FILESYSTEM_FILE if has_filesystem else None,
            requirements=self._requirements(found.shape),
            timings_ms=timings_ms,
        )

    async def freeze(self, instance: InstanceId) -> None:
        """See the port."""
        found = self._known(instance)
        if not self._capabilities.freeze:
            raise Unsupported("cannot freeze: this engine has no freezer", lacks="freeze")
        await self._reach("freeze")
        found.is_frozen = True

    async def thaw(self, instance: InstanceId) -> None:
        """See the port."""
        found = self._known(instance)
        await self._reach("thaw")
        found.is_frozen = False
        found.pump()

    async def destroy(self, instance: InstanceId) -> None:
        """See the port."""
        await self._reach("destroy")
        found = self.host.instances.pop(instance, None)
        if found is not None:
            found.phase = InstanceStatus.STOPPED
            found.wake()

    async def inspect(self, instance: InstanceId) -> InstanceStatus:
        """See the port."""
        found = self.host.instances.get(instance)
        return found.status if found else InstanceStatus.ABSENT

    async def usage(self, instance: InstanceId) -> Mapping[str, float]:
        """See the port. A millisecond for each piece received; the memory is the dump."""
        found = self.host.instances.get(instance)
        if found is None:
            return {"cpu_s": 0.0, "memory_bytes": 0.0}
        return {"cpu_s": found.receive_count / 1000, "memory_bytes": float(found.memory_bytes)}

    async def instances(self) -> tuple[InstanceId, ...]:
        """See the port."""
        return tuple(sorted(self.host.instances))

    async def attach(self, instance: InstanceId) -> Channel:
        """See the port."""
        return FakeChannel(self._known(instance))

    async def _reach(self, operation: str) -> None:
        """Take the time that ``operation`` takes, then fail if it shall."""
        if latency_s := self._latency_s.get(operation, 0.0):
            await self._clock.sleep(latency_s)
        else:
            await asyncio.sleep(0)
        if faults := self._faults.get(operation):
            raise faults.pop(0)

    def _known(self, instance: InstanceId) -> FakeInstance:
        try:
            return self.host.instances[instance]
        except KeyError:
            raise NotFound(f"cannot find instance {instance}", instance=instance) from None

    def _startable(self, instance: InstanceId, verb: str) -> FakeInstance:
        found = self._known(instance)
        if found.status is InstanceStatus.STOPPED:
            raise EngineError(f"cannot {verb} {instance}: its sandbox died; destroy it")
        if found.status is not InstanceStatus.CREATED:
            raise Conflict(f"cannot {verb} {instance}: it is {found.status}", reason=f"instance_{found.status}")
        return found

    def _requirements(self, shape: InstanceShape) -> dict[str, Any]:
        spec = {of.name: getattr(shape, of.name) for of in fields(shape) if of.name not in MAY_DIFFER}
        return {
            "engine": self._capabilities.engine,
            "build": self._capabilities.build,
            "cpu_flags": list(self._capabilities.cpu_flags),
            "spec": {**spec, "argv": list(shape.argv), "shared_bytes": shape.shm_bytes},
        }

    def _check(self, required: Mapping[str, Any], present: Mapping[str, Any]) -> None:
        differs = [name for name in ("engine", "build", "spec") if required.get(name) != present[name]]
        if set(required.get("cpu_flags", ())) - set(present["cpu_flags"]):
            differs.append("cpu_flags")
        if differs:
            wanted = {name: {"required": required.get(name), "present": present[name]} for name in differs}
            raise Unsupported(f"cannot restore here: {', '.join(differs)} differ", differs=wanted)

    def _go_on(self, found: FakeInstance, into: Path) -> None:
        """Undo an attempt at a checkpoint."""
        for name in (image.MEMORY_FILE, image.FILESYSTEM_FILE):
            (into / name).unlink(missing_ok=True)
        found.is_frozen = False
        found.pump()


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StorageFull(f"cannot write {file}: no space left") from error
        raise EngineError(f"cannot write {file}: {error.strerror}") from error
