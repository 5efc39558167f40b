"""Templates: a root filesystem, started once, captured warm. Every session is a clone of that golden snapshot."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from torpor.domain.errors import NotFound, TorporError
from torpor.domain.ids import TenantId, id_from_entropy
from torpor.domain.session import Limits, Session, SnapshotRecord
from torpor.ports.catalog import Catalog, TemplateRecord
from torpor.ports.clock import Clock
from torpor.ports.engine import Engine, InstanceShape
from torpor.ports.entropy import Entropy
from torpor.ports.keys import KeyStore
from torpor.services.blueprint import Blueprint
from torpor.services.capture import CaptureOrder
from torpor.services.golden import Check, GoldenForge, Progress
from torpor.services.rootfs import META_FIELD, Rootfs
from torpor.store.snapshots import SnapshotRef

log = structlog.get_logger()

PUBLIC_TENANT = TenantId("public")


@dataclass(frozen=True, slots=True)
class RootFilesystem:
    """A built root filesystem. ``digest`` names it; ``path`` is where it lies on this node."""

    name: str
    digest: str
    path: Path


class Templates:
    """Builds golden snapshots and hands out what sessions are made from."""

    def __init__(
        self,
        catalog: Catalog,
        keys: KeyStore,
        forge: GoldenForge,
        rootfs_at: Callable[[str], Path],
        argv: tuple[str, ...],
        origin: tuple[Clock, Entropy],
        rootfs: Rootfs | None = None,
    ) -> None:
        """``rootfs``: keeps root filesystems in the store and fetches those that this node lacks; None: it has all."""
        self._catalog = catalog
        self._keys = keys
        self._forge = forge
        self._rootfs_at = rootfs_at
        self._rootfs = rootfs
        self._argv = argv
        self._clock, self._entropy = origin

    async def list(self) -> tuple[TemplateRecord, ...]:
        """The public templates of this server."""
        return await self._catalog.templates(PUBLIC_TENANT)

    async def blueprint(self, tenant: TenantId, name: str) -> Blueprint:
        """What a new session of template ``name`` (or digest) is made from. Raises: NotFound listing what there is."""
        del tenant  # templates of a tenant's own come later; the public ones serve all
        record = await self._catalog.template(PUBLIC_TENANT, name)
        return await self._blueprint(record, Limits(**record.shape))

    async def blueprint_of(self, session: Session) -> Blueprint:
        """What ``session`` was made from, also when its template's name has moved on to a newer digest."""
        return await self._blueprint(
            await self._catalog.template(PUBLIC_TENANT, session.template_digest), session.limits
        )

    async def _blueprint(self, record: TemplateRecord, limits: Limits) -> Blueprint:
        golden = SnapshotRef.from_json(record.golden)
        rootfs = self._rootfs_at(record.digest)
        if self._rootfs is not None:
            rootfs = await self._rootfs.at(record.digest, golden)
        if not rootfs.is_dir():
            raise NotFound(
                f"template {record.name} ({record.digest[:12]}) has lost its root filesystem at {rootfs}; "
                f"rebuild it with `torpor template build {record.name}`",
                template=record.name,
            )
        frozen = self._shape(rootfs, Limits(**record.shape))
        shape = replace(frozen, cpus=limits.cpus, memory_bytes=limits.memory_bytes, shared_bytes=frozen.shm_bytes)
        return Blueprint(record, golden, shape)

    def _shape(self, rootfs: Path, limits: Limits) -> InstanceShape:
        return InstanceShape(
            rootfs=rootfs,
            argv=self._argv,
            env=("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"),
            memory_bytes=limits.memory_bytes,
            disk_bytes=limits.disk_bytes,
            cpus=limits.cpus,
            pids_max=limits.pids_max,
        )

    async def capture_golden(
        self,
        rootfs: RootFilesystem,
        engine: Engine,
        limits: Limits,
        progress: Progress,
        *,
        check: Check | None = None,
    ) -> tuple[TemplateRecord, SnapshotRecord]:
        """Start the root filesystem cold, warm it, capture it, and store the template. Leaves no instance behind.

        ``check``: must return before the capture. What fails leaves the name as it was, and nothing in the store.
        """
        async with contextlib.AsyncExitStack() as undo:
            record, snapshot = await self._captured(rootfs, engine, limits, progress, check, undo)
            undo.pop_all()
        await self._catalog.put_template(record)
        return record, snapshot

    async def _captured(
        self,
        rootfs: RootFilesystem,
        engine: Engine,
        limits: Limits,
        progress: Progress,
        check: Check | None,
        undo: contextlib.AsyncExitStack,
    ) -> tuple[TemplateRecord, SnapshotRecord]:
        subject = id_from_entropy(self._entropy.bytes(20))
        key = await self._keys.create(PUBLIC_TENANT, subject)
        undo.push_async_callback(self._shred, subject)
        created_at_s = self._clock.wall_s()
        kept = await self._kept(rootfs, progress, undo)
        order = CaptureOrder(
            tenant=PUBLIC_TENANT,
            subject=subject,
            sequence=1,
            wrapped_key=key.wrapped,
            meta={
                "template": rootfs.name,
                "template_digest": rootfs.digest,
                "created_at_s": created_at_s,
                "shape": _limits_json(limits),
                **kept,
            },
        )
        shape = self._shape(rootfs.path, limits)
        snapshot = await self._forge.forge(engine, shape, order, progress, check=check)
        capabilities = await engine.capabilities()
        record = TemplateRecord(
            tenant=PUBLIC_TENANT,
            name=rootfs.name,
            digest=rootfs.digest,
            created_at_s=created_at_s,
            wrapped_key=base64.b64encode(key.wrapped).decode(),
            golden=snapshot.ref,
            engine_build=capabilities.build,
            image_bytes=snapshot.image_bytes,
            shape=_limits_json(limits),
        )
        return record, snapshot

    async def _shred(self, subject: str) -> None:
        """After a failed capture, which has removed its own objects."""
        try:
            await self._keys.destroy(PUBLIC_TENANT, subject)
        except TorporError as error:  # the failure itself is what has to be told
            log.warning("a failed build left a key", subject=subject, code=error.code, error=error.message)

    async def _kept(
        self, rootfs: RootFilesystem, progress: Progress, undo: contextlib.AsyncExitStack
    ) -> Mapping[str, Any]:
        """The root filesystem in the store: what the golden snapshot says of it."""
        if self._rootfs is None:
            return {}
        records = sorted(
            await self._catalog.templates(PUBLIC_TENANT),
            key=lambda record: (record.name == rootfs.name, record.created_at_s),
            reverse=True,
        )
        try:
            same = SnapshotRef.from_json((await self._catalog.template(PUBLIC_TENANT, rootfs.digest)).golden)
        except NotFound:
            same = None
        await progress("storing the root filesystem")
        alike = [SnapshotRef.from_json(record.golden) for record in records]
        kept = await self._rootfs.keep(PUBLIC_TENANT, rootfs.name, rootfs.digest, same=same, alike=alike)
        if kept.is_new:
            undo.push_async_callback(self._rootfs.remove, kept.ref)
        return {META_FIELD: kept.ref.to_json()}


def _limits_json(limits: Limits) -> dict[str, Any]:
    return {
        "cpus": limits.cpus,
        "memory_bytes": limits.memory_bytes,
        "disk_bytes": limits.disk_bytes,
        "pids_max": limits.pids_max,
    }
