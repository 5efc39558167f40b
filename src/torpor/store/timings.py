"""How long the phases of an operation took."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torpor.ports.clock import Clock


class Stopwatch:
    """Adds up phases by name, also from several threads at once: a phase may then exceed the time on the wall."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sums_s: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time under ``name``."""
        started_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self.add(name, self._clock.monotonic_s() - started_s)

    def add(self, name: str, took_s: float) -> None:
        """Count ``took_s`` under ``name``."""
        with self._lock:
            self._sums_s[name] = self._sums_s.get(name, 0.0) + took_s

    def timings_ms(self) -> dict[str, float]:
        """The sums so far, in milliseconds."""
        with self._lock:
            return {name: took_s * 1000 for name, took_s in self._sums_s.items()}
