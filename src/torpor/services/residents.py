"""Golden images that lie open in this node's memory: creates restore from them, resumes copy, pauses compare.

Template bytes are public, so this keeps nobody's secret; the price is their size in memory, counted in images.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog

from torpor.domain.errors import TorporError
from torpor.ports.clock import Clock
from torpor.ports.staging import Staging
from torpor.services.snapshot_parts import memory_files
from torpor.store.snapshots import ReadOptions, Resident, SnapshotRef, SnapshotStore

log = structlog.get_logger()

IMAGES_MAX = 4
REST_S_MIN = 60.0  # images that are used in turn would only push each other out


@dataclass(slots=True)
class _Image:
    """An image, and who uses it now. ``used_at_s``: when the last of them left (monotonic)."""

    resident: Resident
    closing: contextlib.AsyncExitStack
    used_at_s: float
    users_count: int = 0


class Residents:
    """At most ``IMAGES_MAX`` images. One that nobody has used for ``REST_S_MIN`` gives its place to one that is wanted.

    What finds no place is read from the store each time.
    """

    def __init__(self, store: SnapshotStore, staging: Staging, clock: Clock) -> None:
        self._store = store
        self._staging = staging
        self._clock = clock
        self._images: dict[SnapshotRef, _Image] = {}
        self._loading = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def lent(self, golden: SnapshotRef | None) -> AsyncIterator[Resident | None]:
        """The image of a template's golden snapshot for as long as the block lasts, loaded when it is first wanted.

        None where there is none to be had, as of no template at all.
        """
        image = None if golden is None else await self._image(golden)
        if image is None:
            yield None
            return
        image.users_count += 1
        try:
            yield image.resident
        finally:
            image.users_count -= 1
            image.used_at_s = self._clock.monotonic_s()

    async def drop(self) -> None:
        """Give the memory back. No placement may be under way."""
        while self._images:
            _, image = self._images.popitem()
            await image.closing.aclose()

    async def _image(self, golden: SnapshotRef) -> _Image | None:
        if golden in self._images:
            return self._images[golden]
        async with self._loading:
            if golden not in self._images and await self._has_made_room():
                try:
                    self._images[golden] = await self._load(golden)
                except TorporError as error:  # a resume does not need it: its own chunks carry their keys
                    log.warning("golden image not loaded", code=error.code, error=error.message)
            return self._images.get(golden)

    async def _has_made_room(self) -> bool:
        if len(self._images) < IMAGES_MAX:
            return True
        rested_since_s = self._clock.monotonic_s() - REST_S_MIN
        resting = [ref for ref, one in self._images.items() if not one.users_count and one.used_at_s <= rested_since_s]
        if not resting:
            return False
        longest = min(resting, key=lambda ref: self._images[ref].used_at_s)
        await self._images.pop(longest).closing.aclose()
        return True

    async def _load(self, golden: SnapshotRef) -> _Image:
        manifest = await self._store.open(golden)
        parts = memory_files(manifest.meta)
        async with contextlib.AsyncExitStack() as loading:
            folder = await loading.enter_async_context(self._staging.folder())
            await self._store.read(golden, folder, parts=parts, options=ReadOptions(manifest=manifest))
            resident = await asyncio.to_thread(Resident.indexed, manifest, folder, parts)
            return _Image(resident, loading.pop_all(), self._clock.monotonic_s())
