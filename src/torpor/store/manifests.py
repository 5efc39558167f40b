"""Fetching and opening manifests: the one place where a snapshot's authenticity is decided."""

from __future__ import annotations

import asyncio

from torpor.domain.errors import Corrupt, NotFound
from torpor.domain.snapshot import Manifest, ManifestHeader, SnapshotRef
from torpor.ports.keys import KeyStore
from torpor.ports.objects import ObjectStore
from torpor.store.format.manifest import (
    HEADER_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    decode_header,
    manifest_digest,
    open_manifest,
    split_manifest,
)
from torpor.store.layout import Kind, Placed, manifest_key

# One of 8,000 chunks (2 GiB) takes some 30 ms to read, too long for the loop; one this small less than the way to a
# thread and back.
SMALL_BYTES_MAX = 32 * 1024


class Manifests:
    """Manifests in an object store, opened with keys from a key store."""

    def __init__(self, objects: ObjectStore, keys: KeyStore) -> None:
        self._objects = objects
        self._keys = keys

    async def open(self, ref: SnapshotRef) -> Manifest:
        """The manifest that ``ref`` names and no other. Raises: NotFound, Corrupt, KeyDestroyed, Unsupported."""
        manifest, digest = await self.open_placed(
            Placed(Kind.MANIFEST, ref.tenant, ref.subject, ref.snapshot, ref.sequence), digest=ref.digest
        )
        assert digest == ref.digest
        return manifest

    async def open_placed(self, placed: Placed, *, digest: str | None = None) -> tuple[Manifest, str]:
        """The manifest under a key, and its digest, which is checked first where it is known. Raises as ``open``."""
        assert placed.kind is Kind.MANIFEST
        key = placed.key
        data = await self._fetch(key)
        found = manifest_digest(data)
        if digest not in {None, found}:
            raise Corrupt(f"cannot open {key}: its digest is {found}, not {digest}", key=key)
        envelope = split_manifest(data)
        if manifest_key(envelope.header) != key:
            raise Corrupt(f"cannot open {key}: the object is the manifest of {manifest_key(envelope.header)}", key=key)
        header = envelope.header
        data_key = await self._keys.unwrap(header.tenant, header.subject, header.wrapped_key)
        if len(data) <= SMALL_BYTES_MAX:
            return open_manifest(envelope, data_key=data_key), found
        return await asyncio.to_thread(open_manifest, envelope, data_key=data_key), found

    async def ref(self, placed: Placed) -> SnapshotRef:
        """The reference to the manifest under a key, without opening it. Raises: NotFound, Corrupt."""
        data = await self._fetch(placed.key)
        header = split_manifest(data).header
        if manifest_key(header) != placed.key:
            raise Corrupt(f"cannot use {placed.key}: the object is the manifest of {manifest_key(header)}")
        return SnapshotRef(header.tenant, header.subject, header.snapshot, header.sequence, manifest_digest(data))

    async def header(self, placed: Placed, *, size_bytes: int) -> ManifestHeader:
        """The public header alone, from its first bytes. Not authenticated. Raises: NotFound, Corrupt, Unsupported."""
        size = min(HEADER_BYTES_MAX, size_bytes)
        header, _ = decode_header(await self._objects.get_range(placed.key, offset=0, size=size))
        return header

    async def _fetch(self, key: str) -> bytes:
        info = await self._objects.head(key)
        if info.size_bytes > MANIFEST_BYTES_MAX:
            raise Corrupt(f"cannot open {key}: {info.size_bytes} bytes are more than a manifest may have", key=key)
        try:
            return await self._objects.get(key)
        except NotFound as error:
            raise NotFound(f"cannot open {key}: it was removed meanwhile", key=key) from error
