"""Snapshots on their way into instances: fetched once for all placements that want the same one at the same time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torpor.ports.staging import Staging
from torpor.services.residents import Residents
from torpor.services.snapshot_parts import memory_files
from torpor.store.snapshots import Manifest, ReadOptions, SnapshotRef, SnapshotStore


@dataclass(frozen=True, slots=True)
class Fetched:
    """A memory part in memory, and what each step of fetching it took."""

    folder: Path
    timings_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Shared:
    """A folder that several placements restore from; the last to leave removes it."""

    fetching: asyncio.Future[Fetched]
    closing: contextlib.AsyncExitStack
    users_count: int = 0


class Images:
    """Memory parts for restores. The same files may be restored into many instances (ports.engine)."""

    def __init__(self, store: SnapshotStore, staging: Staging, residents: Residents) -> None:
        self._store = store
        self._staging = staging
        self._residents = residents
        self._shared: dict[SnapshotRef, _Shared] = {}

    @contextlib.asynccontextmanager
    async def memory(self, ref: SnapshotRef, manifest: Manifest) -> AsyncIterator[Fetched]:
        """The memory part of ``ref`` for as long as the block lasts. Raises: as ``SnapshotStore.read``."""
        if manifest.template is None:  # a golden image, which may lie there already
            async with self._residents.lent(ref) as resident:
                if resident is not None:
                    yield Fetched(resident.folder)
                    return
        shared = self._shared.get(ref)
        if shared is None:
            closing = contextlib.AsyncExitStack()
            fetching = asyncio.ensure_future(self._fetched(ref, manifest, closing))
            shared = self._shared[ref] = _Shared(fetching, closing)
        shared.users_count += 1
        try:
            yield await asyncio.shield(shared.fetching)  # who gives up takes nothing from the others
        finally:
            shared.users_count -= 1
            if not shared.users_count:
                del self._shared[ref]
                shared.fetching.cancel()
                await asyncio.wait((shared.fetching,))
                await shared.closing.aclose()

    async def _fetched(self, ref: SnapshotRef, manifest: Manifest, closing: contextlib.AsyncExitStack) -> Fetched:
        folder = await closing.enter_async_context(self._staging.folder())
        files = memory_files(manifest.meta)
        largest = max(files, key=lambda name: manifest.part(name).size_bytes)
        has_blank = self._staging.take_blank(folder / largest, manifest.part(largest).size_bytes)
        blank = frozenset({largest}) if has_blank else frozenset()
        async with self._residents.lent(manifest.template) as resident:
            options = ReadOptions(resident=resident, blank=blank, manifest=manifest)
            report = await self._store.read(ref, folder, parts=files, options=options)
        timings = {f"store_{step}": took for step, took in report.timings_ms.items()}
        return Fetched(folder, timings)

    @contextlib.asynccontextmanager
    async def filesystem(self, ref: SnapshotRef, manifest: Manifest, file: str) -> AsyncIterator[Path]:
        """The filesystem part ``file`` as a tar, for as long as the block lasts."""
        async with self._staging.folder() as folder:
            await self._store.read(ref, folder, parts=[file], options=ReadOptions(manifest=manifest))
            yield folder / file
