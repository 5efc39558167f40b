"""What must hold once faults have stopped and every client has what it wanted: nothing is left over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from torpor.domain.session import TRANSIENT, Status
from torpor.store.snapshots import SweepRequest
from torpor.testing.world.witness import Violation

if TYPE_CHECKING:
    from torpor.testing.world.server import Server
    from torpor.testing.world.world import World

SETTLING_S = 5.0
STUCK_S = 600.0
QUIET_LOOKS_MAX = 20
SWEEP_EVERY = 4  # seeds: it costs as much as the rest of the end
LOOK_EVERY_S = 2.1


async def check_quiet(world: World) -> None:
    """Raises: Violation."""
    await _settle(world)
    server = world.server
    assert server is not None
    for patience in range(QUIET_LOOKS_MAX, 0, -1):  # an idle pause may be under way at any time
        try:
            _check_records(world, server)
            _check_instances(world, server)
            _check_staging(world)
            break
        except Violation:
            if patience == 1:
                raise
        await asyncio.sleep(LOOK_EVERY_S)
    await _check_store(world)
    world.witness.check_told()
    world.raise_violation()


async def _settle(world: World) -> None:
    """Until no session is between two statuses for a while, so that pools are filled and images let go."""
    quiet_s = 0.0
    while quiet_s < SETTLING_S:
        await asyncio.sleep(1.0)
        busy = any(record.status in TRANSIENT for record in world.witness.records.values())
        quiet_s = 0.0 if busy else quiet_s + 1.0
        if world.loop.time() > world.calm_since_s + STUCK_S:
            return


def _check_records(world: World, server: Server) -> None:
    for record in world.witness.records.values():
        if record.status in TRANSIENT:
            raise Violation(f"{record.id} is stuck: {record.status}")
        live = server.services.runtimes.of(record.id).live
        if record.status is Status.RUNNING and live is None:
            raise Violation(f"{record.id} is running without an instance")
        if record.status is not Status.RUNNING and live is not None:
            raise Violation(f"{record.id} is {record.status} and holds an instance")
        if record.status is Status.RUNNING and live is not None and live.instance != record.instance:
            raise Violation(f"{record.id} runs in another instance than its record says")


def _check_instances(world: World, server: Server) -> None:
    services = server.services
    warm = {live.instance for live in services.warm.all_live()}
    owned = services.runtimes.instances() | services.pool.instances() | services.clones.instances() | warm
    orphans = sorted(set(world.machine.host.instances) - owned)
    if orphans:
        raise Violation(f"instances are left that nobody holds: {orphans}")


def _check_staging(world: World) -> None:
    folders = sorted(path.name for path in world.staging.iterdir())
    if len(folders) > 1:  # the golden image's
        raise Violation(f"staging folders are left: {folders}")


async def _check_store(world: World) -> None:
    report = await world.witness.store.check()
    if not report.clean:
        raise Violation(f"the store is not clean: {report.problems}")
    if world.seed % SWEEP_EVERY == 0:
        await _check_swept(world)
    keys = [info.key async for info in world.machine.objects.list("")]
    lent = {key for key in keys if "/packs/" in key}
    for record in world.witness.records.values():
        await world.witness.check_restorable(record)
        left = [key for key in keys if f"/{record.id}/" in key and key not in lent]
        if record.status is Status.DELETED and left:
            raise Violation(f"{record.id} is deleted and left {left}")


async def _check_swept(world: World) -> None:
    """After garbage collection nothing is left that nothing names, and nothing is missing."""
    for _ in range(2):  # what the first sees without use, the second removes
        await world.witness.store.collect_garbage(SweepRequest(grace_s=0.0))
    report = await world.witness.store.check()
    if not report.clean:
        raise Violation(f"garbage collection broke the store: {report.problems}")
    orphans = [key for key in report.unreferenced if not key.startswith("garbage-")]
    if orphans:
        raise Violation(f"objects are left that nothing names: {orphans}")
