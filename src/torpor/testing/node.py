"""A whole node over fakes: the real services and store, a fake engine with fake guests, memory for everything else.

It can die and come back: ``FakeMachine`` is what outlives a server (instances, objects, keys, catalog), ``open_fake``
is the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from torpor.adapters.catalog.memory import MemoryCatalog
from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.fake import FakeEngine, FakeHost
from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.adapters.guest.client import FramedDialer
from torpor.adapters.keys.memory import MemoryKeys
from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.session import Limits
from torpor.ports.objects import ObjectStore
from torpor.services.capture import Capture
from torpor.services.driver import Driver
from torpor.services.golden import GoldenForge
from torpor.services.live import Runtimes
from torpor.services.placement import Engines, Placement
from torpor.services.pool import Pool
from torpor.services.reconcile import Reconciler, Settled
from torpor.services.records import Records
from torpor.services.residents import Residents
from torpor.services.sessions import Sessions
from torpor.services.supervisor import Supervisor
from torpor.services.templates import RootFilesystem, Templates
from torpor.store.snapshots import SnapshotStore
from torpor.testing.fake_guest import FakeGuestProgram

PROGRAM = "fake-guest"
TEMPLATE = "data"


class FolderStaging:
    """``ports.staging.Staging`` in an ordinary folder: tests hold no secrets."""

    @contextlib.asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """See the port."""
        with tempfile.TemporaryDirectory(prefix="torpor-test-") as path:
            yield Path(path)

    def take_blank(self, target: Path, size_bytes: int) -> bool:
        """See the port: there is none."""
        del target, size_bytes
        return False

    async def replenish(self) -> None:
        """See the port."""


@dataclass(slots=True)
class FakeMachine:
    """What outlives a server. ``objects`` may be replaced by a wrapper that fails."""

    host: FakeHost = field(default_factory=FakeHost)
    objects: ObjectStore = field(default_factory=MemoryObjects)
    entropy: SeededEntropy = field(default_factory=lambda: SeededEntropy(7))
    catalog: MemoryCatalog = field(default_factory=MemoryCatalog)
    keys: MemoryKeys | None = None

    def key_store(self) -> MemoryKeys:
        """The machine's keys, made on first use."""
        self.keys = self.keys or MemoryKeys(self.entropy)
        return self.keys


@dataclass(frozen=True, slots=True)
class FakeNode:
    """A running server over a machine, with what tests look into."""

    sessions: Sessions
    templates: Templates
    engine: FakeEngine
    store: SnapshotStore
    pool: Pool
    settled: Settled


@contextlib.asynccontextmanager
async def open_fake(machine: FakeMachine, *, pool_size: int = 1) -> AsyncIterator[FakeNode]:
    """A server over ``machine``; leaving the block is a crash: nothing is paused, channels are let go."""
    clock = SystemClock()
    engine = FakeEngine({PROGRAM: FakeGuestProgram}, clock, host=machine.host)
    store = SnapshotStore(machine.objects, machine.key_store(), machine.entropy, clock)
    dialer, staging, origin = FramedDialer(clock), FolderStaging(), (clock, machine.entropy)
    engines = Engines({(await engine.capabilities()).build: engine}, (await engine.capabilities()).build)
    runtimes, records = Runtimes(), Records(machine.catalog, clock)
    async with Supervisor() as supervisor:
        pool = Pool(supervisor, machine.entropy, size=pool_size)
        capture = Capture(store, staging, clock, machine.entropy)
        residents = Residents(store, staging)
        placement = Placement(store, engines, dialer, staging, (pool, residents), clock, supervisor)
        driver = Driver(records, runtimes, placement, capture, store, supervisor, origin)
        templates = Templates(
            machine.catalog,
            machine.key_store(),
            GoldenForge(capture, dialer, staging, origin),
            lambda _digest: Path("/"),
            (PROGRAM,),
            origin,
        )
        sessions = Sessions(machine.catalog, machine.key_store(), records, runtimes, driver, templates, origin)
        reconciler = Reconciler(machine.catalog, records, runtimes, driver, store, engines, dialer)
        settled = await reconciler.run()
        if not await templates.list():
            await templates.capture_golden(RootFilesystem(TEMPLATE, "d" * 64, Path("/")), engine, Limits(), _silent)
        try:
            yield FakeNode(sessions, templates, engine, store, pool, settled)
        finally:
            for live in runtimes.all_live():
                await live.guest.close()
            await supervisor.settle()
            await residents.drop()


async def _silent(_line: str) -> None:
    await asyncio.sleep(0)
