"""Golden images that lie open in this node's memory: creates restore from them, resumes copy, pauses compare.

Template bytes are public, so this keeps nobody's secret; the price is their size in memory, counted in images.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from torpor.domain.errors import TorporError
from torpor.ports.staging import Staging
from torpor.services.snapshot_parts import memory_files
from torpor.store.snapshots import ReadOptions, Resident, SnapshotRef, SnapshotStore

log = structlog.get_logger()

IMAGES_MAX = 4


class Residents:
    """At most ``IMAGES_MAX`` images, first come; what does not fit is read from the store each time."""

    def __init__(self, store: SnapshotStore, staging: Staging) -> None:
        self._store = store
        self._staging = staging
        self._folders = contextlib.AsyncExitStack()
        self._images: dict[SnapshotRef, Resident] = {}
        self._loading = asyncio.Lock()

    async def of(self, golden: SnapshotRef) -> Resident | None:
        """The image of a template's golden snapshot, loaded on first use; None where there is none to be had."""
        if golden in self._images:
            return self._images[golden]
        async with self._loading:
            if golden not in self._images and len(self._images) < IMAGES_MAX:
                try:
                    self._images[golden] = await self._load(golden)
                except TorporError as error:  # a resume does not need it: its own chunks carry their keys
                    log.warning("golden image not loaded", code=error.code, error=error.message)
            return self._images.get(golden)

    async def _load(self, golden: SnapshotRef) -> Resident:
        manifest = await self._store.open(golden)
        parts = memory_files(manifest.meta)
        async with contextlib.AsyncExitStack() as loading:
            folder = await loading.enter_async_context(self._staging.folder())
            await self._store.read(golden, folder, parts=parts, options=ReadOptions(manifest=manifest))
            resident = await asyncio.to_thread(Resident.indexed, manifest, folder, parts)
            await self._folders.enter_async_context(loading.pop_all())
        return resident

    async def drop(self) -> None:
        """Give the memory back. No placement may be under way."""
        self._images.clear()
        await self._folders.aclose()
