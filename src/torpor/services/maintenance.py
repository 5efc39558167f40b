"""What an operator asks of a store: collect garbage, rebuild the catalog, export a session, import one.

One class for the API and the CLI. Works beside running sessions; nothing here places or captures.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from torpor.domain.errors import Conflict, InvalidArgument, NotFound, TorporError, Unsupported
from torpor.domain.ids import SessionId, SnapshotId, TenantId, id_from_entropy, parse_name
from torpor.domain.session import Durability, Session
from torpor.domain.snapshot import Lender, SnapshotRef
from torpor.ports.catalog import Catalog
from torpor.ports.clock import Clock
from torpor.ports.entropy import Entropy
from torpor.ports.keys import KeyStore
from torpor.services.checks import check_entries, check_policy, name_taken
from torpor.services.rebuild import Rebuilt, rebuild_catalog, session_of
from torpor.services.templates import PUBLIC_TENANT
from torpor.store.garbage import GRACE_S, KEEP_COUNT
from torpor.store.snapshots import (
    Exported,
    HeadChoice,
    ImportRequest,
    SnapshotStore,
    SubjectHead,
    SubjectWithoutHead,
    SweepReport,
    SweepRequest,
)

IMPORTED_SEQUENCE = 1


@dataclass(frozen=True, slots=True)
class ExportedSession:
    """An export under way: ``pieces`` are the bytes of its file, ``filename`` a proposal; ``source`` what is in it."""

    source: SnapshotRef
    filename: str
    image_bytes: int
    pieces: AsyncIterator[bytes]


class Maintenance:
    """Operations on the store of a server. ``durability``: what a snapshot in it is worth."""

    def __init__(
        self,
        store: SnapshotStore,
        catalog: Catalog,
        keys: KeyStore,
        durability: Durability,
        origin: tuple[Clock, Entropy],
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._keys = keys
        self._durability = durability
        self._clock, self._entropy = origin

    async def collect_garbage(
        self, *, dry_run: bool = False, grace_s: float = GRACE_S, keep: int = KEEP_COUNT
    ) -> SweepReport:
        """Remove what has been without use for the grace; a dry run says what would go now, what later, and why.

        Raises: InvalidArgument; Conflict if another collection runs.
        """
        if grace_s < 0:
            raise InvalidArgument(f"cannot use a grace of {grace_s} s: give 0 or more", field="grace_s")
        if keep < 1:
            raise InvalidArgument(f"cannot keep {keep} snapshots of a session: give 1 or more", field="keep")
        abandoned, held = await self._known()
        return await self._store.collect_garbage(
            SweepRequest(grace_s=grace_s, keep=keep, dry_run=dry_run, abandoned=abandoned, held=held)
        )

    async def rebuild_catalog(self) -> Rebuilt:
        """Insert the sessions and templates that the store has and the catalog lacks. Idempotent."""
        return await rebuild_catalog(self._store, self._catalog, self._clock, self._durability)

    async def export_session(self, session: Session, passphrase: str) -> ExportedSession:
        """The session's newest snapshot as a file. What runs is not looked at: pause or snapshot first.

        Raises: Conflict if it has none yet; InvalidArgument for a short passphrase, once ``pieces`` are read.
        """
        if session.snapshot is None:
            raise Conflict(
                f"cannot export {session.name or session.id}: it has no snapshot yet; pause it first",
                reason="no_snapshot",
                session=session.id,
            )
        ref = SnapshotRef.from_json(session.snapshot.ref)
        filename = f"{session.name or session.id}-{session.snapshot.sequence}.torpor"
        pieces = self._store.export(ref, passphrase)
        return ExportedSession(ref, filename, session.snapshot.image_bytes, pieces)

    async def import_session(
        self, tenant: TenantId, pieces: AsyncIterator[bytes], passphrase: str, *, name: str | None = None
    ) -> Session:
        """A new paused session out of an export's bytes: new id, new key. Nothing is overwritten, or left on failure.

        ``name``: none if absent, whatever the exported session was called.
        Raises: InvalidArgument for a wrong passphrase; NotFound if the template is not here, by its digest; Conflict
        for a taken name; Corrupt for a cut or altered file; Unsupported if it is no session's.
        """
        if name is not None:
            parse_name(name, field="name")
            if await self._catalog.find(tenant, name) is not None:
                raise name_taken(name)
        session = SessionId(id_from_entropy(self._entropy.bytes(20)))

        async def admit(exported: Exported) -> ImportRequest:
            await self._check(exported)
            key = await self._keys.create(tenant, session)
            return ImportRequest(
                tenant=tenant,
                subject=session,
                snapshot=SnapshotId(id_from_entropy(self._entropy.bytes(20))),
                wrapped_key=key.wrapped,
                sequence=IMPORTED_SEQUENCE,
                # A new session: no clock, lineage or numbering of the exported one goes on.
                meta={
                    "name": name,
                    "generation": 0,
                    "operation": IMPORTED_SEQUENCE,
                    "created_at_s": self._clock.wall_s(),
                    "hard_deadline_at_s": None,
                    "forked_from": None,
                },
            )

        try:
            stored = await self._store.import_(pieces, passphrase, admit)
            return await self._catalog.insert(await self._record(stored.ref))
        except TorporError:
            await self._store.delete_subject(tenant, session)
            raise

    async def _record(self, ref: SnapshotRef) -> Session:
        """Paused now: the time that a file lay about is not the session's. What a file says is checked as a request is.

        Raises: Corrupt, InvalidArgument, Unsupported.
        """
        found = SubjectHead(Lender(ref.tenant, ref.subject), HeadChoice.POINTER, ref, await self._store.open(ref))
        session = session_of(found, self._clock.wall_s(), self._durability, is_imported=True)
        check_policy(session.policy, None)
        check_entries("metadata", session.metadata)
        check_entries("env", session.env)
        return session

    async def _check(self, exported: Exported) -> None:
        digest = exported.meta.get("template_digest")
        if not isinstance(digest, str) or "instant_s" not in exported.meta:
            raise Unsupported("cannot import: the file holds no session")
        try:
            await self._catalog.template(PUBLIC_TENANT, digest)
        except NotFound as error:
            name = exported.meta.get("template", "")
            raise NotFound(
                f"cannot import: the session needs template {name} with root filesystem {digest}, which is not here; "
                f"build it, or rebuild the catalog of a store that has it, and import again",
                template=name,
                digest=digest,
            ) from error

    async def _known(self) -> tuple[list[Lender], list[SnapshotRef]]:
        """Subjects that are nobody's, and the snapshots that records name, which may lag behind the store's pointers.

        Nobody's are those without pointer that the catalog lacks, but only where it knows all others, one at least: a
        catalog that is behind the store (lost, or another server's) says nothing about who is abandoned.
        """
        headless: list[Lender] = []
        held: list[SnapshotRef] = []
        is_behind = False
        async for found in self._store.subjects():
            if found.owner.tenant == PUBLIC_TENANT:
                continue
            session = await self._known_as(found.owner)
            if session is not None:
                held += [] if session.snapshot is None else [SnapshotRef.from_json(session.snapshot.ref)]
            elif isinstance(found, SubjectHead) and found.choice is HeadChoice.NO_POINTER:
                headless.append(found.owner)
            elif not (isinstance(found, SubjectWithoutHead) and found.is_destroyed):
                is_behind = True
        return [] if is_behind or not held else headless, held

    async def _known_as(self, owner: Lender) -> Session | None:
        try:
            return await self._catalog.get(owner.tenant, SessionId(owner.subject))
        except NotFound:
            return None
