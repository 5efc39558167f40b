"""One snapshot as a stream under a passphrase, and back under a new subject. Layout: docs/formats/export-v0.md.

Invariants: no chunk leaves its seal but in memory; memory is bounded by a few frames and packs, beside the list of
parts; an import is committed only once the whole stream has proved authentic, and leaves nothing otherwise.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import blake3

from torpor.domain.errors import Conflict, Corrupt, InvalidArgument, TorporError, Unavailable
from torpor.domain.ids import SnapshotId, TenantId
from torpor.domain.snapshot import (
    CHUNK_BYTES_MAX,
    Extent,
    Manifest,
    ManifestHeader,
    Part,
    SnapshotRef,
    parse_key_part,
)
from torpor.store.draft import Draft, HashedChunk, NewChunk
from torpor.store.format.envelope import KEY_BYTES, OVERHEAD_BYTES, Opener, Sealer
from torpor.store.format.manifest import SALT_BYTES, encode_manifest, manifest_digest, verify_manifest
from torpor.store.format.sealed_stream import HEADER_BYTES, StreamOpener, StreamSealer
from torpor.store.layout import manifest_key
from torpor.store.outside import Outside
from torpor.store.packer import Packer
from torpor.store.pipeline import Stage, task_group, worker_pool
from torpor.store.reader import fetch_range, plan_fetches
from torpor.store.requests import StoredSnapshot

JSON_BYTES_MAX = 64 * 1024 * 1024
CHUNK_COUNT_MAX = 1 << 24
SEAL_DEPTH = 4

_LENGTH = struct.Struct("<I")
_RECORD = struct.Struct("<III32s32s")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export file says before its chunks: enough to decide whether it is of use here."""

    source: SnapshotRef
    template: SnapshotRef | None
    requirements: Mapping[str, Any]
    meta: Mapping[str, Any]
    region: str
    generation: int
    parts: tuple[Part, ...] = field(repr=False)
    chunk_count: int
    cut_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Where an imported snapshot goes: a subject that has none yet, with its own data key. ``meta``: as of a fork."""

    tenant: TenantId
    subject: str
    snapshot: SnapshotId
    wrapped_key: bytes = field(repr=False)
    sequence: int = 1
    generation: int = 0
    region: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


async def export_snapshot(outside: Outside, ref: SnapshotRef, passphrase: str) -> AsyncIterator[bytes]:
    """The bytes of the file, piece by piece; the contract is ``SnapshotStore.export``'s."""
    manifest = await outside.manifests.open(ref)
    # In this order, since it may be read long before it is all written: what cannot be exported fails first.
    salt = outside.entropy.bytes(SALT_BYTES)
    sealer = await asyncio.to_thread(StreamSealer, passphrase, salt=salt)
    yield sealer.header
    text = await asyncio.to_thread(_description, manifest, ref)
    for frame in sealer.feed(_LENGTH.pack(len(text)) + text):
        yield frame
    for fetch in plan_fetches(manifest, range(len(manifest.chunks))):
        data = memoryview(await fetch_range(outside, fetch))
        for index in fetch.chunk_indexes:
            chunk = manifest.chunks[index]
            start = chunk.offset_bytes - fetch.offset_bytes
            head = _RECORD.pack(index, chunk.sealed_bytes, chunk.plain_bytes, chunk.key, chunk.digest)
            for piece in (head, data[start : start + chunk.sealed_bytes]):
                for frame in sealer.feed(piece):
                    yield frame
    yield sealer.finish()


async def import_snapshot(
    outside: Outside,
    stream: AsyncIterator[bytes],
    passphrase: str,
    admit: Callable[[Exported], Awaitable[ImportRequest]],
) -> StoredSnapshot:
    """Store what the stream holds; the contract is ``SnapshotStore.import_``'s."""
    content = await _Content.of(stream, passphrase)
    exported = _parsed(await content.exactly(await content.length()))
    request = await admit(exported)
    for name in ("tenant", "subject", "snapshot"):
        parse_key_part(getattr(request, name), field=name)
    if await outside.heads.read(request.tenant, request.subject) is not None:
        raise Conflict(f"cannot import into {request.subject}: it has snapshots", reason="subject_exists")
    data_key = await outside.keys.unwrap(request.tenant, request.subject, request.wrapped_key)
    importing = _Importing(outside, exported, request)
    try:
        return await importing.perform(content, data_key)
    except (TorporError, asyncio.CancelledError) as error:
        await importing.undo(error)
        raise


class _Importing:
    """One import, and what is to be taken back if it fails."""

    def __init__(self, outside: Outside, exported: Exported, request: ImportRequest) -> None:
        self._outside = outside
        self._exported = exported
        self._request = request
        self._packer = Packer(outside.objects, outside.entropy, tenant=request.tenant, subject=request.subject)
        self._draft = Draft((), outside.entropy)
        self._indexes: dict[int, int] = {}  # of the file → of the draft
        self._manifest_key: str | None = None

    async def perform(self, content: _Content, data_key: bytes) -> StoredSnapshot:
        async with worker_pool(self._outside.workers) as pool, task_group() as uploads:
            opening = Stage(pool, _opened, depth=SEAL_DEPTH)
            sealing = Stage(pool, _sealed, depth=SEAL_DEPTH)

            async def take(opened: tuple[int, HashedChunk]) -> None:
                index, chunk = opened
                extents: list[Extent] = []
                fresh = self._draft.place([chunk], granule_bytes=CHUNK_BYTES_MAX, into=extents)
                self._indexes[index] = extents[0].chunk_index
                for sealed in await sealing.push(fresh) if fresh else ():
                    await self._packer.add(sealed, draft=self._draft, group=uploads)

            for _ in range(self._exported.chunk_count):
                for opened in await opening.push(await content.record()):
                    await take(opened)
            async for opened in opening.drain():
                await take(opened)
            async for sealed in sealing.drain():
                await self._packer.add(sealed, draft=self._draft, group=uploads)
            await content.end()
            await self._packer.flush(uploads)
        manifest = self._manifest()
        data = await asyncio.to_thread(encode_manifest, manifest, data_key=data_key)
        header = manifest.header
        ref = SnapshotRef(header.tenant, header.subject, header.snapshot, header.sequence, manifest_digest(data))
        self._manifest_key = manifest_key(ref)
        await self._outside.objects.put(self._manifest_key, data)
        pointer_bytes = await self._outside.heads.advance(ref)
        return StoredSnapshot(
            ref=ref,
            image_bytes=manifest.image_bytes,
            new_bytes=self._packer.stored_bytes + len(data) + pointer_bytes,
            chunk_count=len(manifest.chunks),
            new_chunk_count=self._draft.new_chunk_count,
            timings_ms={},
        )

    async def undo(self, error: BaseException) -> None:
        """Remove what was written, unless a pointer whose answer was lost may name it."""
        if self._manifest_key and isinstance(error, Unavailable):
            return
        keys = [self._manifest_key] if self._manifest_key else []
        with suppress(TorporError):
            for key in [*keys, *self._packer.started]:
                await self._outside.objects.delete(key)

    def _manifest(self) -> Manifest:
        """Raises: Corrupt if the file's parts and chunks do not hold together."""
        request, exported = self._request, self._exported
        header = ManifestHeader(
            tenant=request.tenant,
            subject=request.subject,
            snapshot=request.snapshot,
            sequence=request.sequence,
            generation=request.generation,
            region=request.region or exported.region,
            wrapped_key=request.wrapped_key,
            lenders=(),
            salt=self._outside.entropy.bytes(SALT_BYTES),
        )
        manifest = Manifest(
            header=header,
            parts=tuple(replace(part, extents=self._moved(part.extents)) for part in exported.parts),
            chunks=self._draft.chunks,
            packs=self._draft.packs,
            parent=None,
            template=exported.template,
            requirements=exported.requirements,
            meta={**exported.meta, **request.meta},
            cut_key=exported.cut_key,
        )
        verify_manifest(manifest)
        return manifest

    def _moved(self, extents: Sequence[Extent]) -> tuple[Extent, ...]:
        try:
            return tuple(extent._replace(chunk_index=self._indexes[extent.chunk_index]) for extent in extents)
        except KeyError as error:
            raise Corrupt(f"cannot import: a part of the file names chunk {error}, which it lacks") from error


@dataclass(frozen=True, slots=True)
class _Record:
    index: int
    plain_bytes: int
    key: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    sealed: bytes = field(repr=False)


class _Content:
    """The plaintext of a stream, in the pieces that are asked for."""

    def __init__(self, stream: AsyncIterator[bytes], opener: StreamOpener, first: bytes) -> None:
        self._stream = stream
        self._opener = opener
        self._plain = bytearray().join(opener.feed(first))

    @classmethod
    async def of(cls, stream: AsyncIterator[bytes], passphrase: str) -> _Content:
        """Read the header. Raises: InvalidArgument, Corrupt, Unsupported."""
        first = b""
        while len(first) < HEADER_BYTES:
            piece = await anext(stream, None)
            if piece is None:
                break
            first += piece
        opener = await asyncio.to_thread(StreamOpener, passphrase, first[:HEADER_BYTES])
        return cls(stream, opener, first[HEADER_BYTES:])

    async def length(self) -> int:
        """The length of the description."""
        (size_bytes,) = _LENGTH.unpack(await self.exactly(_LENGTH.size))
        if size_bytes > JSON_BYTES_MAX:
            raise Corrupt(f"cannot import: a description of {size_bytes} bytes is more than {JSON_BYTES_MAX}")
        return int(size_bytes)

    async def record(self) -> _Record:
        """The next chunk."""
        index, sealed_bytes, plain_bytes, key, digest = _RECORD.unpack(await self.exactly(_RECORD.size))
        if sealed_bytes > CHUNK_BYTES_MAX + OVERHEAD_BYTES or not 0 < plain_bytes <= CHUNK_BYTES_MAX:
            raise Corrupt(f"cannot import: chunk {index} of the file has no size that a chunk may have")
        return _Record(index, plain_bytes, key, digest, await self.exactly(sealed_bytes))

    async def exactly(self, count: int) -> bytes:
        """That many bytes. Raises: Corrupt if the stream ends before."""
        while len(self._plain) < count:
            piece = await anext(self._stream, None)
            if piece is None:
                self._opener.finish()
                raise Corrupt("cannot import: the file says more than it holds")
            for plaintext in self._opener.feed(piece):
                self._plain += plaintext
        taken = bytes(self._plain[:count])
        del self._plain[:count]
        return taken

    async def end(self) -> None:
        """Nothing may follow. Raises: Corrupt."""
        async for piece in self._stream:
            for plaintext in self._opener.feed(piece):
                self._plain += plaintext
        self._opener.finish()
        if self._plain:
            raise Corrupt("cannot import: the file holds more than it says")


def _opened(record: _Record) -> tuple[int, HashedChunk]:
    """On a thread. Raises: Corrupt."""
    assert len(record.key) == KEY_BYTES
    plaintext = bytes(Opener().open(record.sealed, key=record.key, plain_bytes=record.plain_bytes))
    if blake3.blake3(plaintext).digest() != record.digest:
        raise Corrupt(f"cannot import: chunk {record.index} of the file has another digest")
    return record.index, HashedChunk(record.digest, plaintext)


def _sealed(chunks: Sequence[NewChunk]) -> list[tuple[NewChunk, bytes]]:
    """On a thread."""
    sealer = Sealer()
    return [(chunk, sealer.seal(chunk.plaintext, key=chunk.key)) for chunk in chunks]


def _description(manifest: Manifest, ref: SnapshotRef) -> bytes:
    value = {
        "source": ref.to_json(),
        "template": manifest.template.to_json() if manifest.template else None,
        "requirements": dict(manifest.requirements),
        "meta": dict(manifest.meta),
        "region": manifest.header.region,
        "generation": manifest.header.generation,
        "cut_key": manifest.cut_key.hex(),
        "chunk_count": len(manifest.chunks),
        "parts": [
            {
                "name": part.name,
                "size_bytes": part.size_bytes,
                "granule_bytes": part.granule_bytes,
                "runs": part.runs,
                "extents": part.extents,
            }
            for part in manifest.parts
        ],
    }
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _parsed(text: bytes) -> Exported:
    """Raises: Corrupt. What it says is checked as a manifest before it is stored."""
    try:
        value = json.loads(text)
        exported = Exported(
            source=SnapshotRef.from_json(value["source"]),
            template=SnapshotRef.from_json(value["template"]) if value["template"] else None,
            requirements=dict(value["requirements"]),
            meta=dict(value["meta"]),
            region=str(value["region"]),
            generation=int(value["generation"]),
            parts=tuple(_part(part) for part in value["parts"]),
            chunk_count=int(value["chunk_count"]),
            cut_key=bytes.fromhex(value["cut_key"]),
        )
    except (ValueError, KeyError, TypeError, InvalidArgument) as error:
        raise Corrupt(f"cannot import: the file's description does not parse: {error!r}") from error
    if not 0 <= exported.chunk_count <= CHUNK_COUNT_MAX or len(exported.cut_key) != KEY_BYTES:
        raise Corrupt("cannot import: the file's description does not hold together")
    return exported


def _part(value: Mapping[str, Any]) -> Part:
    runs = tuple((int(zero), int(data)) for zero, data in value["runs"])
    extents = tuple(Extent(int(chunk), int(first), int(count)) for chunk, first, count in value["extents"])
    return Part(str(value["name"]), int(value["size_bytes"]), int(value["granule_bytes"]), runs, extents)
