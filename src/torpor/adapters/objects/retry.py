"""Repeats what may be repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

from torpor.adapters.objects.forwarding import Answer, Call, ForwardingObjects, Operation
from torpor.domain.errors import Unavailable
from torpor.ports.clock import Clock
from torpor.ports.entropy import Entropy
from torpor.ports.objects import ObjectInfo, ObjectStore


@dataclass(frozen=True, slots=True)
class Patience:
    """How often, and how long between: doubling from ``first_s``, never above ``longest_s``, of that half to all.

    After ``total_s`` no further attempt begins, so that attempts which each run into a timeout do not add up.
    """

    attempts: int = 6
    first_s: float = 0.1
    longest_s: float = 5.0
    total_s: float = 60.0


class RetryObjects(ForwardingObjects):
    """Calls again after Unavailable, unless that says that it will take longer than our patience.

    Never ``put_if``: an answer may have been lost, and only the caller can tell its own write from another's.
    """

    def __init__(self, inner: ObjectStore, clock: Clock, entropy: Entropy, *, patience: Patience | None = None) -> None:
        super().__init__(inner)
        self._clock = clock
        self._entropy = entropy
        self._patience = patience or Patience()

    async def _around(self, call: Call, perform: Callable[[], Awaitable[Answer]]) -> Answer:
        if call.operation is Operation.PUT_IF:
            return await perform()
        delays_s = self._delays_s()
        while True:
            try:
                return await perform()
            except Unavailable as error:
                await self._wait(error, delays_s)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """A listing that broke off begins anew and leaves out what was told already: keys come in order."""
        last, delays_s = "", self._delays_s()
        while True:
            try:
                async for info in self._inner.list(prefix):
                    if info.key > last:
                        last, delays_s = info.key, self._delays_s()
                        yield info
            except Unavailable as error:
                await self._wait(error, delays_s)
            else:
                return

    async def _wait(self, error: Unavailable, delays_s: Iterator[float]) -> None:
        """Until the next attempt. Raises ``error`` if there is to be none."""
        takes_longer = float(error.details.get("retry_after_s", 0.0)) > self._patience.longest_s
        delay_s = None if takes_longer else next(delays_s, None)
        if delay_s is None:
            raise error
        await self._clock.sleep(delay_s)

    def _delays_s(self) -> Iterator[float]:
        """One fewer than there are attempts, and none once the time is up."""
        return self._delays_until_s(self._clock.monotonic_s() + self._patience.total_s)

    def _delays_until_s(self, until_s: float) -> Iterator[float]:
        for number in range(self._patience.attempts - 1):
            most_s = min(self._patience.longest_s, self._patience.first_s * 2**number)
            if self._clock.monotonic_s() >= until_s:
                return
            share = int.from_bytes(self._entropy.bytes(4), "big") / 2**32
            yield most_s * (0.5 + share / 2)
