"""After a start: make records and instances agree again. Nothing is trusted but the record, the store and the engine.

A server that died left records in passing statuses, instances that run on, and instances nobody will ever ask for.
Each record is settled by what can be proved: a committed snapshot, a guest that answers, or an instance that is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from torpor.domain.errors import Conflict, EngineError, NotFound, TorporError, Unavailable
from torpor.domain.ids import InstanceId
from torpor.domain.lifecycle import InstanceLost, OperationFailed, SnapshotStored
from torpor.domain.session import PAUSED, Session, Status
from torpor.ports.catalog import Catalog
from torpor.ports.clock import Clock
from torpor.ports.engine import Engine
from torpor.ports.guest import GuestDialer
from torpor.services.driver import Driver
from torpor.services.live import Live, Runtimes
from torpor.services.patience import destroy_surely, patiently
from torpor.services.placement import Engines
from torpor.services.records import Records
from torpor.services.snapshot_parts import record_of
from torpor.store.snapshots import SnapshotStore

log = structlog.get_logger()

_FINISHED = PAUSED | {Status.LOST, Status.DELETED}


@dataclass(slots=True)
class Settled:
    """What a reconciliation did, by session or instance id."""

    reattached: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    erased: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)


class Reconciler:
    """Runs once, before the first request is served."""

    def __init__(
        self,
        catalog: Catalog,
        records: Records,
        runtimes: Runtimes,
        driver: Driver,
        store: SnapshotStore,
        node: tuple[Engines, GuestDialer, Clock],
    ) -> None:
        self._catalog = catalog
        self._records = records
        self._runtimes = runtimes
        self._driver = driver
        self._store = store
        self._engines, self._dialer, self._clock = node

    async def run(self) -> Settled:
        """Settle every unfinished record, then destroy every instance that no record holds. Repeatable."""
        settled = Settled()
        owners: dict[InstanceId, Engine] = {}
        for engine in self._engines.by_build.values():
            owners |= dict.fromkeys(await engine.instances(), engine)
        held: set[InstanceId | None] = set()
        for session in await patiently(self._catalog.unfinished, Unavailable, deed="read what is unfinished"):
            try:
                await self._settle_patiently(session, owners, settled)
            except TorporError as error:
                log.error("session not reconciled", session=session.id, code=error.code, error=error.message)
                held.add(session.instance)  # for the next start: what it has must not be destroyed unseen
        held |= self._runtimes.instances()
        for instance, engine in owners.items():
            if instance not in held:
                await destroy_surely(engine, instance)
                settled.orphans.append(instance)
        return settled

    async def _settle_patiently(self, session: Session, owners: dict[InstanceId, Engine], settled: Settled) -> None:
        """Each try looks at the record anew: the one before may have changed it, and not come to its end."""

        async def settle() -> None:
            record = await self._catalog.get(session.tenant, session.id)
            if record.status not in _FINISHED:
                await self._settle(record, owners, settled)

        await patiently(settle, Unavailable, EngineError, deed=f"reconcile {session.id}")

    async def _settle(self, session: Session, owners: dict[InstanceId, Engine], settled: Settled) -> None:
        match session.status:
            case Status.CREATING:
                await self._fail(session, "the server stopped while it was created")
                await self._driver.erase(session)
                settled.erased.append(session.id)
            case Status.DELETING:
                await self._driver.erase(session)
                settled.erased.append(session.id)
            case Status.RESUMING:
                await self._fail(session, "the server stopped while it was resumed")
                settled.paused.append(session.id)
            case Status.PAUSING | Status.SNAPSHOTTING if await self._report_committed(session):
                settled.paused.append(session.id)
                if session.status is Status.SNAPSHOTTING:
                    await self._adopt(session, owners, settled, parked=True)
            case _:
                await self._adopt(session, owners, settled, parked=session.status is not Status.RUNNING)

    async def _report_committed(self, session: Session) -> bool:
        """If the capture of the current operation reached the store's pointer, the order did succeed: say so."""
        head = await self._store.head(session.tenant, session.id)
        if head is None or head.sequence != session.operation:
            return False
        snapshot = record_of(head, await self._store.open(head))
        report = SnapshotStored(session.generation, session.operation, snapshot, self._driver.durability)
        await self._records.apply(session.tenant, session.id, report)
        return True

    async def _adopt(
        self, session: Session, owners: dict[InstanceId, Engine], settled: Settled, *, parked: bool
    ) -> None:
        """Take a running instance over from the dead server, or record that it is gone."""
        engine = owners.get(session.instance) if session.instance is not None else None
        live = await self._attached(session, engine)
        if live is None:
            report = InstanceLost(
                session.generation, session.operation, "its instance was gone when the server started"
            )
            await self._records.apply(session.tenant, session.id, report)
            settled.lost.append(session.id)
            return
        self._runtimes.of(session.id).attach(live, session, now_s=self._clock.monotonic_s())
        record = session
        try:
            if parked:
                await self._fail(session, "the server stopped while it was captured")
                record = await self._catalog.get(session.tenant, session.id)
        except TorporError:
            self._runtimes.of(session.id).live = None
            await live.guest.close()  # the next try opens a channel of its own, and two readers would share one answer
            raise
        # Whatever the record says: a server that died after it stored ``running`` has left the guest parked.
        await self._driver.go_on(record, live)
        reattached = self._runtimes.of(session.id).live is live
        (settled.reattached if reattached else settled.lost).append(session.id)

    async def _attached(self, session: Session, engine: Engine | None) -> Live | None:
        if engine is None or session.instance is None:
            return None
        try:
            channel = await engine.attach(session.instance)
        except NotFound:
            return None
        guest = self._dialer.connect(session.instance, channel)
        return Live(session.instance, engine, guest, session.generation)

    async def _fail(self, session: Session, reason: str) -> None:
        report = OperationFailed(session.generation, session.operation, reason, Unavailable.code)
        try:
            await self._records.apply(session.tenant, session.id, report)
        except Conflict as error:
            log.warning("record moved on", session=session.id, error=error.message)
