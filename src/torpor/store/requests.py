"""What callers ask of the store, and what it answers. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from torpor.domain.errors import InvalidArgument
from torpor.domain.ids import SnapshotId, TenantId
from torpor.domain.snapshot import PART_COUNT_MAX, SEQUENCE_MAX, Manifest, SnapshotRef, parse_key_part
from torpor.store.format.manifest import encode_json
from torpor.store.resident import Resident


@dataclass(frozen=True, slots=True)
class PartSource:
    """A regular file to store as part ``name``. ``granule_bytes``: 4096 for memory images, 512 for tar files."""

    name: str
    path: Path
    granule_bytes: int = 4096


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """One snapshot to store.

    ``wrapped_key``: the subject's data key as ``KeyStore.create`` returned it. ``parent``: an earlier snapshot of the
    same tenant; ``template``: the snapshot that the subject was cloned from, of any tenant that lent it. Chunks that
    either names are not stored again. ``requirements`` and ``meta``: JSON objects, sealed. ``resident``: the template
    (or parent) in memory; of chunks that changed, the pages that it holds are not stored again either.
    """

    tenant: TenantId
    subject: str
    snapshot: SnapshotId
    sequence: int
    wrapped_key: bytes = field(repr=False)
    parts: tuple[PartSource, ...]
    parent: SnapshotRef | None
    template: SnapshotRef | None
    requirements: Mapping[str, Any]
    meta: Mapping[str, Any]
    generation: int = 0
    region: str = ""
    resident: Resident | None = field(default=None, repr=False)

    def validate(self) -> None:
        """Raises: InvalidArgument naming the field. Done before anything is read or written."""
        for name in ("tenant", "subject", "snapshot"):
            parse_key_part(getattr(self, name), field=name)
        if self.region:
            parse_key_part(self.region, field="region")
        if not 0 <= self.sequence <= SEQUENCE_MAX:
            raise InvalidArgument(f"cannot store sequence {self.sequence}: use 0 to {SEQUENCE_MAX}", field="sequence")
        names = [parse_key_part(part.name, field="parts") for part in self.parts]
        if not 1 <= len(names) <= PART_COUNT_MAX or len(set(names)) != len(names):
            raise InvalidArgument(
                f"cannot store parts {names}: give 1 to {PART_COUNT_MAX}, each with a name of its own", field="parts"
            )
        if self.parent and self.parent.tenant != self.tenant:
            raise InvalidArgument(
                f"cannot use a parent of tenant {self.parent.tenant}: chunks are shared inside one tenant and with "
                "templates only",
                field="parent",
            )
        if self.parent and self.parent.subject == self.subject and self.parent.sequence >= self.sequence:
            raise InvalidArgument(
                f"cannot store sequence {self.sequence} on parent {self.parent.sequence}: it must be later",
                field="sequence",
            )
        encode_json({"requirements": dict(self.requirements), "meta": dict(self.meta)})


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A durable snapshot. ``new_bytes``: all that was written to the store for it, manifest and pointer included.

    ``timings_ms``: ``cut_hash`` and ``seal`` are thread time (they run side by side), ``durable`` is from the last
    sealed chunk to the pointer, ``total`` is all of it on the wall. Empty for a snapshot that was stored before.
    """

    ref: SnapshotRef
    image_bytes: int
    new_bytes: int
    chunk_count: int
    new_chunk_count: int
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What makes a read quicker. ``resident``: a snapshot in memory; chunks that both have are copied from there.

    ``manifest``: what ``open`` of the same reference returned, so that it is not opened again.

    ``blank``: parts whose files exist in the target folder and hold nothing but zeros; they are filled in place.
    """

    resident: Resident | None = None
    blank: frozenset[str] = frozenset()
    manifest: Manifest | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ReadReport:
    """Files that were written. ``image_bytes``: their sizes; ``bytes_read``: what came from the object store.

    ``resident_chunk_count``: how many of the chunks were copied from memory instead.
    ``timings_ms``: ``manifest`` and ``total`` on the wall, ``fetch`` summed over requests, ``open`` and ``copy`` over
    threads.
    """

    files: Mapping[str, Path]
    image_bytes: int
    bytes_read: int
    chunk_count: int
    resident_chunk_count: int
    timings_ms: Mapping[str, float]


class ProblemKind(StrEnum):
    """What is wrong with an object. Each means data loss but ``MISSING_KEY``, which a backup of the keys may cure."""

    CORRUPT_HEAD = "corrupt_head"
    MISSING_MANIFEST = "missing_manifest"
    CORRUPT_MANIFEST = "corrupt_manifest"
    MISSING_KEY = "missing_key"
    MISSING_PACK = "missing_pack"
    CORRUPT_PACK = "corrupt_pack"
    CORRUPT_CHUNK = "corrupt_chunk"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One finding of ``check``, about the object ``key``."""

    kind: ProblemKind
    key: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What ``check`` found. ``clean``: everything that a head or a manifest names is there and authentic.

    ``unreferenced``: objects nothing names: of interrupted or superseded writes, and strangers; harmless.
    ``shredded``: manifests whose key was destroyed.
    """

    problems: tuple[Problem, ...]
    unreferenced: tuple[str, ...]
    shredded: tuple[str, ...]
    snapshot_count: int
    chunk_count: int
    bytes_read: int

    @property
    def clean(self) -> bool:
        """No problems."""
        return not self.problems
