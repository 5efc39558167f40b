"""Root filesystems of templates through the store: kept once beside the golden snapshot, fetched where one is missing.

A root filesystem is a subject of its own in the public tenant, since it is the same for every golden snapshot that is
taken of it; the golden snapshot's meta names it. So a node that has the store and the keys needs nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from torpor.domain.errors import InvalidArgument, NotFound, TorporError
from torpor.domain.ids import SnapshotId, TenantId, id_from_entropy
from torpor.ports.entropy import Entropy
from torpor.ports.keys import KeyStore
from torpor.ports.rootfs import RootfsFolders
from torpor.store.snapshots import PartSource, SnapshotRef, SnapshotStore, WriteRequest

log = structlog.get_logger()

PART = "rootfs.tar"
KIND = "root_filesystem"
META_FIELD = "rootfs"
TAR_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class KeptTree:
    """Where a tree is in the store, and whether it was put there just now."""

    ref: SnapshotRef
    is_new: bool


class Rootfs:
    """Root filesystems of one node."""

    def __init__(self, store: SnapshotStore, keys: KeyStore, folders: RootfsFolders, entropy: Entropy) -> None:
        self._store = store
        self._keys = keys
        self._folders = folders
        self._entropy = entropy
        self._fetching: dict[str, asyncio.Lock] = {}

    async def keep(
        self, tenant: TenantId, name: str, digest: str, *, same: SnapshotRef | None, alike: Sequence[SnapshotRef]
    ) -> KeptTree:
        """Store the tree, once; its reference is what the golden snapshot's meta has to say of it.

        ``same``: a golden snapshot of the same tree, whose copy serves if it is there. ``alike``: golden snapshots of
        other templates: what their trees have in common with this one is not stored again.
        Raises: NotFound, StorageFull.
        """
        ref = await self._kept(same) if same else None
        if ref is not None:
            return KeptTree(ref, is_new=False)
        relatives = [kept for golden in alike if (kept := await self._kept(golden)) is not None]
        return KeptTree(await self._stored(tenant, name, digest, relatives[0] if relatives else None), is_new=True)

    async def remove(self, ref: SnapshotRef) -> None:
        """Take a tree out of the store again that nothing names: the build that it was for has failed."""
        try:
            await self._store.delete_subject(ref.tenant, ref.subject)
        except TorporError as error:  # the failure itself is what has to be told
            log.warning("a failed build left a tree", subject=ref.subject, code=error.code, error=error.message)

    async def at(self, digest: str, golden: SnapshotRef) -> Path:
        """The folder of the tree, fetched and verified first if this node lacks it. Concurrent callers share one fetch.

        Raises: NotFound if the golden snapshot does not say where it is; Corrupt; StorageFull.
        """
        path = self._folders.at(digest)
        if path.is_dir():
            return path
        async with self._fetching.setdefault(digest, asyncio.Lock()):
            if not path.is_dir():
                await self._fetch(digest, golden)
        return path

    async def _fetch(self, digest: str, golden: SnapshotRef) -> None:
        meta = (await self._store.open(golden)).meta
        if META_FIELD not in meta:
            raise NotFound(
                f"cannot find the root filesystem {digest[:12]}: it is not on this node and was not stored; "
                f"rebuild it with `torpor template build {meta.get('template', '')}`",
                digest=digest,
            )
        ref = SnapshotRef.from_json(meta[META_FIELD])
        log.info("fetching root filesystem", digest=digest[:12])
        async with self._folders.workplace() as folder:
            if self._folders.at(digest).is_dir():  # another process fetched it while this one waited
                return
            report = await self._store.read(ref, folder, parts=[PART])
            await self._folders.unpack(report.files[PART], digest)

    async def _kept(self, golden: SnapshotRef) -> SnapshotRef | None:
        try:
            ref = SnapshotRef.from_json((await self._store.open(golden)).meta[META_FIELD])
            await self._store.open(ref)
        except (KeyError, InvalidArgument):
            return None
        except TorporError as error:
            log.warning("stored root filesystem not found", code=error.code, error=error.message)
            return None
        return ref

    async def _stored(self, tenant: TenantId, name: str, digest: str, parent: SnapshotRef | None) -> SnapshotRef:
        subject = id_from_entropy(self._entropy.bytes(20))
        async with self._folders.workplace() as folder:
            await self._folders.pack(digest, folder / PART)
            key = await self._keys.create(tenant, subject)
            stored = await self._store.write(
                WriteRequest(
                    tenant=tenant,
                    subject=subject,
                    snapshot=SnapshotId(id_from_entropy(self._entropy.bytes(20))),
                    sequence=1,
                    wrapped_key=key.wrapped,
                    parts=(PartSource(PART, folder / PART, TAR_BLOCK_BYTES),),
                    parent=parent,
                    template=None,
                    requirements={},
                    meta={"kind": KIND, "template": name, "template_digest": digest},
                )
            )
        return stored.ref


def is_root_filesystem(meta: Mapping[str, Any]) -> bool:
    """Whether a snapshot with this meta is a root filesystem."""
    return meta.get("kind") == KIND
