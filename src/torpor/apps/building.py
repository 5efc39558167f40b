"""Building templates on a home: what a declaration's base stands for, the root filesystem, the golden snapshot."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torpor.adapters.templates import (
    DEBIAN,
    TEMPLATES,
    Ground,
    Place,
    TemplateSpec,
    build_rootfs,
    built_rootfs,
    lay_tar,
    oci_ground,
    remove_tree,
)
from torpor.domain.errors import Conflict, InvalidArgument, NotFound, Unsupported
from torpor.domain.ids import SessionId, TenantId
from torpor.domain.session import Session, SnapshotRecord
from torpor.ports.catalog import Catalog, TemplateCatalog, TemplateRecord
from torpor.ports.clock import Clock
from torpor.ports.engine import Engine
from torpor.ports.staging import Staging
from torpor.services.readiness import Readiness
from torpor.services.shelf import Shelf
from torpor.services.snapshot_parts import filesystem_file
from torpor.services.templates import PUBLIC_TENANT, RootFilesystem, Templates
from torpor.store.snapshots import SnapshotRef, SnapshotStore

Progress = Callable[[str], None]
OWNER = TenantId("default")
OCI, SESSION = "oci", "session"


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a build needs of a node. ``templates_dir``: where finished root filesystems lie."""

    templates: Templates
    catalog: Catalog
    template_catalog: TemplateCatalog
    store: SnapshotStore
    staging: Staging
    engine: Engine
    clock: Clock
    templates_dir: Path
    guest_lib: Path

    @property
    def shelf(self) -> Shelf:
        """The templates that are there."""
        return Shelf(self.catalog, self.template_catalog, self.store, self._remove_rootfs)

    async def build(
        self, spec: TemplateSpec, progress: Progress, *, fresh: bool = False
    ) -> tuple[TemplateRecord, SnapshotRecord]:
        """Build the root filesystem and capture its golden snapshot; only then does the name mean it.

        Raises: NotFound (the base), InvalidArgument, Unsupported, Conflict (a session without a snapshot), EngineError,
        GuestError (warm-up, ready check), StorageFull.
        """
        kind, _, rest = spec.base.partition(":")
        if kind == SESSION and rest:
            async with self.staging.folder() as folder:
                return await self._build(spec, await self._session_ground(rest, folder), progress, fresh=fresh)
        ground = await oci_ground(Path(rest)) if kind == OCI and rest else await self._template_ground(spec.base)
        return await self._build(spec, ground, progress, fresh=fresh)

    async def _build(
        self, spec: TemplateSpec, ground: Ground | None, progress: Progress, *, fresh: bool
    ) -> tuple[TemplateRecord, SnapshotRecord]:
        built = await build_rootfs(
            spec, self.templates_dir, guest_lib=self.guest_lib, progress=progress, fresh=fresh, ground=ground
        )

        async def said(line: str) -> None:
            progress(line)

        ready = spec.ready
        check = Readiness(self.clock, ready.timeout_s, ready.command, ready.code) if ready else None
        rootfs = RootFilesystem(name=spec.name, digest=built.digest, path=built.rootfs)
        return await self.templates.capture_golden(rootfs, self.engine, spec.limits, said, check=check)

    async def _template_ground(self, base: str) -> Ground | None:
        """None for what the builder knows itself. Raises: NotFound."""
        if base == DEBIAN or base in TEMPLATES:
            return None
        try:
            blueprint = await self.templates.blueprint(PUBLIC_TENANT, base)
        except NotFound as error:
            raise NotFound(
                f"cannot find the base {base!r}: give {DEBIAN}, {', '.join(sorted(TEMPLATES))}, a template of this "
                "home by name or digest, oci:FILE or session:ID",
                field="base",
            ) from error
        return self._standing_on(blueprint.template.digest)

    def _standing_on(self, digest: str) -> Ground:
        below = built_rootfs(self.templates_dir, digest)
        return Ground(
            inputs=["template", digest],
            tree=below.rootfs,
            env=below.env,
            warmup=below.warmup,
            user=below.user,
            workdir=below.workdir,
            of_this_host=below.of_this_host,
        )

    async def _session_ground(self, ref: str, folder: Path) -> Ground:
        """A session's files over those of its template. ``folder``: memory-backed, for the time of the build."""
        session = await self._session(ref)
        if session.snapshot is None:
            raise Conflict(
                f"cannot build from the session {ref}: it has no snapshot; pause it or take one with "
                f"`torpor snapshot {ref}`",
                reason="no_snapshot",
            )
        snapshot = SnapshotRef.from_json(session.snapshot.ref)
        part = filesystem_file((await self.store.open(snapshot)).meta)
        if part is None:
            raise Unsupported(f"cannot build from the session {ref}: its engine build has no filesystem part")
        await self.templates.blueprint_of(session)  # fetches the root filesystem if this node lacks it
        tar = (await self.store.read(snapshot, folder, parts=[part])).files[part]

        async def fill(place: Place) -> None:
            await lay_tar(place, tar)

        below = self._standing_on(session.template_digest)
        return replace(
            below,
            inputs=["session", session.template_digest, dict(session.snapshot.ref)],
            fill=fill,
            what=f"laying the files of the session over its template {session.template}",
            kept=False,
        )

    async def _session(self, ref: str) -> Session:
        found = await self.catalog.find(OWNER, ref)
        if found is None:
            try:
                found = await self.catalog.get(OWNER, SessionId(ref))
            except NotFound as error:
                raise InvalidArgument(f"cannot build from the session {ref!r}: there is none", field="base") from error
        return found

    async def _remove_rootfs(self, digest: str) -> None:
        folder = self.templates_dir.resolve()
        going = folder / f".building-gone-{digest[:12]}"  # what is left of it, the next build removes
        with contextlib.suppress(FileNotFoundError):
            (folder / digest).rename(going)
            await asyncio.to_thread(remove_tree, going)
