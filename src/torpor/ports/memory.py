"""How much memory this node has, and how much of it is free."""

from __future__ import annotations

from typing import Protocol


class Memory(Protocol):
    """The node's memory, as far as this process and its sandboxes may use it. Both answer at once, from the kernel."""

    def total_bytes(self) -> int:
        """All there is: of the machine, or of the limit set on this process if that is lower. Does not change."""
        ...

    def available_bytes(self) -> int:
        """What could be used now without swapping, caches that can be given up included. Never negative."""
        ...
