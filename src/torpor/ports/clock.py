"""Time, handed in."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two clocks. Wall time crosses machines and pauses; monotonic time measures durations on this one."""

    def wall_s(self) -> float:
        """Seconds since 1970-01-01T00:00:00Z; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary instant; never goes back."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Return after ``duration_s`` seconds of monotonic time."""
        ...
