"""The machine's own clock: the one place that reads it."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """``ports.clock.Clock`` on the operating system's clocks."""

    def wall_s(self) -> float:
        """Wall time, seconds since the epoch."""
        return time.time()  # noqa: TID251 - the adapter that everybody else is handed

    def monotonic_s(self) -> float:
        """Monotonic time in seconds."""
        return time.monotonic()

    async def sleep(self, duration_s: float) -> None:
        """Sleep on the event loop."""
        await asyncio.sleep(duration_s)
