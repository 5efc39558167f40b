"""Sealed chunks into packs, packs into the object store while further chunks are being sealed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from torpor.domain.ids import TenantId, id_from_entropy
from torpor.domain.snapshot import PackRef
from torpor.ports.crash_points import CrashPoint, reach
from torpor.ports.entropy import Entropy
from torpor.ports.objects import ObjectStore
from torpor.store.draft import Draft, NewChunk
from torpor.store.format.pack import HEADER_BYTES, PAYLOAD_BYTES_MAX, encode_pack
from torpor.store.layout import pack_key

UPLOAD_COUNT_MAX = 2  # packs on their way at once: 32 MiB


class Packer:
    """Packs of one snapshot of one subject. Uploads run in ``group``; when that has ended, all packs are durable."""

    def __init__(self, objects: ObjectStore, entropy: Entropy, *, tenant: TenantId, subject: str) -> None:
        self._objects = objects
        self._entropy = entropy
        self._tenant = tenant
        self._subject = subject
        self._slots = asyncio.Semaphore(UPLOAD_COUNT_MAX)
        self._pack: PackRef | None = None
        self._sealed: list[bytes] = []
        self._payload_bytes = 0
        self.started: list[str] = []  # keys that may exist in the object store
        self.stored_bytes = 0

    async def add(self, chunks: Sequence[tuple[NewChunk, bytes]], *, draft: Draft, group: asyncio.TaskGroup) -> None:
        """Give each sealed chunk its place. Waits while too many packs are on their way."""
        for chunk, sealed in chunks:
            if self._payload_bytes + len(sealed) > PAYLOAD_BYTES_MAX:
                await self.flush(group)
            if self._pack is None:
                self._pack = PackRef(self._tenant, self._subject, id_from_entropy(self._entropy.bytes(20)))
            offset_bytes = HEADER_BYTES + self._payload_bytes
            draft.settle(chunk, pack=self._pack, offset_bytes=offset_bytes, sealed_bytes=len(sealed))
            self._sealed.append(sealed)
            self._payload_bytes += len(sealed)

    async def flush(self, group: asyncio.TaskGroup) -> None:
        """Send off the pack that is being filled, if there is one."""
        if self._pack is None:
            return
        pack, sealed = self._pack, self._sealed
        self._pack, self._sealed, self._payload_bytes = None, [], 0
        await self._slots.acquire()
        group.create_task(self._upload(pack, sealed))

    async def _upload(self, pack: PackRef, sealed: list[bytes]) -> None:
        try:
            data = await asyncio.to_thread(encode_pack, pack.pack, sealed)
            sealed.clear()  # the pack holds them now: two slow uploads would keep 32 MiB twice
            self.started.append(pack_key(pack))
            await self._objects.put(pack_key(pack), data)
            reach(CrashPoint.UPLOAD_PACK)
            self.stored_bytes += len(data)
        finally:
            self._slots.release()
