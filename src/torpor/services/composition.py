"""The services of one node, composed once: over real adapters in ``apps.node``, over fakes in tests and simulations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torpor.domain.session import Durability
from torpor.ports.catalog import Catalog
from torpor.ports.clock import Clock
from torpor.ports.entropy import Entropy
from torpor.ports.guest import GuestDialer
from torpor.ports.keys import KeyStore
from torpor.ports.memory import Memory
from torpor.ports.rootfs import RootfsFolders
from torpor.ports.staging import Staging
from torpor.services.admission import Admission
from torpor.services.capture import Capture
from torpor.services.clockwork import Clockwork
from torpor.services.clones import Clones
from torpor.services.driver import Driver
from torpor.services.forks import Forks
from torpor.services.golden import GoldenForge
from torpor.services.images import Images
from torpor.services.live import Runtimes
from torpor.services.placement import Engines, Placement
from torpor.services.pool import Pool
from torpor.services.reconcile import Reconciler
from torpor.services.records import Records
from torpor.services.residents import Residents
from torpor.services.revival import Revival
from torpor.services.rootfs import Rootfs
from torpor.services.sessions import Sessions
from torpor.services.supervisor import Supervisor
from torpor.services.templates import Templates
from torpor.services.warm import Warm
from torpor.store.snapshots import SnapshotRef, SnapshotStore


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything that a node's services are handed. ``durability``: what a write to ``store`` is worth.

    ``rootfs_folders``: keeps root filesystems in the store and fetches those that are missing; None: all are here.
    """

    catalog: Catalog
    keys: KeyStore
    store: SnapshotStore
    staging: Staging
    memory: Memory
    engines: Engines
    dialer: GuestDialer
    clock: Clock
    entropy: Entropy
    rootfs_at: Callable[[str], Path]
    argv: tuple[str, ...]
    rootfs_folders: RootfsFolders | None = None
    durability: Durability = Durability.DISK
    pool_size: int = 1
    warm_bytes: int = 0
    clone_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Services:
    """One node's services. Nothing runs yet: ``reconciler`` comes first, ``clockwork`` last."""

    store: SnapshotStore
    sessions: Sessions
    forks: Forks
    templates: Templates
    reconciler: Reconciler
    clockwork: Clockwork
    records: Records
    runtimes: Runtimes
    pool: Pool
    residents: Residents
    clones: Clones
    warm: Warm


def compose(outside: Outside, supervisor: Supervisor) -> Services:
    """Every service over ``outside``; their background work belongs to ``supervisor``."""
    catalog, keys, store, clock = outside.catalog, outside.keys, outside.store, outside.clock
    origin = (clock, outside.entropy)
    runtimes, records = Runtimes(), Records(catalog, clock)
    pool = Pool(supervisor, outside.entropy, size=outside.pool_size)
    residents = Residents(store, outside.staging, clock)
    warm = Warm(budget_bytes=outside.warm_bytes)
    capture = Capture(store, outside.staging, clock, outside.entropy, residents)

    async def give_back(wanted_bytes: int) -> int:
        """Clones first: one saves some create a restore, a warm instance saves its own session a whole resume."""
        freed_bytes = await clones.give_back(wanted_bytes)
        return freed_bytes + await warm.give_back(max(0, wanted_bytes - freed_bytes))

    admission = Admission(outside.memory, clock, supervisor, give_back=give_back)
    supply = (pool, Images(store, outside.staging, residents), outside.staging, admission)
    placement = Placement(store, outside.engines, outside.dialer, supply, clock, supervisor)
    clones = Clones(placement, store, admission, (supervisor, *origin), budget_bytes=outside.clone_bytes)
    forge = GoldenForge(capture, outside.dialer, outside.staging, origin)
    folders = outside.rootfs_folders
    rootfs = None if folders is None else Rootfs(store, keys, folders, outside.entropy)
    templates = Templates(catalog, keys, forge, outside.rootfs_at, outside.argv, origin, rootfs)
    revival = Revival(placement, clones, warm, store, templates, clock)

    async def sweep_clones() -> None:
        """Another process may have removed a template, or captured it anew."""
        await clones.keep_only({SnapshotRef.from_json(record.golden) for record in await templates.list()})

    storage = (store, outside.durability)
    driver = Driver(records, runtimes, revival, warm, capture, storage, (supervisor, *origin))
    sessions = Sessions(catalog, keys, records, runtimes, driver, templates, origin)
    node = (outside.engines, outside.dialer, clock)
    upkeep = (admission.relieve, sweep_clones)
    return Services(
        store=store,
        sessions=sessions,
        forks=Forks(catalog, keys, store, (sessions, records, runtimes), driver, origin),
        templates=templates,
        reconciler=Reconciler(catalog, records, runtimes, driver, store, node),
        clockwork=Clockwork(catalog, records, runtimes, sessions, (supervisor, clock), upkeep),
        records=records,
        runtimes=runtimes,
        pool=pool,
        residents=residents,
        clones=clones,
        warm=warm,
    )
