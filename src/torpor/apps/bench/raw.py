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
from torpor.ports.guest import GuestDialer


@dataclass(frozen=True, slots=True)
class RawParts:
    """What the raw measurements are made with; ``folder`` is in memory, like a capture's."""

    engine: GVisorEngine
    shape: InstanceShape
    dialer: GuestDialer
    entropy: Entropy
    folder: Path


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
            return await self._timed(engine.restore_argv(instance, self._image))
        finally:
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
    instance = InstanceId(id_from_entropy(parts.entropy.bytes(20)))
    image = parts.folder / "image"
    await parts.engine.create(instance, parts.shape)
    try:
        guest = parts.dialer.connect(instance, await parts.engine.attach(instance))
        await parts.engine.start(instance)
        await guest.hello()
        made = await guest.code(content, timeout_s=120)
        if made.error is not None:
            raise EngineError(f"cannot measure the raw engine: its content failed: {made.error.traceback}")
        await guest.quiesce()
        image.mkdir()
        raw = Raw(parts, instance, image)
        await parts.engine.checkpoint(instance, image)
        await parts.engine.thaw(instance)
        yield raw
        await guest.close()
    finally:
        await parts.engine.destroy(instance)
        await asyncio.to_thread(shutil.rmtree, image, ignore_errors=True)
