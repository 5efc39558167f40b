"""A snapshot whose files lie open in memory, as a source for others that share its chunks.

A template's golden image is public and asked for at every create and resume of its sessions. Copying its chunks from
memory costs a tenth of fetching and opening them (docs/design/006-resident-golden-images.md).
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torpor.domain.snapshot import Manifest, PackRef
from torpor.store.placed_data import PlacedData


@dataclass(frozen=True, slots=True)
class Resident:
    """``folder`` holds, unchanged, every file that a read of ``manifest`` with ``parts`` wrote."""

    manifest: Manifest
    folder: Path
    parts: frozenset[str]


class ResidentChunks:
    """The chunks of a resident by where they are stored. Open it once per read; leaving the block closes its files."""

    def __init__(self, resident: Resident | None) -> None:
        self._places: dict[tuple[PackRef, int], tuple[int, PlacedData, int]] = {}
        self._closing = ExitStack()
        if resident is None:
            return
        with ExitStack() as opening:
            for part in resident.manifest.parts:
                if part.name not in resident.parts:
                    continue
                file = os.open(resident.folder / part.name, os.O_RDONLY | os.O_CLOEXEC)
                opening.callback(os.close, file)
                data, offset_bytes = PlacedData(part), 0
                for index in part.chunks:
                    chunk = resident.manifest.chunks[index]
                    stored_at = (resident.manifest.packs[chunk.pack], chunk.offset_bytes)
                    self._places.setdefault(stored_at, (file, data, offset_bytes))
                    offset_bytes += chunk.plain_bytes
            self._closing = opening.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing.close()

    def __contains__(self, stored_at: tuple[PackRef, int]) -> bool:
        return stored_at in self._places

    def read_into(self, stored_at: tuple[PackRef, int], buffer: memoryview) -> None:
        """Fill ``buffer`` with the chunk's plaintext, of exactly its size. On any thread."""
        file, data, offset_bytes = self._places[stored_at]
        for file_offset_bytes, count in data.pieces(offset_bytes, len(buffer)):
            done = os.preadv(file, [buffer[:count]], file_offset_bytes)
            assert done == count, "a resident's file ends early"
            buffer = buffer[count:]
