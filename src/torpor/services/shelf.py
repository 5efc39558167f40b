"""The templates of a home as a shelf: what stands there, what of it nobody needs, and taking that away.

A golden snapshot's chunks are read by every session that was made of it, and its root filesystem lies below all of
them: so nothing that a session refers to, in whatever status, is ever removed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from torpor.domain.errors import Conflict, KeyDestroyed, NotFound
from torpor.domain.session import Session
from torpor.ports.catalog import Catalog, TemplateCatalog, TemplateRecord
from torpor.services.rootfs import META_FIELD
from torpor.services.templates import PUBLIC_TENANT
from torpor.store.snapshots import SnapshotRef, SnapshotStore


@dataclass(frozen=True, slots=True)
class Shelved:
    """A template. ``newest``: its name means it. ``sessions``: those made of it, that are not deleted."""

    record: TemplateRecord
    newest: bool
    sessions: tuple[Session, ...]


class Shelf:
    """``remove_rootfs`` is given the digest of a root filesystem that no template of the catalog has any more."""

    def __init__(
        self,
        catalog: Catalog,
        templates: TemplateCatalog,
        store: SnapshotStore,
        remove_rootfs: Callable[[str], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._templates = templates
        self._store = store
        self._remove_rootfs = remove_rootfs

    async def list(self) -> tuple[Shelved, ...]:
        """All templates, oldest first."""
        newest = {(found.name, found.digest) for found in await self._catalog.templates(PUBLIC_TENANT)}
        return tuple(
            [
                Shelved(
                    record,
                    (record.name, record.digest) in newest,
                    await self._templates.sessions_of_template(record.digest),
                )
                for record in await self._templates.all_templates(PUBLIC_TENANT)
            ]
        )

    async def inspect(self, name: str) -> Shelved:
        """One, by name or digest. Raises: NotFound listing what there is."""
        record = await self._catalog.template(PUBLIC_TENANT, name)
        newest = await self._catalog.template(PUBLIC_TENANT, record.name)
        sessions = await self._templates.sessions_of_template(record.digest)
        return Shelved(record, newest.digest == record.digest, sessions)

    async def remove(self, name: str) -> Shelved:
        """Remove one with all that is its own. Raises: NotFound; Conflict with the count if sessions were made of it.

        Repeating it after a failure goes on: the record goes last.
        """
        found = await self.inspect(name)
        if found.sessions:
            count = len(found.sessions)
            raise Conflict(
                f"cannot remove the template {found.record.name} ({found.record.digest[:12]}): {count} "
                f"session{'s are' if count > 1 else ' is'} made of it; delete them first",
                reason="template_in_use",
                sessions_count=count,
                sessions=[session.id for session in found.sessions[:20]],
            )
        await self._take_away(found.record)
        return found

    async def prune(self, *, dry_run: bool) -> tuple[Shelved, ...]:
        """Remove those that are not the newest of their name and that no session refers to. Returns them."""
        idle = tuple(found for found in await self.list() if not found.newest and not found.sessions)
        if not dry_run:
            for found in idle:
                await self._take_away(found.record)
        return idle

    async def _take_away(self, record: TemplateRecord) -> None:
        golden = SnapshotRef.from_json(record.golden)
        others = await self._templates.all_templates(PUBLIC_TENANT)
        if not any(other.digest == record.digest and other.name != record.name for other in others):
            await self._remove_stored_rootfs(golden)
            await self._remove_rootfs(record.digest)
        await self._store.delete_subject(golden.tenant, golden.subject)
        await self._templates.remove_template(record)

    async def _remove_stored_rootfs(self, golden: SnapshotRef) -> None:
        try:
            stored = (await self._store.open(golden)).meta.get(META_FIELD)
        except (NotFound, KeyDestroyed):
            return  # an earlier attempt came as far as that
        if stored is not None:
            ref = SnapshotRef.from_json(stored)
            await self._store.delete_subject(ref.tenant, ref.subject)
