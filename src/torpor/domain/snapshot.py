"""Values of the snapshot library: what a snapshot is made of, and how it is named.

Nothing here knows bytes on disk (``store.format``) or how they got there (``store``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from torpor.domain.errors import InvalidArgument
from torpor.domain.ids import SnapshotId, TenantId

DIGEST_BYTES = 32
CHUNK_BYTES_MAX = 1024 * 1024
PACK_BYTES_MAX = 16 * 1024 * 1024
GRANULE_BYTES_MIN = 512
GRANULE_BYTES_MAX = 65536
PART_COUNT_MAX = 64
SEQUENCE_MAX = 99_999_999  # eight digits in an object key, so that key order is sequence order

_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def parse_key_part(text: str, *, field: str) -> str:
    """A tenant, subject, pack or part name: 1 to 128 of ``[A-Za-z0-9._-]``, not starting with a dot.

    Such a name is safe as one component of an object key and of a path. Raises: InvalidArgument naming ``field``.
    """
    if _KEY_PART.fullmatch(text) is None:
        raise InvalidArgument(
            f"cannot use {text!r} as {field}: use 1 to 128 letters, digits, '.', '_', '-', not starting with '.'",
            field=field,
        )
    return text


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """Names one snapshot for good: ``digest`` is the lower-case hex BLAKE3 of its manifest."""

    tenant: TenantId
    subject: str
    snapshot: SnapshotId
    sequence: int
    digest: str

    def __post_init__(self) -> None:
        for name in ("tenant", "subject", "snapshot"):
            parse_key_part(getattr(self, name), field=name)
        if not 0 <= self.sequence <= SEQUENCE_MAX:
            raise InvalidArgument(
                f"cannot use sequence {self.sequence}: it runs from 0 to {SEQUENCE_MAX}", field="sequence"
            )
        if _DIGEST.fullmatch(self.digest) is None:
            raise InvalidArgument(f"cannot use digest {self.digest!r}: it is 64 lower-case hex digits", field="digest")

    def to_json(self) -> dict[str, Any]:
        """A JSON object that ``from_json`` reads."""
        return {
            "tenant": self.tenant,
            "subject": self.subject,
            "snapshot": self.snapshot,
            "sequence": self.sequence,
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``; other keys are ignored. Raises: InvalidArgument."""
        try:
            tenant, subject, snapshot = value["tenant"], value["subject"], value["snapshot"]
            sequence, digest = value["sequence"], value["digest"]
        except (KeyError, TypeError) as error:
            raise InvalidArgument(f"cannot read a snapshot reference: {error} is missing", field="snapshot") from error
        if type(sequence) is not int or not all(isinstance(v, str) for v in (tenant, subject, snapshot, digest)):
            raise InvalidArgument("cannot read a snapshot reference: a field has the wrong type", field="snapshot")
        return cls(TenantId(tenant), subject, SnapshotId(snapshot), sequence, digest)


@dataclass(frozen=True, slots=True, order=True)
class Lender:
    """A subject whose packs another subject's manifest names: its parent's or its template's."""

    tenant: TenantId
    subject: str


@dataclass(frozen=True, slots=True)
class PackRef:
    """A pack and the subject that owns it."""

    tenant: TenantId
    subject: str
    pack: str

    @property
    def owner(self) -> Lender:
        """The subject under which the pack lies."""
        return Lender(self.tenant, self.subject)


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """One distinct chunk: how to find it, open it and know it. ``pack`` is an index into ``Manifest.packs``."""

    key: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    pack: int
    offset_bytes: int
    sealed_bytes: int
    plain_bytes: int


class Extent(NamedTuple):
    """Granules in a row of one chunk's plaintext. ``chunk_index``: into ``Manifest.chunks``."""

    chunk_index: int
    first_granule: int
    granule_count: int

    def size_bytes(self, chunk: ChunkRef, granule_bytes: int) -> int:
        """Bytes of ``chunk``, which the index names, that it covers: the chunk's last granule may be a short one."""
        return min(self.granule_count * granule_bytes, chunk.plain_bytes - self.first_granule * granule_bytes)


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a snapshot.

    ``runs``: (zero granules, data granules), alternating from the start of the file. ``extents``: what they cover,
    joined, is the data granules joined (only the last may be short).
    """

    name: str
    size_bytes: int
    granule_bytes: int
    runs: tuple[tuple[int, int], ...]
    extents: tuple[Extent, ...]

    @property
    def granule_count(self) -> int:
        """Granules of the file, a short last one included."""
        return -(-self.size_bytes // self.granule_bytes)

    @property
    def data_bytes(self) -> int:
        """Bytes of the file that are in chunks."""
        data = sum(run[1] for run in self.runs) * self.granule_bytes
        ends_in_data = bool(self.runs) and self.runs[-1][1] > 0
        return data - (self.granule_count * self.granule_bytes - self.size_bytes if ends_in_data else 0)


@dataclass(frozen=True, slots=True)
class ManifestHeader:
    """The part of a manifest that anyone may read; authenticated together with the body."""

    tenant: TenantId
    subject: str
    snapshot: SnapshotId
    sequence: int
    generation: int
    region: str
    wrapped_key: bytes = field(repr=False)
    lenders: tuple[Lender, ...]
    salt: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The root of one snapshot, opened and checked."""

    header: ManifestHeader
    parts: tuple[Part, ...]
    chunks: tuple[ChunkRef, ...] = field(repr=False)
    packs: tuple[PackRef, ...] = field(repr=False)
    parent: SnapshotRef | None
    template: SnapshotRef | None
    requirements: Mapping[str, Any]
    meta: Mapping[str, Any]
    cut_key: bytes = field(repr=False)

    @property
    def image_bytes(self) -> int:
        """Size of all parts together, zeros included."""
        return sum(part.size_bytes for part in self.parts)

    def part(self, name: str) -> Part:
        """The part of that name. Raises: InvalidArgument."""
        for part in self.parts:
            if part.name == name:
                return part
        names = ", ".join(part.name for part in self.parts)
        raise InvalidArgument(f"cannot read part {name!r}: the snapshot has {names or 'none'}", field="parts")
