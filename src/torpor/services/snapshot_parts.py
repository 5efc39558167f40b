"""What the services note in a snapshot's metadata, read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torpor.domain.session import SnapshotRecord
from torpor.domain.snapshot import Manifest, SnapshotRef


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


def record_of(ref: SnapshotRef, manifest: Manifest) -> SnapshotRecord:
    """What a session's record keeps of a snapshot found in the store. What it cost was known only to its writer."""
    return SnapshotRecord(
        ref=ref.to_json(),
        sequence=ref.sequence,
        instant_s=float(manifest.meta["instant_s"]),
        image_bytes=manifest.image_bytes,
        new_bytes=0,
        engine_build=memory_build(manifest),
    )
