"""Ports that fail: any adapter behind a fate, which delays, refuses, repeats, loses answers, and ends the server.

A dead server reaches nothing: each call of it raises CancelledError before it has an effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from torpor.domain.errors import EngineError, TorporError, Unavailable
from torpor.ports.engine import Channel
from torpor.testing.world.conditions import Faults
from torpor.testing.world.process import Process

Port = TypeVar("Port")
Result = TypeVar("Result")
Witnessing = Callable[[str, object], None]

# Where the contract lets a call that raised have had its effect.
_LOSES_ANSWERS = frozenset(
    {
        *("catalog.insert", "catalog.replace"),
        *("objects.put", "objects.put_if", "objects.delete", "keys.create", "keys.destroy"),
        *("engine.restore", "engine.freeze", "engine.thaw", "engine.destroy"),
    }
)
_REPEATABLE = frozenset(
    {"objects.put", "objects.delete", "objects.get", "keys.destroy", "engine.freeze", "engine.thaw", "engine.destroy"}
)
_NEVER_FAILS = frozenset({"engine.capabilities"})


class Weather:
    """What all servers of a world live under: the faults now, and which stores are out until when."""

    def __init__(self, random: Random, faults: Faults) -> None:
        self.random = random
        self.faults = faults
        self.out_until_s: dict[str, float] = {}


class Fate:
    """Of one server's calls. ``seen`` hears of every call that had its effect."""

    def __init__(self, weather: Weather, process: Process, seen: Witnessing) -> None:
        self._weather = weather
        self._process = process
        self._seen = seen

    async def meet(self, call: str, act: Callable[[], Awaitable[Result]], about: object = "") -> Result:
        """Carry out ``act`` as fate will have it. ``about``: what it is done to, for the story."""
        await self.reach(call)
        result = await act()
        self._seen(call, about)
        faults, draw = self._weather.faults, self._weather.random.random
        if call in _REPEATABLE and draw() < faults.repetition:
            await act()
        if draw() < faults.crash:
            self._process.kill()
        if not self._process.alive:
            raise asyncio.CancelledError
        if call in _LOSES_ANSWERS and draw() < faults.lost_answer:
            raise _error(call, "its answer was lost")
        return result

    async def reach(self, call: str) -> None:
        """Up to where the call has its effect."""
        process, weather = self._process, self._weather
        if not process.alive:
            raise asyncio.CancelledError
        faults, draw = weather.faults, weather.random.random
        if draw() < faults.delay:
            await asyncio.sleep(draw() * faults.delay_s_max)
            faults = weather.faults  # those of now: they may have ended meanwhile
        if draw() < faults.crash:
            process.kill()
        if not process.alive:
            raise asyncio.CancelledError
        if call in _NEVER_FAILS:
            return
        until_s = weather.out_until_s
        if until_s and until_s.get(call.partition(".")[0], 0.0) > asyncio.get_running_loop().time():
            raise _error(call, "it is out")
        if draw() < faults.failure:
            raise _error(call, "it failed")

    def happens(self, chance: float) -> bool:
        """Draw."""
        return self._weather.random.random() < chance

    def check_alive(self) -> None:
        """Raises: CancelledError in a dead server."""
        if not self._process.alive:
            raise asyncio.CancelledError

    def witnessed(self, call: str) -> None:
        """A call that fate has no part in had its effect."""
        self._seen(call, "")

    async def answer(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """What a guest sent, late, twice, or only what it sends next."""
        random = self._weather.random
        while True:
            self.check_alive()
            data = await read()
            self.check_alive()
            faults = self._weather.faults  # those of now: the wait may have been long
            if data and self.happens(faults.answer_loss):
                continue
            if data and self.happens(faults.answer_repetition):
                data += data
            if random.random() < faults.delay:
                await asyncio.sleep(random.random() * faults.delay_s_max)
            return data


def _error(call: str, why: str) -> TorporError:
    kind = EngineError if call.startswith("engine.") else Unavailable
    return kind(f"cannot {call}: {why}")


def behind(fate: Fate, port: str, target: Port) -> Port:
    """``target`` with every coroutine of it behind ``fate``."""
    return cast("Port", _Behind(fate, port, target))


class _Behind:
    def __init__(self, fate: Fate, port: str, target: object) -> None:
        self._fate = fate
        self._port = port
        self._target = target

    def __getattr__(self, name: str) -> object:
        method = getattr(self._target, name)
        if inspect.isasyncgenfunction(method):
            wrapped: object = self._stream(name, method)
        elif inspect.iscoroutinefunction(method):
            wrapped = self._call(name, method)
        else:
            wrapped = method
        self.__dict__[name] = wrapped
        return wrapped

    def _call(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        fate, call = self._fate, f"{self._port}.{name}"

        async def met(*given: object, **options: object) -> object:
            result = await fate.meet(call, lambda: method(*given, **options), given[0] if given else "")
            return _FatedChannel(fate, result) if call == "engine.attach" else result

        return met

    def _stream(self, name: str, method: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        fate, call = self._fate, f"{self._port}.{name}"

        async def met(*given: object, **options: object) -> AsyncIterator[Any]:
            await fate.reach(call)
            async for item in method(*given, **options):
                yield item
                fate.check_alive()

        return met


class _FatedChannel:
    """``ports.engine.Channel``. A pipe does not lose what is written into it; a dead reader loses what it had read."""

    def __init__(self, fate: Fate, channel: Channel) -> None:
        self._fate = fate
        self._channel = channel

    async def read(self, count_max: int) -> bytes:
        return await self._fate.answer(lambda: self._channel.read(count_max))

    async def write(self, data: bytes) -> None:
        self._fate.check_alive()
        await self._channel.write(data)
        self._fate.witnessed("channel.write")

    async def close(self) -> None:
        await self._channel.close()


def remove_folder(path: Path) -> None:
    """With its files. It holds no folders, for which `shutil.rmtree` would look as long as a snapshot is sealed."""
    for name in os.listdir(path):
        os.unlink(f"{path}/{name}")
    os.rmdir(path)


class FatedStaging:
    """``ports.staging.Staging`` under ``root``. What a dead server left is dropped when the next one opens."""

    def __init__(self, fate: Fate, root: Path) -> None:
        self._fate = fate
        self._root = root
        self._numbers = itertools.count()
        for left in root.iterdir():
            remove_folder(left)

    @contextlib.asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """See the port."""
        self._fate.check_alive()
        path = self._root / f"{next(self._numbers)}"
        path.mkdir()
        try:
            yield path
        finally:
            self._fate.check_alive()
            remove_folder(path)

    def take_blank(self, target: Path, size_bytes: int) -> bool:
        """See the port: there is none."""
        del target, size_bytes
        return False

    async def replenish(self, *, default_bytes: int = 0) -> None:
        """See the port."""
