"""The templates of a home as a shelf: what stands there, what of it nobody needs, and taking that away.

A golden snapshot's chunks are read by every session that was made of it, and its root filesystem lies below all of
them: so nothing that a session refers to, in whatever status, is ever removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from torpor.domain.errors import Conflict, Corrupt, KeyDestroyed, NotFound
from torpor.domain.session import Session
from torpor.ports.catalog import Catalog, TemplateCatalog, TemplateRecord
from torpor.services.rebuild import template_of
from torpor.services.rootfs import META_FIELD, is_root_filesystem
from torpor.services.templates import PUBLIC_TENANT
from torpor.store.snapshots import SnapshotRef, SnapshotStore, SubjectWithoutHead


@dataclass(frozen=True, slots=True)
class Shelved:
    """A template. ``newest``: its name means it. ``sessions``: those made of it, that are not deleted.

    ``superseded``: an earlier capture of a tree that was captured again since; its golden snapshot is all there is.
    """

    record: TemplateRecord
    newest: bool
    sessions: tuple[Session, ...]
    superseded: bool = False


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
        for old in await self._superseded((found,)):
            await self._remove_golden(old)
        await self._take_away(found.record)
        return found

    async def prune(self, *, dry_run: bool) -> tuple[Shelved, ...]:
        """Remove what is not the newest of its name and what no session refers to. Returns it.

        That is templates, and golden snapshots that a later capture of the same tree took the place of.
        """
        shelved = await self.list()
        idle = tuple(found for found in shelved if not found.newest and not found.sessions)
        superseded = await self._superseded(shelved)
        if not dry_run:
            for old in superseded:
                await self._remove_golden(old)
            for found in idle:
                await self._take_away(found.record)
        return (*idle, *(Shelved(old, newest=False, sessions=(), superseded=True) for old in superseded))

    async def _superseded(self, shelved: Iterable[Shelved]) -> tuple[TemplateRecord, ...]:
        """Earlier captures of these templates' trees, which the catalog has forgotten. None that a session may need.

        One that is being made is younger than the record that it will replace.
        """
        newest = {(found.record.name, found.record.digest): found.record for found in shelved if not found.sessions}
        superseded = []
        async for found in self._store.subjects():
            if isinstance(found, SubjectWithoutHead) or found.owner.tenant != PUBLIC_TENANT:
                continue
            if is_root_filesystem(found.manifest.meta):
                continue
            with contextlib.suppress(Corrupt):  # the store's check tells of it
                old = template_of(found)
                record = newest.get((old.name, old.digest))
                if record is not None and old.golden != record.golden and old.created_at_s < record.created_at_s:
                    superseded.append(old)
        return tuple(superseded)

    async def _remove_golden(self, record: TemplateRecord) -> None:
        golden = SnapshotRef.from_json(record.golden)
        await self._store.delete_subject(golden.tenant, golden.subject)

    async def _take_away(self, record: TemplateRecord) -> None:
        golden = SnapshotRef.from_json(record.golden)
        others = await self._templates.all_templates(PUBLIC_TENANT)
        if not any(other.digest == record.digest and other.name != record.name for other in others):
            await self._remove_stored_rootfs(golden)
            await self._remove_rootfs(record.digest)
        await self._remove_golden(record)
        await self._templates.remove_template(record)

    async def _remove_stored_rootfs(self, golden: SnapshotRef) -> None:
        try:
            stored = (await self._store.open(golden)).meta.get(META_FIELD)
        except (NotFound, KeyDestroyed):
            return  # an earlier attempt came as far as that
        if stored is not None:
            ref = SnapshotRef.from_json(stored)
            await self._store.delete_subject(ref.tenant, ref.subject)
