"""Instances that are to be destroyed, known until they are gone: one that resists is neither lost nor given to anybody.

What holds instances ahead of need (``warm``, ``clones``) puts here what it lets go of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import structlog

from torpor.domain.errors import TorporError
from torpor.domain.ids import InstanceId
from torpor.services.live import Live
from torpor.services.patience import destroy_surely

log = structlog.get_logger()


class Held(Protocol):
    """An instance that somebody holds."""

    @property
    def live(self) -> Live:
        """The instance, with its engine and guest."""

    @property
    def size_bytes(self) -> int:
        """Of its memory."""


One = TypeVar("One", bound=Held)


def first_for(excess_bytes: int, held: Iterable[One]) -> tuple[One, ...]:
    """The first of ``held``, as many as hold ``excess_bytes`` together, or all. Pure."""
    chosen: list[One] = []
    for one in held:
        if excess_bytes <= 0:
            break
        chosen.append(one)
        excess_bytes -= one.size_bytes
    return tuple(chosen)


class Doomed(Generic[One]):
    """What waits to be destroyed, whoever asks for it and however often. Iterable at any time."""

    def __init__(self, kind: str) -> None:
        """``kind``: what the log calls one of these."""
        self._kind = kind
        self._ones: dict[InstanceId, One] = {}
        self._calls: dict[InstanceId, asyncio.Lock] = {}

    def __iter__(self) -> Iterator[One]:
        return iter(tuple(self._ones.values()))

    def add(self, one: One) -> None:
        """Nobody may be given it any more. Idempotent."""
        self._ones[one.live.instance] = one
        self._calls.setdefault(one.live.instance, asyncio.Lock())

    async def destroy(self, some: Iterable[One]) -> int:
        """Destroy some of them at once; the bytes freed. What cannot be destroyed stays here, to be asked for again."""
        return sum(await asyncio.gather(*(self._destroy_one(one.live, one.size_bytes) for one in some)))

    async def _destroy_one(self, live: Live, size_bytes: int) -> int:
        if live.instance not in self._ones:
            return 0
        async with self._calls[live.instance]:  # an engine takes one call at a time for one instance
            if live.instance not in self._ones:
                return 0  # another call was first
            try:
                await live.guest.close()
                await destroy_surely(live.engine, live.instance)
            except TorporError as error:
                said = f"{self._kind} not destroyed"
                log.error(said, instance=live.instance, code=error.code, error=error.message)
                return 0
            del self._ones[live.instance], self._calls[live.instance]
            return size_bytes
