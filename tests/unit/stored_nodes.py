"""Nodes over one store with real folders of root filesystems: the engine and its guests are fakes."""

from __future__ import annotations

import asyncio
import contextlib
import random

from torpor.adapters.catalog.memory import MemoryCatalog
from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.fake import FakeEngine, FakeHost
from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.adapters.guest.client import FramedDialer
from torpor.adapters.host.memory import SetMemory
from torpor.adapters.keys.memory import MemoryKeys
from torpor.adapters.objects.memory import MemoryObjects
from torpor.adapters.templates.archive import TemplateFolders
from torpor.adapters.templates.digest import digest_tree
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.services.composition import Outside, compose
from torpor.services.placement import Engines
from torpor.services.supervisor import Supervisor
from torpor.store.snapshots import SnapshotStore
from torpor.testing.fake_guest import FakeGuestProgram
from torpor.testing.node import PROGRAM, FolderStaging


class Shared:
    """What two nodes have in common: objects and keys."""

    def __init__(self):
        self.objects = MemoryObjects()
        self.entropy = SeededEntropy(3)
        self.keys = MemoryKeys(self.entropy)
        self.clock = SystemClock()

    def store(self):
        return SnapshotStore(self.objects, self.keys, self.entropy, self.clock)


@contextlib.asynccontextmanager
async def node(shared, home, *, catalog=None):
    """The services of a node whose home is empty; its catalog too, unless one is given."""
    engine = FakeEngine({PROGRAM: FakeGuestProgram}, shared.clock, host=FakeHost())
    build = (await engine.capabilities()).build
    folders = TemplateFolders(home)
    outside = Outside(
        catalog=catalog or MemoryCatalog(),
        keys=shared.keys,
        store=shared.store(),
        staging=FolderStaging(),
        memory=SetMemory(1 << 40, 1 << 40),
        engines=Engines({build: engine}, build),
        dialer=FramedDialer(shared.clock),
        clock=shared.clock,
        entropy=shared.entropy,
        rootfs_at=folders.at,
        argv=(PROGRAM,),
        rootfs_folders=folders,
    )
    async with Supervisor() as supervisor:
        services = compose(outside, supervisor)
        try:
            yield services, outside.catalog, engine
        finally:
            for live in services.runtimes.all_live():
                await live.guest.close()
            await supervisor.settle()
            await services.residents.drop()


def make_tree(home, *more):
    """A built root filesystem in ``home``, with ``more`` empty files; its digest."""
    (home / "new/rootfs/usr").mkdir(parents=True)
    (home / "new/rootfs/usr/program").write_bytes(random.Random(1).randbytes(2 << 20))
    for name in more:
        (home / "new/rootfs" / name).touch()
    digest = digest_tree(home / "new/rootfs").digest
    (home / "new").rename(home / digest)
    return digest


async def silent(_line):
    await asyncio.sleep(0)


async def value(services, ref, source):
    burst = await services.sessions.code(TENANT, ref, source)
    assert burst.result.error is None, burst.result.error
    return burst.result.result["text/plain"] if burst.result.result else ""
