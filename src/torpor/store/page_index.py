"""Which pages of a new chunk a resident image holds already. Found by a weak hash, believed only when compared.

Invariants: a page is named only after all its bytes were found equal, so that hashes need no secret and no strength;
the same chunk is split the same way by the same index. Source: docs/design/007-pages-of-the-template.md.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torpor.domain.snapshot import Extent, Manifest, Part

PAGE_BYTES_MIN = 4096  # an extent costs 12 bytes: not worth it for a tar's blocks
WINDOW_BYTES = 4 * 1024 * 1024
SAMPLED_WORDS = 32
SHIFTS_MAX = 4  # ways in which a chunk's pages are taken to have moved as one
SHARE_MIN = 0.25  # with fewer pages found, the chunk stays whole

Words = NDArray[np.uint64]
Indexes = NDArray[np.int64]

_WEIGHTS: Words = (np.arange(1, SAMPLED_WORDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)


class PageIndex:
    """The data granules of one part of a resident: their hashes, and where they lie in its file and its chunks.

    About 40 bytes of memory a granule. Immutable: any number of threads may look.
    """

    def __init__(self, part: Part, file: int) -> None:
        assert self.may_index(part)
        self.granule_bytes = part.granule_bytes
        whole_count = part.data_bytes // part.granule_bytes  # a short last granule is nobody's page
        self.file_granules = _spread([(zero, data) for zero, data in part.runs], whole_count)
        extents = np.array(part.extents, dtype=np.int64).reshape(-1, 3)
        counts = extents[:, 2]
        self.chunk_indexes: Indexes = np.repeat(extents[:, 0], counts)[:whole_count]
        begins = np.cumsum(counts) - counts
        self.chunk_granules: Indexes = (np.arange(counts.sum()) - np.repeat(begins - extents[:, 1], counts))[
            :whole_count
        ]
        hashes = _file_hashes(file, part)[self.file_granules]
        self.by_hash: Indexes = np.argsort(hashes, kind="stable")
        self.sorted_hashes: Words = hashes[self.by_hash]

    @staticmethod
    def may_index(part: Part) -> bool:
        """Whether the part is made of pages and has a whole one."""
        return part.granule_bytes >= PAGE_BYTES_MIN and part.data_bytes >= part.granule_bytes

    def guesses(self, pages: Words) -> Indexes:
        """For each page a granule with the same weak hash, or -1."""
        hashes = _hashes(pages)
        at = np.minimum(np.searchsorted(self.sorted_hashes, hashes), len(self.sorted_hashes) - 1)
        return np.where(self.sorted_hashes[at] == hashes, self.by_hash[at], -1)


@dataclass(frozen=True, slots=True)
class Split:
    """A chunk as pages of known chunks and a residue of its own.

    ``runs``: in order, (digest of the chunk they are of, extent with that manifest's index) or, for the residue's
    next pages, (None, extent with index -1).
    """

    runs: tuple[tuple[bytes | None, Extent], ...]
    residue: bytes


class HeldPages:
    """A resident part's pages, open to be compared with. On any thread."""

    def __init__(self, index: PageIndex, manifest: Manifest, file: int) -> None:
        self._index = index
        self._manifest = manifest
        self._file = file

    def split(self, plaintext: bytes | memoryview) -> Split | None:
        """The chunk by pages; None if too few of them are held."""
        granule_bytes = self._index.granule_bytes
        if len(plaintext) % granule_bytes:
            return None
        pages: Words = np.frombuffer(plaintext, dtype="<u8").reshape(-1, granule_bytes // 8)
        found = self._found(pages)
        is_held = found >= 0
        if np.count_nonzero(is_held) < len(pages) * SHARE_MIN:
            return None
        return Split(self._runs(found, is_held), pages[~is_held].tobytes())

    def _found(self, pages: Words) -> Indexes:
        """For each page an equal granule of the index, or -1. Pages that moved together are looked for together."""
        guesses = self._index.guesses(pages)
        found = np.full(len(pages), -1, dtype=np.int64)
        positions = np.arange(len(pages))
        hits = guesses >= 0
        if np.count_nonzero(hits) < len(pages) * SHARE_MIN / 2:  # most are found by their own hash, if at all
            return found
        shifts, counts = np.unique((guesses - positions)[hits], return_counts=True)
        for shift in shifts[np.argsort(-counts, kind="stable")][:SHIFTS_MAX]:
            places = positions + shift
            self._verify(pages, found, places, (found < 0) & (places >= 0) & (places < len(self._index.file_granules)))
        self._verify(pages, found, guesses, (found < 0) & hits)
        return found

    def _verify(self, pages: Words, found: Indexes, places: Indexes, asked: NDArray[np.bool_]) -> None:
        """Note in ``found`` the asked places that hold exactly the page."""
        positions = np.flatnonzero(asked)
        if not len(positions):
            return
        asked_places = places[positions]
        equal = (self._read(asked_places) == pages[positions]).all(axis=1)
        found[positions[equal]] = asked_places[equal]

    def _read(self, places: Indexes) -> Words:
        """The granules at these places, neighbours by one call. Not mapped: what is looked at stays out of our RSS."""
        granule_bytes = self._index.granule_bytes
        pages: Words = np.empty((len(places), granule_bytes // 8), dtype="<u8")
        buffer = memoryview(pages.data).cast("B")
        file_granules = self._index.file_granules[places]
        breaks = (np.flatnonzero(np.diff(file_granules) != 1) + 1).tolist()
        for start, end in itertools.pairwise([0, *breaks, len(places)]):
            into = buffer[start * granule_bytes : end * granule_bytes]
            done = os.preadv(self._file, [into], int(file_granules[start]) * granule_bytes)
            assert done == len(into), "a resident's file ends early"
        return pages

    def _runs(self, found: Indexes, is_held: NDArray[np.bool_]) -> tuple[tuple[bytes | None, Extent], ...]:
        chunks = np.where(is_held, self._index.chunk_indexes[found], -1)
        granules = np.where(is_held, self._index.chunk_granules[found], np.cumsum(~is_held) - 1)
        edges = (np.flatnonzero((np.diff(chunks) != 0) | (np.diff(granules) != 1)) + 1).tolist()
        runs: list[tuple[bytes | None, Extent]] = []
        for start, end in itertools.pairwise([0, *edges, len(found)]):
            chunk_index = int(chunks[start])
            digest = None if chunk_index < 0 else self._manifest.chunks[chunk_index].digest
            runs.append((digest, Extent(chunk_index, int(granules[start]), end - start)))
        return tuple(runs)


def _spread(runs: list[tuple[int, int]], whole_count: int) -> Indexes:
    """The file granule of each data granule."""
    zeros, counts = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    return (np.arange(counts.sum()) + np.repeat(np.cumsum(zeros), counts))[:whole_count]


def _file_hashes(file: int, part: Part) -> Words:
    """The weak hash of every whole granule of the file."""
    window_bytes = max(1, WINDOW_BYTES // part.granule_bytes) * part.granule_bytes
    hashes: list[Words] = []
    for offset_bytes in range(0, part.size_bytes, window_bytes):
        data = os.pread(file, window_bytes, offset_bytes)
        whole = memoryview(data)[: len(data) // part.granule_bytes * part.granule_bytes]
        hashes.append(_hashes(np.frombuffer(whole, dtype="<u8").reshape(-1, part.granule_bytes // 8)))
    return np.concatenate(hashes)


def _hashes(pages: Words) -> Words:
    """Of some words of each page: enough to find, never to believe."""
    sampled = pages[:, :: pages.shape[1] // SAMPLED_WORDS]
    hashes: Words = (sampled * _WEIGHTS).sum(axis=1, dtype=np.uint64)
    return hashes
