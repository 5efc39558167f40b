"""Clones of golden snapshots: handed over once, good for nothing but speed, and gone when somebody needs the memory."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from fake_sessions import until, value

from torpor.adapters.host.memory import SetMemory
from torpor.domain.errors import DeadlineExceeded, EngineError, GuestError
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.session import Limits, Status
from torpor.domain.snapshot import SnapshotRef
from torpor.ports.engine import InstanceStatus
from torpor.ports.guest import Cause
from torpor.services.requests import CreateRequest, Outcome, Tier
from torpor.services.templates import PUBLIC_TENANT, RootFilesystem
from torpor.testing.node import TEMPLATE, open_fake

GB = 1 << 30
STEPS = {"ready", "total"}


@contextlib.asynccontextmanager
async def opened(machine, *, clone_bytes=GB, **options):
    """A node that holds a clone, if its budget allows it."""
    async with open_fake(machine, clone_bytes=clone_bytes, **options) as node:
        await refilled(node)
        yield node


async def refilled(node):
    """A clone is asked for; return once it is there, or will not be."""
    blueprint = await node.templates.blueprint(PUBLIC_TENANT, TEMPLATE)
    node.services.clones.refill(blueprint.golden, blueprint.shape)

    async def made():
        return len(node.services.clones.instances()) == len(node.services.clones.all_live())

    await until(made)


def held(node):
    """The instances of the clones."""
    return {live.instance for live in node.services.clones.all_live()}


async def create(node, name):
    session, told = await node.sessions.create(TENANT, CreateRequest(name=name))
    return session, told


async def test_a_create_takes_the_clone_once_and_the_next_one_gets_another(machine):
    async with opened(machine) as node:
        (clone,) = held(node)
        session, told = await create(node, "day")
        assert session.instance == clone
        assert (told.cause, told.outcome, told.tier, told.attempts) == (Cause.CREATED, Outcome.CREATED, Tier.LOCAL, 1)
        assert set(told.timings_ms) >= STEPS
        assert not {"restore", "claim", "fetch"} & set(told.timings_ms)
        other, told = await create(node, "night")
        assert other.instance != clone
        assert "restore" in told.timings_ms
        assert await value(node, "day", "hostname") == session.hostname
        assert await value(node, "night", "hostname") == other.hostname
        assert await value(node, "day", "draw") != await value(node, "night", "draw")
        await until(lambda: _true(held(node)))
        assert not held(node) & {clone, other.instance}


async def test_creates_at_the_same_time_share_no_clone(machine):
    async with opened(machine) as node:
        created = await asyncio.gather(*(create(node, name) for name in ("a", "b", "c")))
        assert len({session.instance for session, _ in created}) == 3
        assert sum("restore" not in told.timings_ms for _, told in created) == 1


async def test_a_session_with_caps_of_its_own_takes_no_clone_of_the_templates(machine):
    async with opened(machine) as node:
        (clone,) = held(node)
        session, told = await node.sessions.create(TENANT, CreateRequest(cpus=1.0))
        assert session.instance != clone
        assert "restore" in told.timings_ms
        assert clone in held(node)


async def test_a_clone_waits_parked_and_running_and_is_nobodys(machine):
    async with opened(machine) as node:
        (clone,) = held(node)
        instance = machine.host.instances[clone]
        assert (instance.status, instance.program.parked) == (InstanceStatus.RUNNING, True)
        assert instance.program.hostname == "torpor"  # the forge's


async def test_a_clone_that_died_is_destroyed_and_the_create_is_placed_as_ever(machine):
    async with opened(machine) as node:
        (clone,) = held(node)
        machine.host.kill(clone)
        session, told = await create(node, "day")
        assert session.instance != clone
        assert "restore" in told.timings_ms
        await until(lambda: _true(clone not in machine.host.instances))


@pytest.mark.parametrize("error", [EngineError("it is gone"), GuestError("no"), DeadlineExceeded("no answer")])
async def test_a_clone_that_does_not_go_on_is_destroyed_before_the_create_is_placed(machine, monkeypatch, error):
    async with opened(machine) as node:
        (live,) = node.services.clones.all_live()

        async def refuse(*_):
            raise error

        monkeypatch.setattr(live.guest, "proceed", refuse)
        session, told = await create(node, "day")
        assert session.status is Status.RUNNING
        assert "restore" in told.timings_ms
        assert live.instance not in machine.host.instances


async def test_a_create_that_is_given_up_over_its_clone_leaves_none(machine, monkeypatch):
    async with opened(machine) as node:
        (live,) = node.services.clones.all_live()
        blueprint = await node.templates.blueprint(PUBLIC_TENANT, TEMPLATE)
        told = asyncio.Event()

        async def stand_still(*_):
            told.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(live.guest, "proceed", stand_still)
        placing = asyncio.ensure_future(
            node.services.clones.place(TENANT, blueprint.golden, blueprint.shape, lambda _wall_s: None)
        )
        await told.wait()
        placing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await placing
        assert live.instance not in machine.host.instances


@pytest.mark.parametrize("clone_bytes", [0, 1])
async def test_nothing_is_kept_beyond_the_budget(machine, clone_bytes):
    async with opened(machine, clone_bytes=clone_bytes) as node:
        assert not node.services.clones.instances()
        assert node.services.clones.bytes_held == 0
        assert (await create(node, "day"))[0].status is Status.RUNNING


async def test_a_newer_template_takes_the_place_of_an_older_one_in_the_budget(machine):
    async with opened(machine) as node:
        size_bytes = node.services.clones.bytes_held
    async with opened(machine, clone_bytes=size_bytes) as node:
        (old,) = held(node)
        await recaptured(node)
        await refilled(node)
        (new,) = held(node)
        assert new != old
        assert old not in machine.host.instances


async def recaptured(node):
    """The template's golden snapshot is taken anew."""
    blueprint = await node.templates.blueprint(PUBLIC_TENANT, TEMPLATE)
    rootfs = blueprint.shape.rootfs

    async def silent(_line):
        pass

    built = RootFilesystem(TEMPLATE, blueprint.template.digest, rootfs)
    await node.templates.capture_golden(built, node.engine, Limits(), silent)


async def test_clones_are_given_back_before_what_is_warm(machine):
    memory = SetMemory(GB, GB)
    async with opened(machine, warm_bytes=GB, memory=memory) as node:
        await create(node, "day")
        await node.sessions.pause(TENANT, "day")
        await refilled(node)
        warm, clones = node.services.warm, node.services.clones
        assert warm.bytes_held > 0
        assert held(node)
        memory.available = int(GB * 0.25) - 1  # the reserve is eaten into by a byte
        await node.services.clockwork._relieve()
        assert not held(node)
        assert warm.bytes_held > 0
        await refilled(node)
        assert not clones.instances()


async def test_none_is_made_of_memory_that_is_not_there(machine):
    memory = SetMemory(GB, 0)
    async with opened(machine, memory=memory) as node:
        assert not node.services.clones.instances()


async def test_shutting_down_leaves_none_also_of_those_in_the_making(machine):
    async with opened(machine) as node:
        clones = node.services.clones
        await create(node, "day")
        assert clones.instances() - held(node)  # one is in the making
        await clones.drain()
        blueprint = await node.templates.blueprint(PUBLIC_TENANT, TEMPLATE)
        clones.refill(blueprint.golden, blueprint.shape)
        await until(lambda: _true(not clones.instances()))
        session = await node.sessions.get(TENANT, "day")
        assert set(machine.host.instances) <= node.pool.instances() | {session.instance}


async def test_what_runs_is_known_and_the_next_server_destroys_what_a_dead_one_held(machine):
    async with opened(machine) as node:
        (clone,) = held(node)
        assert set(machine.host.instances) == node.pool.instances() | node.services.clones.instances()
    async with open_fake(machine) as node:
        assert clone in node.settled.orphans
        assert clone not in machine.host.instances


async def test_the_clone_of_a_removed_template_goes(machine):
    async with opened(machine) as node:
        blueprint = await node.templates.blueprint(PUBLIC_TENANT, TEMPLATE)
        await node.services.clones.keep_only({blueprint.golden})
        assert held(node)
        golden = SnapshotRef.from_json(blueprint.template.golden)
        await node.store.delete_subject(golden.tenant, golden.subject)
        await machine.catalog.remove_template(blueprint.template)
        await node.services.clockwork._sweep_clones()
        assert not node.services.clones.instances()
        node.services.clones.refill(blueprint.golden, blueprint.shape)
        await until(lambda: _true(not node.services.clones.instances()))


async def test_a_clone_that_cannot_be_made_is_no_failure(machine):
    async with open_fake(machine, clone_bytes=GB) as node:
        node.engine.fail("restore", EngineError("it does not restore"))
        await refilled(node)
        assert not node.services.clones.instances()
        assert not machine.host.instances
        assert (await create(node, "day"))[0].status is Status.RUNNING


async def _true(value):
    return bool(value)
