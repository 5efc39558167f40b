"""What the services note in a snapshot's metadata about its two parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torpor.domain.snapshot import Manifest


def memory_files(meta: Mapping[str, Any]) -> frozenset[str]:
    """The parts that a memory restore reads, as the capture noted them."""
    return frozenset(str(name) for name in meta["memory_files"])


def filesystem_file(meta: Mapping[str, Any]) -> str | None:
    """The part that a filesystem restore reads; None if the snapshot has none."""
    name = meta.get("filesystem_file")
    return None if name is None else str(name)


def memory_build(manifest: Manifest) -> str:
    """The engine build that alone restores its memory part; empty if it has none."""
    return str(manifest.requirements.get("build", "")) if memory_files(manifest.meta) else ""
