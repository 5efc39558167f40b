"""Who needs which engine build: a memory restores only under the build that took it, so a build outlives its upgrades.

Retiring one leaves the disks of those sessions: each comes back as ``restored_filesystem``, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from torpor.domain.errors import Conflict, TorporError
from torpor.domain.session import PAUSED, Session, Status
from torpor.ports.catalog import Catalog, TemplateCatalog, TemplateRecord
from torpor.services.snapshot_parts import filesystem_file, memory_build
from torpor.services.templates import PUBLIC_TENANT
from torpor.store.snapshots import Manifest, SnapshotRef, SnapshotStore

RESTING = PAUSED | {Status.LOST}


@dataclass(frozen=True, slots=True)
class BuildUse:
    """``resting``: paused or lost sessions whose memory needs it. ``diskless``: those of them that have nothing else.

    ``awake``: sessions that have an instance, or are about to, and may need it. ``templates``: whose golden snapshot
    needs it: no session is made of them under another build.
    """

    resting: tuple[Session, ...] = ()
    diskless: tuple[Session, ...] = ()
    awake: tuple[Session, ...] = ()
    templates: tuple[TemplateRecord, ...] = ()


class Builds:
    """Counts over a catalog and, for records that do not say their build, the store."""

    def __init__(self, catalog: Catalog, templates: TemplateCatalog, store: SnapshotStore) -> None:
        self._catalog = catalog
        self._templates = templates
        self._store = store

    async def use(self, build: str) -> BuildUse:
        """Who needs ``build`` now."""
        templates = await self._templates.all_templates(PUBLIC_TENANT)
        sessions: dict[str, Session] = {}
        for digest in {template.digest for template in templates}:
            found = await self._templates.sessions_of_template(digest)
            sessions |= {session.id: session for session in found}
        resting, diskless, awake = [], [], []
        golden_builds = {template.digest: template.engine_build for template in templates}
        for session in sorted(sessions.values(), key=lambda one: one.created_at_s):
            if session.status not in RESTING:
                if build in {await self._build_of(session), golden_builds[session.template_digest]}:
                    awake.append(session)
            elif await self._build_of(session) == build:
                resting.append(session)
                if not await self._has_disk(session):
                    diskless.append(session)
        of_build = tuple(template for template in templates if template.engine_build == build)
        return BuildUse(tuple(resting), tuple(diskless), tuple(awake), of_build)

    async def check_retirable(self, build: str, installed: tuple[str, ...], *, agreed: bool) -> BuildUse:
        """What retiring ``build`` steps down. Raises: Conflict with counts and remedy, also unless ``agreed``."""
        use = await self.use(build)
        if use.awake:
            raise _refused(build, use, "build_in_use", f"{len(use.awake)} sessions run on it; pause or delete them")
        if use.diskless:
            why = f"{len(use.diskless)} paused sessions have no filesystem part and would be lost; delete them first"
            raise _refused(build, use, "build_holds_memory", why)
        if len(installed) == 1:
            why = "it is the only one; install another first with `torpor engine install gvisor`"
            raise _refused(build, use, "only_build", why)
        if (use.resting or use.templates) and not agreed:
            why = (
                f"{len(use.resting)} paused sessions would lose their processes and keep their disk, and "
                f"{len(use.templates)} templates would have to be built again; repeat with --yes if that is meant"
            )
            raise _refused(build, use, "build_needed", why)
        return use

    async def _build_of(self, session: Session) -> str:
        """Of its newest snapshot's memory; empty if there is none, or if nobody can say."""
        if session.snapshot is None:
            return ""
        if session.snapshot.engine_build:
            return session.snapshot.engine_build
        manifest = await self._manifest(session)
        return "" if manifest is None else memory_build(manifest)

    async def _has_disk(self, session: Session) -> bool:
        manifest = await self._manifest(session)
        return manifest is not None and filesystem_file(manifest.meta) is not None

    async def _manifest(self, session: Session) -> Manifest | None:
        assert session.snapshot is not None
        try:
            return await self._store.open(SnapshotRef.from_json(session.snapshot.ref))
        except TorporError:  # `torpor store check` says more; under no build it comes back
            return None


def _refused(build: str, use: BuildUse, reason: str, why: str) -> Conflict:
    return Conflict(
        f"cannot retire {build}: {why}",
        reason=reason,
        build=build,
        sessions_count=len(use.resting),
        awake_count=len(use.awake),
        diskless=[session.id for session in use.diskless[:20]],
        templates=[template.name for template in use.templates],
    )
