"""From files to a durable snapshot: cut, hash, look up, seal, pack; then packs → manifest → pointer.

Invariants: what is named is durable before the name is; a failed write leaves nothing visible, and removes its packs
where it can know that nothing names them; memory is bounded by the stages' depths, whatever the image's size.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Self

import blake3

from torpor.domain.errors import InvalidArgument, TorporError, Unavailable
from torpor.domain.snapshot import Extent, Lender, Manifest, ManifestHeader, Part, SnapshotRef
from torpor.ports.crash_points import CrashPoint, reach
from torpor.store.draft import Draft, HashedChunk, NewChunk
from torpor.store.format.chunker import CUT_KEY_BYTES, Cutter, Piece
from torpor.store.format.envelope import Sealer
from torpor.store.format.manifest import SALT_BYTES, encode_manifest, manifest_digest
from torpor.store.heads import stale
from torpor.store.layout import manifest_key
from torpor.store.outside import Outside
from torpor.store.packer import Packer
from torpor.store.page_index import HeldPages
from torpor.store.pipeline import Stage, run, task_group, worker_pool
from torpor.store.requests import PartSource, StoredSnapshot, WriteRequest
from torpor.store.timings import Stopwatch

WINDOW_BYTES = 4 * 1024 * 1024  # read, cut and hashed as one job
HASH_DEPTH = 2
SEAL_DEPTH = 3


async def write_snapshot(outside: Outside, request: WriteRequest) -> StoredSnapshot:
    """Store one snapshot; the contract is ``SnapshotStore.write``'s."""
    request.validate()
    head = await outside.heads.read(request.tenant, request.subject)
    if head and head.sequence >= request.sequence:
        if (head.snapshot, head.sequence) == (request.snapshot, request.sequence):
            return await _stored_before(outside, head)
        raise stale(request.subject, sequence=request.sequence, head=head)
    watch = Stopwatch(outside.clock)
    with watch.phase("total"):
        lineage = [await outside.manifests.open(ref) for ref in (request.template, request.parent) if ref]
        data_key = await outside.keys.unwrap(request.tenant, request.subject, request.wrapped_key)
        attempt = _Attempt(outside, request, lineage, watch)
        try:
            ref = await attempt.perform(data_key)
        except TorporError as error:
            await attempt.undo(error)
            raise
    return StoredSnapshot(
        ref=ref,
        image_bytes=sum(part.size_bytes for part in attempt.draft.parts),
        new_bytes=attempt.new_bytes,
        chunk_count=attempt.draft.chunk_count,
        new_chunk_count=attempt.draft.new_chunk_count,
        timings_ms=watch.timings_ms(),
    )


async def _stored_before(outside: Outside, ref: SnapshotRef) -> StoredSnapshot:
    """The answer to a repeated write whose first answer was lost."""
    manifest = await outside.manifests.open(ref)
    return StoredSnapshot(
        ref=ref,
        image_bytes=manifest.image_bytes,
        new_bytes=0,
        chunk_count=len(manifest.chunks),
        new_chunk_count=0,
        timings_ms={},
    )


class _Attempt:
    """One try to store one snapshot, and what is to be taken back if it fails."""

    def __init__(self, outside: Outside, request: WriteRequest, lineage: Sequence[Manifest], watch: Stopwatch) -> None:
        self._outside = outside
        self._request = request
        self._watch = watch
        # Cut points only meet those of relatives under one key: the template's, or else the parent's.
        self._cut_key = lineage[0].cut_key if lineage else outside.entropy.bytes(CUT_KEY_BYTES)
        self._packer = Packer(outside.objects, outside.entropy, tenant=request.tenant, subject=request.subject)
        self._manifest_key: str | None = None
        headers = [manifest.header for manifest in lineage]
        self._resident = request.resident if request.resident and request.resident.manifest.header in headers else None
        self.draft = Draft(lineage, outside.entropy)
        self.new_bytes = 0

    async def perform(self, data_key: bytes) -> SnapshotRef:
        """Packs, manifest, pointer, each durable before the next is begun."""
        async with worker_pool(self._outside.workers) as pool, task_group() as uploads:
            for source in self._request.parts:
                await self._store_part(source, pool, uploads)
            await self._packer.flush(uploads)
            ended_s = self._outside.clock.monotonic_s()
        ref, data = await asyncio.to_thread(self._encode, data_key)
        self._manifest_key = manifest_key(ref)
        await self._outside.objects.put(self._manifest_key, data)
        reach(CrashPoint.UPLOAD_MANIFEST)
        pointer_bytes = await self._outside.heads.advance(ref)
        reach(CrashPoint.COMMIT_HEAD)
        self.new_bytes = self._packer.stored_bytes + len(data) + pointer_bytes
        self._watch.add("durable", self._outside.clock.monotonic_s() - ended_s)
        return ref

    async def undo(self, error: TorporError) -> None:
        """Remove what was written and is named by nothing. After a lost answer that cannot be known: it stays.

        What stays, here or after a crash, is unreferenced and harmless.
        """
        if self._manifest_key and isinstance(error, Unavailable):
            return
        keys = [self._manifest_key] if self._manifest_key else []
        with suppress(TorporError):
            for key in [*keys, *self._packer.started]:
                await self._outside.objects.delete(key)

    async def _store_part(self, source: PartSource, pool: ThreadPoolExecutor, uploads: asyncio.TaskGroup) -> None:
        sealing = Stage(pool, self._seal, depth=SEAL_DEPTH)
        extents: list[Extent] = []

        async def keep(sealed: Sequence[tuple[NewChunk, bytes]]) -> None:
            reach(CrashPoint.SEAL_FIRST_CHUNKS)
            await self._packer.add(sealed, draft=self.draft, group=uploads)

        async def take(hashed: Sequence[HashedChunk]) -> None:
            fresh = self.draft.place(hashed, granule_bytes=source.granule_bytes, into=extents)
            for sealed in await sealing.push(fresh) if fresh else ():
                await keep(sealed)

        with _Windows(source) as windows, self._held_pages(source) as held:
            hashing = Stage(pool, partial(self._hash, held=held), depth=HASH_DEPTH)
            cutter = Cutter(self._cut_key, granule_bytes=source.granule_bytes)
            while windows.left:
                for hashed in await hashing.push(await run(pool, self._cut, (windows, cutter))):
                    await take(hashed)
            for hashed in await hashing.push(cutter.finish()):
                await take(hashed)
            async for hashed in hashing.drain():
                await take(hashed)
            async for sealed in sealing.drain():
                await keep(sealed)
            self.draft.add_part(
                Part(source.name, windows.size_bytes, source.granule_bytes, cutter.runs, tuple(extents))
            )

    def _held_pages(self, source: PartSource) -> AbstractContextManager[HeldPages | None]:
        if self._resident is None:
            return nullcontext()
        return self._resident.held_pages(source.name, granule_bytes=source.granule_bytes)

    def _cut(self, item: tuple[_Windows, Cutter]) -> list[Piece]:
        windows, cutter = item
        with self._watch.phase("cut_hash"):
            return cutter.feed(windows.read())

    def _hash(self, pieces: Sequence[Piece], *, held: HeldPages | None) -> list[HashedChunk]:
        with self._watch.phase("cut_hash"):
            return [self._hashed(piece, held) for piece in pieces]

    def _hashed(self, piece: Piece, held: HeldPages | None) -> HashedChunk:
        """A chunk that the lineage does not know whole is split, if enough of its pages are held."""
        digest = blake3.blake3(piece).digest()
        split = None if held is None or self.draft.knows(digest) else held.split(piece)
        if split is None:
            return HashedChunk(digest, piece)
        return HashedChunk(blake3.blake3(split.residue).digest(), split.residue, split)

    def _seal(self, chunks: Sequence[NewChunk]) -> list[tuple[NewChunk, bytes]]:
        with self._watch.phase("seal"):
            sealer = Sealer()
            return [(chunk, sealer.seal(chunk.plaintext, key=chunk.key)) for chunk in chunks]

    def _encode(self, data_key: bytes) -> tuple[SnapshotRef, bytes]:
        request = self._request
        own = Lender(request.tenant, request.subject)
        header = ManifestHeader(
            tenant=request.tenant,
            subject=request.subject,
            snapshot=request.snapshot,
            sequence=request.sequence,
            generation=request.generation,
            region=request.region,
            wrapped_key=request.wrapped_key,
            lenders=self.draft.lenders(besides=own),
            salt=self._outside.entropy.bytes(SALT_BYTES),
        )
        manifest = Manifest(
            header=header,
            parts=self.draft.parts,
            chunks=self.draft.chunks,
            packs=self.draft.packs,
            parent=request.parent,
            template=request.template,
            requirements=request.requirements,
            meta=request.meta,
            cut_key=self._cut_key,
        )
        data = encode_manifest(manifest, data_key=data_key)
        return SnapshotRef(
            request.tenant, request.subject, request.snapshot, request.sequence, manifest_digest(data)
        ), data


class _Windows:
    """A part's file, read from start to end in windows of a whole number of granules. Never mapped: RSS stays small."""

    def __init__(self, source: PartSource) -> None:
        self._source = source
        self._offset_bytes = 0
        try:
            self._descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidArgument(
                f"cannot store part {source.name}: {source.path}: {error.strerror}", field="parts"
            ) from error
        status = os.fstat(self._descriptor)
        self.size_bytes = status.st_size
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise InvalidArgument(f"cannot store part {source.name}: {source.path} is no regular file", field="parts")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    @property
    def left(self) -> bool:
        """Whether there is more to read."""
        return self._offset_bytes < self.size_bytes

    def read(self) -> bytes:
        """The next window, whole. Raises: InvalidArgument if the file became shorter; Unavailable if the disk fails."""
        want = min(WINDOW_BYTES, self.size_bytes - self._offset_bytes)
        try:
            data = os.pread(self._descriptor, want, self._offset_bytes)
        except OSError as error:
            raise Unavailable(f"cannot read {self._source.path}: {error.strerror}") from error
        if len(data) != want:
            raise InvalidArgument(
                f"cannot store part {self._source.name}: {self._source.path} changed while it was read", field="parts"
            )
        self._offset_bytes += want
        return data
