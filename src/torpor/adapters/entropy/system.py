"""The kernel's generator: the only one fit for keys."""

from __future__ import annotations

import os


class SystemEntropy:
    """``getrandom`` by way of os.urandom."""

    def bytes(self, count: int) -> bytes:
        """Blocks only before the kernel's generator was first seeded."""
        return os.urandom(count)
