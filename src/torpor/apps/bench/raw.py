"""The raw engine: plain ``runsc`` commands on the same content, with nothing of torpor's around them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor import GVisorEngine
from torpor.domain.errors import EngineError
from torpor.domain.ids import InstanceId, id_from_entropy
from torpor.ports.engine import InstanceShape
from torpor.ports.entropy import Entropy
from torpor.ports.guest import Guest, GuestDialer, Output


@dataclass(frozen=True, slots=True)
class RawParts:
    """What the raw measurements are made with; ``folder`` is in memory, like a capture's."""

    engine: GVisorEngine
    shape: InstanceShape
    dialer: GuestDialer
    entropy: Entropy
    folder: Path


BURST_TIMEOUT_S = 120.0


class Raw:
    """One parked sandbox with the given content, checkpointed and restored by plain commands."""

    def __init__(self, parts: RawParts, instance: InstanceId, image: Path) -> None:
        self._parts = parts
        self._instance = instance
        self._image = image
        self._clock = SystemClock()

    @property
    def pages_bytes(self) -> int:
        """Size of the memory image."""
        return (self._image / "pages.img").stat().st_size

    async def checkpoint_ms(self) -> float:
        """``runsc checkpoint --leave-running`` of a running sandbox, from call to end."""
        into = self._parts.folder / "again"
        into.mkdir()
        try:
            return await self._timed(self._parts.engine.runsc.checkpoint(self._instance, into))
        finally:
            await asyncio.to_thread(shutil.rmtree, into)

    async def restore_ms(self) -> float:
        """``runsc restore`` into a created sandbox, from call to end. Creation is not counted."""
        engine = self._parts.engine
        instance = InstanceId(id_from_entropy(self._parts.entropy.bytes(20)))
        await engine.create(instance, self._parts.shape)
        try:
            return await self._timed(await engine.restore_argv(instance, self._image))
        finally:
            await engine.destroy(instance)

    async def restores_ms(self, count: int) -> float:
        """Sandboxes created and restored from the same image, all at once, until the last is there."""
        engine = self._parts.engine
        instances = [InstanceId(id_from_entropy(self._parts.entropy.bytes(20))) for _ in range(count)]

        async def restored(instance: InstanceId) -> None:
            await engine.create(instance, self._parts.shape)
            await self._timed(await engine.restore_argv(instance, self._image))

        began_s = self._clock.monotonic_s()
        try:
            await asyncio.gather(*(restored(instance) for instance in instances))
            return (self._clock.monotonic_s() - began_s) * 1000
        finally:
            for instance in instances:
                await engine.destroy(instance)

    async def _timed(self, argv: tuple[str, ...]) -> float:
        began_s = self._clock.monotonic_s()
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        took_ms = (self._clock.monotonic_s() - began_s) * 1000
        if process.returncode != 0:
            raise EngineError(f"cannot measure the raw engine: {argv[-2:]} said {said.decode()[-300:]}")
        return took_ms


@contextlib.asynccontextmanager
async def raw_sandbox(parts: RawParts, content: str) -> AsyncIterator[Raw]:
    """A sandbox started cold whose default context ran ``content``; and one checkpoint of it to restore from."""
    image = parts.folder / id_from_entropy(parts.entropy.bytes(20))
    async with running_sandbox(parts, content) as running:
        try:
            await running.guest.quiesce()
            image.mkdir()
            await parts.engine.checkpoint(running.instance, image)
            await parts.engine.thaw(running.instance)
            yield Raw(parts, running.instance, image)
        finally:
            await asyncio.to_thread(shutil.rmtree, image, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Running:
    """A sandbox that runs, and its agent."""

    parts: RawParts
    instance: InstanceId
    guest: Guest

    async def burst_ms(self, source: str) -> float:
        """Until ``source`` gave its first output over the channel; nothing is frozen.

        A sandbox that is frozen while it runs may die of it (docs/design/006): torpor freezes only captured ones.
        """
        clock, first_ms = SystemClock(), list[float]()
        began_s = clock.monotonic_s()

        async def note(_output: Output) -> None:
            first_ms.append((clock.monotonic_s() - began_s) * 1000)

        await self.guest.code(source, timeout_s=BURST_TIMEOUT_S, on_output=note)
        return first_ms[0]


@contextlib.asynccontextmanager
async def running_sandbox(parts: RawParts, content: str) -> AsyncIterator[Running]:
    """A sandbox started cold whose default context ran ``content``."""
    instance = InstanceId(id_from_entropy(parts.entropy.bytes(20)))
    await parts.engine.create(instance, parts.shape)
    try:
        guest = parts.dialer.connect(instance, await parts.engine.attach(instance))
        try:
            await parts.engine.start(instance)
            await guest.hello()
            made = await guest.code(content, timeout_s=BURST_TIMEOUT_S)
            if made.error is not None:
                raise EngineError(f"cannot measure the raw engine: its content failed: {made.error.traceback}")
            yield Running(parts, instance, guest)
        finally:
            await guest.close()
    finally:
        await parts.engine.destroy(instance)


async def content_of(parts: RawParts, size_mib: int) -> str:
    """Code that makes the memory of a bare sandbox of the template about ``size_mib`` large.

    Of random bytes: nothing to gain for compression, so this is the hard case.
    """
    async with raw_sandbox(parts, _ballast(0)) as bare:
        return _ballast(max(0, (size_mib << 20) - bare.pages_bytes))


def _ballast(size_bytes: int) -> str:
    return f"import os; ballast = os.urandom({size_bytes})"
