"""A snapshot whose files lie open in memory, as a source for others that share its chunks or single pages of them.

A template's golden image is public and asked for at every create, resume and pause of its sessions. Copying from memory
costs a tenth of fetching and opening (docs/design/006-where-a-resume-spends-its-time.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from torpor.domain.snapshot import Manifest, PackRef
from torpor.store.page_index import HeldPages, PageIndex
from torpor.store.placed_data import PlacedData


@dataclass(frozen=True, slots=True)
class Resident:
    """``folder`` holds, unchanged, every file that a read of ``manifest`` with ``parts`` wrote.

    ``pages``: an index of the pages of parts, by name; parts without one lend whole chunks only.
    """

    manifest: Manifest
    folder: Path
    parts: frozenset[str]
    pages: Mapping[str, PageIndex] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def indexed(cls, manifest: Manifest, folder: Path, parts: frozenset[str]) -> Self:
        """With the pages of its parts indexed. Reads them all: on a thread."""
        indexes: dict[str, PageIndex] = {}
        for part in manifest.parts:
            if part.name in parts and PageIndex.may_index(part):
                with _opened(folder / part.name) as file:
                    indexes[part.name] = PageIndex(part, file)
        return cls(manifest, folder, parts, indexes)

    @contextmanager
    def held_pages(self, name: str, *, granule_bytes: int) -> Iterator[HeldPages | None]:
        """The pages of its part ``name``, to compare with; None where that was not indexed by such granules."""
        index = self.pages.get(name)
        if index is None or index.granule_bytes != granule_bytes:
            yield None
            return
        with _opened(self.folder / name) as file:
            yield HeldPages(index, self.manifest, file)


@dataclass(frozen=True, slots=True)
class Held:
    """A resident's open file, and where in its data something begins."""

    file: int
    data: PlacedData
    offset_bytes: int


class ResidentChunks:
    """The chunks of a resident by where they are stored. Open it once per read; leaving the block closes its files."""

    def __init__(self, resident: Resident | None) -> None:
        self._places: dict[tuple[PackRef, int], Held] = {}
        self._closing = ExitStack()
        if resident is None:
            return
        with ExitStack() as opening:
            for part in resident.manifest.parts:
                if part.name not in resident.parts:
                    continue
                file = opening.enter_context(_opened(resident.folder / part.name))
                data, offset_bytes = PlacedData(part), 0
                for extent in part.extents:
                    chunk = resident.manifest.chunks[extent.chunk_index]
                    size_bytes = extent.size_bytes(chunk, part.granule_bytes)
                    if size_bytes == chunk.plain_bytes:
                        stored_at = (resident.manifest.packs[chunk.pack], chunk.offset_bytes)
                        self._places.setdefault(stored_at, Held(file, data, offset_bytes))
                    offset_bytes += size_bytes
            self._closing = opening.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing.close()

    def get(self, stored_at: tuple[PackRef, int]) -> Held | None:
        """Where the chunk lies, if the resident has it."""
        return self._places.get(stored_at)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)
