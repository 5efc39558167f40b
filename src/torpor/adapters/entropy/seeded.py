"""Reproducible bytes for simulations and golden files. Never for keys of real data."""

from __future__ import annotations

import hashlib
import threading


class SeededEntropy:
    """SHAKE-256 of the seed and a counter: equal seeds give equal bytes in the order of calls."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._call_count = 0
        self._lock = threading.Lock()

    def bytes(self, count: int) -> bytes:
        """Bytes of the next call."""
        with self._lock:
            self._call_count += 1
            material = f"torpor {self._seed} {self._call_count}".encode()
        return hashlib.shake_256(material).digest(count)
