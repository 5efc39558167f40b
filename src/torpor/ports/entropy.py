"""Randomness, handed in."""

from __future__ import annotations

from typing import Protocol


class Entropy(Protocol):
    """A source of bytes fit for keys in production, reproducible from a seed in a simulation."""

    def bytes(self, count: int) -> bytes:
        """``count`` unpredictable bytes. May be called from several threads."""
        ...
