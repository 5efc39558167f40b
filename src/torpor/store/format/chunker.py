"""Where a part is cut, as a function of its content and a secret key. No I/O, no randomness.

Invariants: zero granules reach no chunk; every chunk but a part's last holds between ``bytes_min`` and ``bytes_max``;
equal data under an equal key is cut equally, wherever it stands, from the second cut on.
Source: docs/design/001-chunking.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import blake3
import numpy as np
from numpy.typing import NDArray

from torpor.domain.errors import InvalidArgument
from torpor.domain.snapshot import CHUNK_BYTES_MAX, GRANULE_BYTES_MAX, GRANULE_BYTES_MIN

CUT_KEY_BYTES = 32
SAMPLED_WORDS_MAX = 32  # eight-byte words looked at in each granule
_CONTEXT = "torpor cut function v0"

Words = NDArray[np.uint64]
Piece = bytes | memoryview


@dataclass(frozen=True, slots=True)
class CutBounds:
    """Sizes of chunks: none smaller than ``bytes_min`` (but a last one), none larger than ``bytes_max``."""

    bytes_min: int = 64 * 1024
    bytes_avg: int = 256 * 1024
    bytes_max: int = CHUNK_BYTES_MAX

    def __post_init__(self) -> None:
        assert GRANULE_BYTES_MAX <= self.bytes_min < self.bytes_avg < self.bytes_max <= CHUNK_BYTES_MAX


DEFAULT_BOUNDS = CutBounds()


class Cutter:
    """Cuts one part, fed from its start to its end. Not for concurrent use; keeps views of what it was fed."""

    def __init__(self, key: bytes, *, granule_bytes: int, bounds: CutBounds = DEFAULT_BOUNDS) -> None:
        assert len(key) == CUT_KEY_BYTES
        if not _is_granule(granule_bytes):
            raise InvalidArgument(
                f"cannot cut at granules of {granule_bytes} bytes: use a power of two from {GRANULE_BYTES_MIN} to "
                f"{GRANULE_BYTES_MAX}",
                field="granule_bytes",
            )
        words = granule_bytes // 8
        sampled = min(words, SAMPLED_WORDS_MAX)
        material = blake3.blake3(key, derive_key_context=_CONTEXT).digest(length=8 * (sampled + 2))
        secret: Words = np.frombuffer(material, dtype="<u8").astype(np.uint64)
        self._granule_bytes = granule_bytes
        self._stride = words // sampled
        self._weights = secret[:sampled] | np.uint64(1)
        self._offset = secret[sampled]
        self._fold = secret[sampled + 1] | np.uint64(1)
        self._least = -(-bounds.bytes_min // granule_bytes)
        self._most = bounds.bytes_max // granule_bytes
        # A chunk is its least size plus a geometric number of granules: this chance makes the mean ``bytes_avg``.
        chance = granule_bytes / (bounds.bytes_avg - bounds.bytes_min)
        self._threshold = np.uint64(math.floor(chance * 2**64))
        self._carried: list[Piece] = []
        self._carried_count = 0
        self._runs: list[tuple[int, int]] = []
        self._ended = False

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """(zero granules, data granules) of all that was fed, alternating."""
        return tuple(self._runs)

    def feed(self, data: bytes) -> list[Piece]:
        """The chunks that end in ``data``, in order; the rest is kept for the next call.

        ``data`` is a whole number of granules; only the last call's may be otherwise. Chunks may be views of ``data``.
        """
        assert not self._ended
        if not data:
            return []
        whole_bytes = len(data) // self._granule_bytes * self._granule_bytes
        short_bytes = len(data) - whole_bytes
        self._ended = short_bytes > 0
        padded = data if not short_bytes else data + bytes(self._granule_bytes - short_bytes)
        granules: Words = np.frombuffer(padded, dtype="<u8").reshape(-1, self._granule_bytes // 8)
        hashes, zero = self._look_at(granules)
        self._note_runs(zero)
        ends_in_data = not bool(zero[-1])
        if zero.any():
            granules, hashes = granules[~zero], hashes[~zero]
        stream = memoryview(granules.data).cast("B") if len(granules) else memoryview(b"")
        if short_bytes and ends_in_data:
            stream = stream[: len(stream) - (self._granule_bytes - short_bytes)]
        return self._cut(stream, np.flatnonzero(hashes < self._threshold).tolist(), granule_count=len(granules))

    def finish(self) -> list[Piece]:
        """The last chunk, if anything is left. Nothing may be fed after."""
        self._ended = True
        rest = _joined(self._carried)
        self._carried, self._carried_count = [], 0
        return [rest] if len(rest) else []

    def _look_at(self, granules: Words) -> tuple[Words, NDArray[np.bool_]]:
        """A keyed hash of each granule, and whether it is all zero."""
        sampled = granules[:, :: self._stride]
        sums: Words = (sampled * self._weights).sum(axis=1, dtype=np.uint64)
        # The weights are odd: only sums of zero can belong to zero granules. Few others sum to zero.
        zero: NDArray[np.bool_] = sums == 0
        suspects = np.flatnonzero(zero)
        if len(suspects):
            zero[suspects] = ~_rows(granules, suspects).any(axis=1)
        hashes: Words = (sums + self._offset) * self._fold
        return (hashes ^ (hashes >> np.uint64(32))) * self._fold, zero

    def _note_runs(self, zero: NDArray[np.bool_]) -> None:
        """Append to ``runs``, joining with the last one where the same kind goes on."""
        edges = (np.flatnonzero(zero[1:] != zero[:-1]) + 1).tolist()
        for start, end in zip([0, *edges], [*edges, len(zero)], strict=True):
            count = end - start
            if bool(zero[start]):
                if self._runs and self._runs[-1][1] == 0:
                    self._runs[-1] = (self._runs[-1][0] + count, 0)
                else:
                    self._runs.append((count, 0))
            elif self._runs:
                self._runs[-1] = (self._runs[-1][0], self._runs[-1][1] + count)
            else:
                self._runs.append((0, count))

    def _cut(self, stream: memoryview, hits: Sequence[int], *, granule_count: int) -> list[Piece]:
        """Cut after the first hit that makes a chunk large enough, or where it would grow too large."""
        chunks: list[Piece] = []
        start, hit = 0, 0
        while True:
            shortest_end = start + self._least - self._carried_count
            while hit < len(hits) and hits[hit] + 1 < shortest_end:
                hit += 1
            end = start + self._most - self._carried_count
            if hit < len(hits):
                end = min(end, hits[hit] + 1)
            if end > granule_count:
                break
            piece = stream[start * self._granule_bytes : end * self._granule_bytes]
            chunks.append(_joined([*self._carried, piece]))
            self._carried, self._carried_count = [], 0
            start = end
        if start < granule_count:
            self._carried.append(stream[start * self._granule_bytes :])
            self._carried_count += granule_count - start
        return chunks


def _is_granule(count: int) -> bool:
    return GRANULE_BYTES_MIN <= count <= GRANULE_BYTES_MAX and count & (count - 1) == 0


def _rows(granules: Words, indexes: NDArray[Any]) -> Words:
    """``granules[indexes]``, without a copy where all are asked for (a hole)."""
    return granules if len(indexes) == len(granules) else granules[indexes]


def _joined(pieces: Sequence[Piece]) -> Piece:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
