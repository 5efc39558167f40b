"""A clock that a test moves: nobody sleeps."""

from __future__ import annotations

import asyncio
import heapq
import itertools

SETTLE_ROUNDS = 50


class VirtualClock:
    """``ports.clock.Clock`` whose time passes only by ``advance``, or by itself when nothing else happens.

    ``autojump_after_s``: after so many *real* seconds in which no sleep begins or ends, jump to the end of the next
    sleep. None: never. For one event loop at a time.
    """

    def __init__(self, *, wall_s: float = 1_700_000_000.0, autojump_after_s: float | None = None) -> None:
        self._monotonic_s = 0.0
        self._wall_offset_s = wall_s
        self._autojump_after_s = autojump_after_s
        self._autojump: asyncio.TimerHandle | None = None
        self._numbers = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def wall_s(self) -> float:
        """Wall time, seconds since the epoch."""
        return self._monotonic_s + self._wall_offset_s

    def monotonic_s(self) -> float:
        """Seconds that have passed since the clock was made."""
        return self._monotonic_s

    async def sleep(self, duration_s: float) -> None:
        """Return once ``duration_s`` virtual seconds have passed; others get their turn even if it is 0."""
        if duration_s <= 0:
            await asyncio.sleep(0)
            return
        awakening = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic_s + duration_s, next(self._numbers), awakening))
        self._arm()
        await awakening

    async def advance(self, duration_s: float) -> None:
        """Let time pass. Sleepers wake in order, each at its own instant, and do what they do before the next wakes.

        What they wait for outside the event loop (threads, processes, sockets) is not waited for.
        """
        assert duration_s >= 0, "time does not go back; for wall time see jump_wall"
        until_s = self._monotonic_s + duration_s
        await _settle()
        while self._next_end_s() <= until_s:
            self._wake_next()
            await _settle()
        self._monotonic_s = until_s

    def jump_wall(self, by_s: float) -> None:
        """Set the wall clock forward or back, as an operator or a suspended host does. No sleeper notices."""
        self._wall_offset_s += by_s

    @property
    def sleepers_count(self) -> int:
        """How many are asleep, so that a test can wait until somebody is."""
        return sum(not awakening.done() for _, _, awakening in self._sleepers)

    def _next_end_s(self) -> float:
        while self._sleepers and self._sleepers[0][2].done():  # cancelled
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else float("inf")

    def _wake_next(self) -> None:
        end_s, _, awakening = heapq.heappop(self._sleepers)
        self._monotonic_s = max(self._monotonic_s, end_s)
        awakening.set_result(None)

    def _arm(self) -> None:
        if self._autojump_after_s is None:
            return
        if self._autojump is not None:
            self._autojump.cancel()
        self._autojump = asyncio.get_running_loop().call_later(self._autojump_after_s, self._jump)

    def _jump(self) -> None:
        if self._next_end_s() < float("inf"):
            self._wake_next()
            self._arm()


async def _settle() -> None:
    """Give everybody who can go on the time to do so."""
    for _ in range(SETTLE_ROUNDS):
        await asyncio.sleep(0)
