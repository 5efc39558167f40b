"""A manifest in the making: which chunks are known, which are new, where the new ones went. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from torpor.domain.snapshot import ChunkRef, Extent, Lender, Manifest, PackRef, Part
from torpor.ports.entropy import Entropy
from torpor.store.format.chunker import Piece
from torpor.store.format.envelope import KEY_BYTES
from torpor.store.page_index import Split


@dataclass(frozen=True, slots=True)
class HashedChunk:
    """A piece of a part and the BLAKE3 digest of it.

    ``split``: the same piece by pages of known chunks; then the two others are of the split's residue, if it has one.
    """

    digest: bytes = field(repr=False)
    plaintext: Piece = field(repr=False)
    split: Split | None = None


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A chunk that no manifest of the lineage knows, its place in the draft, and its one-time key."""

    index: int
    key: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    plaintext: Piece = field(repr=False)


class Draft:
    """Grows part by part. Plaintext digests are compared with the given manifests' only, and only in memory."""

    def __init__(self, lineage: Iterable[Manifest], entropy: Entropy) -> None:
        self._entropy = entropy
        self._known: dict[bytes, tuple[ChunkRef, PackRef]] = {}
        for manifest in lineage:
            for chunk in manifest.chunks:
                self._known.setdefault(chunk.digest, (chunk, manifest.packs[chunk.pack]))
        self._indexes: dict[bytes, int] = {}
        self._chunks: list[ChunkRef | None] = []
        self._packs: dict[PackRef, int] = {}
        self._parts: list[Part] = []
        self.new_chunk_count = 0

    @property
    def chunk_count(self) -> int:
        """Distinct chunks so far."""
        return len(self._chunks)

    def knows(self, digest: bytes) -> bool:
        """Whether the lineage has the chunk. On any thread."""
        return digest in self._known

    def place(self, batch: Sequence[HashedChunk], *, granule_bytes: int, into: list[Extent]) -> list[NewChunk]:
        """Append each chunk's extents to ``into``; those that have to be sealed, with fresh keys."""
        fresh: list[NewChunk] = []
        for chunk in batch:
            own = self._index_of(chunk, fresh) if len(chunk.plaintext) else -1
            if chunk.split is None:
                _append(into, Extent(own, 0, -(-len(chunk.plaintext) // granule_bytes)))
                continue
            for digest, extent in chunk.split.runs:
                index = own if digest is None else self._index_of_known(digest)
                _append(into, extent._replace(chunk_index=index))
        self.new_chunk_count += len(fresh)
        return fresh

    def _index_of(self, chunk: HashedChunk, fresh: list[NewChunk]) -> int:
        index = self._indexes.get(chunk.digest)
        if index is not None:
            return index
        if chunk.digest in self._known:
            return self._index_of_known(chunk.digest)
        index = self._indexes[chunk.digest] = len(self._chunks)
        self._chunks.append(None)
        fresh.append(NewChunk(index, self._entropy.bytes(KEY_BYTES), chunk.digest, chunk.plaintext))
        return index

    def _index_of_known(self, digest: bytes) -> int:
        index = self._indexes.get(digest)
        if index is None:
            index = self._indexes[digest] = len(self._chunks)
            self._chunks.append(self._borrowed(*self._known[digest]))
        return index

    def settle(self, chunk: NewChunk, *, pack: PackRef, offset_bytes: int, sealed_bytes: int) -> None:
        """Note where a new chunk lies."""
        assert self._chunks[chunk.index] is None
        self._chunks[chunk.index] = ChunkRef(
            key=chunk.key,
            digest=chunk.digest,
            pack=self._pack_index(pack),
            offset_bytes=offset_bytes,
            sealed_bytes=sealed_bytes,
            plain_bytes=len(chunk.plaintext),
        )

    def add_part(self, part: Part) -> None:
        """Note a part whose chunks were placed."""
        self._parts.append(part)

    @property
    def parts(self) -> tuple[Part, ...]:
        """In the order they were added."""
        return tuple(self._parts)

    @property
    def packs(self) -> tuple[PackRef, ...]:
        """Packs that the chunks lie in."""
        return tuple(self._packs)

    @property
    def chunks(self) -> tuple[ChunkRef, ...]:
        """All chunks; every new one must have been settled."""
        settled = tuple(chunk for chunk in self._chunks if chunk is not None)
        assert len(settled) == len(self._chunks)
        return settled

    def lenders(self, *, besides: Lender) -> tuple[Lender, ...]:
        """The owners of the packs, sorted."""
        return tuple(sorted({pack.owner for pack in self._packs} - {besides}))

    def _borrowed(self, chunk: ChunkRef, pack: PackRef) -> ChunkRef:
        return replace(chunk, pack=self._pack_index(pack))

    def _pack_index(self, pack: PackRef) -> int:
        return self._packs.setdefault(pack, len(self._packs))


def _append(extents: list[Extent], extent: Extent) -> None:
    """Add at the end, joined with the last one where it goes on."""
    if extents:
        index, first, count = extents[-1]
        if extent.chunk_index == index and extent.first_granule == first + count:
            extents[-1] = Extent(index, first, count + extent.granule_count)
            return
    extents.append(extent)
