"""Forks: copies of a session that share its past and nothing else.

A fork is durable before it runs: its own manifest, under its own key, names the chunks of its source, so that the
source may be deleted at any time. A running source is captured live first and goes on: no fork is older than the call.
"""

from __future__ import annotations

import asyncio
import base64

from torpor.domain.errors import Conflict, TorporError, Unsupported
from torpor.domain.ids import SessionId, SnapshotId, TenantId, id_from_entropy
from torpor.domain.lifecycle import Adopt
from torpor.domain.session import Persistence, Session, SnapshotRecord, Status
from torpor.ports.catalog import Catalog
from torpor.ports.clock import Clock
from torpor.ports.crash_points import CrashPoint, reach
from torpor.ports.entropy import Entropy
from torpor.ports.keys import KeyStore
from torpor.services.births import bear
from torpor.services.checks import check_fork, name_taken
from torpor.services.driver import Driver, session_meta
from torpor.services.live import Runtimes
from torpor.services.records import Records, conflict
from torpor.services.requests import ForkRequest, Resumption
from torpor.services.sessions import Sessions
from torpor.store.forking import ForkRequest as StoreForkRequest
from torpor.store.snapshots import SnapshotRef, SnapshotStore

Forked = tuple[Session, Resumption]


class Forks:
    """Makes forks on this node."""

    def __init__(
        self,
        catalog: Catalog,
        keys: KeyStore,
        store: SnapshotStore,
        work: tuple[Sessions, Records, Runtimes],
        driver: Driver,
        origin: tuple[Clock, Entropy],
    ) -> None:
        self._catalog = catalog
        self._keys = keys
        self._store = store
        self._sessions, self._records, self._runtimes = work
        self._driver = driver
        self._clock, self._entropy = origin

    async def fork(self, tenant: TenantId, ref: str, request: ForkRequest) -> tuple[Forked, ...]:
        """Running copies of a session as it is now; it goes on, or stays paused. All of them, or none.

        It goes on to its end although the caller is cancelled.

        Raises: InvalidArgument, NotFound, Conflict (a name; a status without a newest state), Unsupported (ephemeral);
        what a capture and a placement raise.
        """
        check_fork(request)
        source = await self._sessions.get(tenant, ref)
        if source.persistence is Persistence.EPHEMERAL:
            raise Unsupported(f"cannot fork session {source.id}: it is ephemeral, nothing of it is ever stored")
        if source.status is Status.LOST:
            raise Conflict(
                f"cannot fork session {source.id}: it lost its newest state; resume it with allow_older first",
                reason="cannot_fork_while_lost",
                session=source.id,
            )
        for name in request.names:
            if await self._catalog.find(tenant, name) is not None:
                raise name_taken(name)
        return await self._driver.finish(self._forked(source, request), name=f"fork:{source.id}")

    async def _forked(self, source: Session, request: ForkRequest) -> tuple[Forked, ...]:
        source = await self._sessions.snapshot(source.tenant, source.id)
        assert source.snapshot is not None
        names: tuple[str | None, ...] = request.names or (None,) * request.count
        outcomes = await asyncio.gather(
            *(self._fork(source, source.snapshot, name, request) for name in names), return_exceptions=True
        )
        made = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failed:
            await asyncio.gather(*(self._sessions.delete(session.tenant, session.id) for session, _ in made))
            await self._check_still_there(source)
            raise failed[0]
        return tuple(made)

    async def _check_still_there(self, source: Session) -> None:
        """A source that is deleted meanwhile takes its key and objects with it: that is what there is to say then.

        Raises: NotFound, Conflict.
        """
        now = await self._sessions.get(source.tenant, source.id)
        if now.status is Status.DELETING:
            raise conflict(now, "deleted_while_forked")

    async def _fork(self, source: Session, snapshot: SnapshotRecord, name: str | None, request: ForkRequest) -> Forked:
        # The record first: what a crash leaves of the fork has an owner who will be erased.
        session = await bear(self._catalog, self._keys, self._record(source, name, request))
        reach(CrashPoint.FORK_INSERTED)
        try:
            # Who deletes the fork meanwhile removes its objects after the last of them is written, not before.
            async with self._runtimes.of(session.id).placing:
                copied = await self._copied(session, snapshot)
                reach(CrashPoint.FORK_STORED)
                adopted = await self._records.apply(session.tenant, session.id, Adopt(copied, self._driver.durability))
        except TorporError:
            await self._driver.erase(session)
            raise
        reach(CrashPoint.FORK_RECORDED)
        return await self._driver.create(adopted.session, source=SnapshotRef.from_json(snapshot.ref))

    async def _copied(self, session: Session, snapshot: SnapshotRecord) -> SnapshotRecord:
        """The source's snapshot as the fork's own."""
        stored = await self._store.fork(
            StoreForkRequest(
                source=SnapshotRef.from_json(snapshot.ref),
                tenant=session.tenant,
                subject=session.id,
                snapshot=SnapshotId(id_from_entropy(self._entropy.bytes(20))),
                sequence=0,  # before its first operation
                wrapped_key=base64.b64decode(session.wrapped_key),
                meta=session_meta(session),
            )
        )
        return SnapshotRecord(
            ref=stored.ref.to_json(),
            sequence=0,
            instant_s=snapshot.instant_s,
            image_bytes=stored.image_bytes,
            new_bytes=stored.new_bytes,
            engine_build=snapshot.engine_build,
        )

    def _record(self, source: Session, name: str | None, request: ForkRequest) -> Session:
        """A new life with the source's settings. A hard deadline is inherited: a fork must not outlive a stated end."""
        return Session(
            id=SessionId(id_from_entropy(self._entropy.bytes(20))),
            tenant=source.tenant,
            template=source.template,
            template_digest=source.template_digest,
            created_at_s=self._clock.wall_s(),
            name=name,
            persistence=source.persistence,
            limits=source.limits,
            metadata={**source.metadata, **request.metadata},
            env=source.env,
            policy=source.policy,
            hard_deadline_at_s=source.hard_deadline_at_s,
            forked_from=source.id,
        )
