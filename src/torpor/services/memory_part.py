"""What the services note in a snapshot's metadata about its memory part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def memory_files(meta: Mapping[str, Any]) -> frozenset[str]:
    """The parts that a memory restore reads, as the capture noted them."""
    return frozenset(str(name) for name in meta["memory_files"])
