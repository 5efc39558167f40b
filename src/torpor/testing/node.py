"""A whole node over fakes: the real services and store, a fake engine with fake guests, memory for everything else.

It can die and come back: ``FakeMachine`` is what outlives a server (instances, objects, keys, catalog), ``open_fake``
is the server. ``assemble`` composes the services over any ports; the simulated world hands in ports that fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torpor.adapters.catalog.memory import MemoryCatalog
from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.fake import FakeEngine, FakeHost
from torpor.adapters.engines.fake.engine import DEFAULT_CAPABILITIES
from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.adapters.guest.client import FramedDialer
from torpor.adapters.host.memory import SetMemory
from torpor.adapters.keys.memory import MemoryKeys
from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.session import Limits
from torpor.ports.catalog import Catalog
from torpor.ports.clock import Clock
from torpor.ports.engine import Engine
from torpor.ports.entropy import Entropy
from torpor.ports.keys import KeyStore
from torpor.ports.memory import Memory
from torpor.ports.objects import ObjectStore
from torpor.ports.staging import Staging
from torpor.services import composition
from torpor.services.composition import Services
from torpor.services.placement import Engines
from torpor.services.pool import Pool
from torpor.services.reconcile import Settled
from torpor.services.sessions import Sessions
from torpor.services.supervisor import Supervisor
from torpor.services.templates import RootFilesystem, Templates
from torpor.store.snapshots import SnapshotStore
from torpor.testing.fake_guest import FakeGuestProgram

PLENTY_BYTES = 1 << 40
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

    async def replenish(self, *, default_bytes: int = 0) -> None:
        """See the port."""


@dataclass(slots=True)
class FakeMachine:
    """What outlives a server. ``objects`` may be replaced by a wrapper that fails."""

    host: FakeHost = field(default_factory=FakeHost)
    objects: ObjectStore = field(default_factory=MemoryObjects)
    entropy: Entropy = field(default_factory=lambda: SeededEntropy(7))
    catalog: Catalog = field(default_factory=MemoryCatalog)
    keys: KeyStore | None = None

    def key_store(self) -> KeyStore:
        """The machine's keys, made on first use."""
        self.keys = self.keys or MemoryKeys(self.entropy)
        return self.keys


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything that a node's services are handed. ``store_workers``: 0 runs the store's work on the event loop.

    ``build``: of ``engine``, the preferred one. ``other_engines``: by build.
    """

    engine: Engine
    objects: ObjectStore
    keys: KeyStore
    catalog: Catalog
    staging: Staging
    clock: Clock
    entropy: Entropy
    build: str
    store_workers: int = 2
    pool_size: int = 1
    warm_bytes: int = 0
    clone_bytes: int = 0
    memory: Memory = field(default_factory=lambda: SetMemory(PLENTY_BYTES, PLENTY_BYTES))
    other_engines: Mapping[str, Engine] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FakeNode:
    """A running server over a machine, with what tests look into."""

    services: Services
    engine: FakeEngine
    settled: Settled

    @property
    def sessions(self) -> Sessions:
        """The use cases."""
        return self.services.sessions

    @property
    def templates(self) -> Templates:
        """Its templates."""
        return self.services.templates

    @property
    def store(self) -> SnapshotStore:
        """Its snapshot store."""
        return self.services.store

    @property
    def pool(self) -> Pool:
        """Its created sandboxes."""
        return self.services.pool


def fake_engine(host: FakeHost, build: str = "fake-1", *, cpu_flags: tuple[str, ...] = ("aes", "avx2")) -> FakeEngine:
    """A build of the fake engine on a processor with these flags."""
    capabilities = replace(DEFAULT_CAPABILITIES, build=build, cpu_flags=cpu_flags)
    return FakeEngine({PROGRAM: FakeGuestProgram}, SystemClock(), host=host, capabilities=capabilities)


def assemble(outside: Outside, supervisor: Supervisor) -> Services:
    """The services over ``outside``, as ``apps.node`` composes them. Nothing runs yet."""
    store = SnapshotStore(outside.objects, outside.keys, outside.entropy, outside.clock, workers=outside.store_workers)
    everything = composition.Outside(
        catalog=outside.catalog,
        keys=outside.keys,
        store=store,
        staging=outside.staging,
        memory=outside.memory,
        engines=Engines({**outside.other_engines, outside.build: outside.engine}, outside.build),
        dialer=FramedDialer(outside.clock),
        clock=outside.clock,
        entropy=outside.entropy,
        rootfs_at=lambda _digest: Path("/"),
        argv=(PROGRAM,),
        pool_size=outside.pool_size,
        warm_bytes=outside.warm_bytes,
        clone_bytes=outside.clone_bytes,
    )
    return composition.compose(everything, supervisor)


async def capture_template(services: Services, engine: Engine) -> None:
    """Build the one template of a fake node, unless it is there."""
    if not await services.templates.list():
        rootfs = RootFilesystem(TEMPLATE, "d" * 64, Path("/"))
        await services.templates.capture_golden(rootfs, engine, Limits(), _silent)


@contextlib.asynccontextmanager
async def open_fake(
    machine: FakeMachine,
    *,
    pool_size: int = 1,
    warm_bytes: int = 0,
    clone_bytes: int = 0,
    memory: Memory | None = None,
    engines: Sequence[FakeEngine] = (),
) -> AsyncIterator[FakeNode]:
    """A server over ``machine``; leaving the block is a crash: nothing is paused, channels are let go.

    ``engines``: the builds that are installed, each with a host of its own, the preferred one last.
    """
    clock = SystemClock()
    engine = engines[-1] if engines else fake_engine(machine.host)
    outside = Outside(
        engine=engine,
        objects=machine.objects,
        keys=machine.key_store(),
        catalog=machine.catalog,
        staging=FolderStaging(),
        clock=clock,
        entropy=machine.entropy,
        build=(await engine.capabilities()).build,
        pool_size=pool_size,
        warm_bytes=warm_bytes,
        clone_bytes=clone_bytes,
        memory=memory or SetMemory(PLENTY_BYTES, PLENTY_BYTES),
        other_engines={(await other.capabilities()).build: other for other in engines[:-1]},
    )
    async with Supervisor() as supervisor:
        services = assemble(outside, supervisor)
        settled = await services.reconciler.run()
        await capture_template(services, engine)
        try:
            yield FakeNode(services, engine, settled)
        finally:
            for live in (*services.runtimes.all_live(), *services.warm.all_live()):
                await live.guest.close()
            await supervisor.settle()
            for live in services.clones.all_live():  # one may just have been made
                await live.guest.close()
            await services.residents.drop()


async def _silent(_line: str) -> None:
    await asyncio.sleep(0)
