"""Reported faults of such systems whose place is in the services, over fakes. ``docs/cases.md`` lists them all."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fake_sessions import value

from torpor.adapters.catalog.memory import MemoryCatalog
from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.clocks import LiveClock, expires_at_s, live_clock
from torpor.domain.errors import Conflict, Corrupt, EngineError, GuestError, NotFound, StorageFull, TorporError
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.session import Policy, Status
from torpor.services import patience
from torpor.services.requests import CreateRequest, ForkRequest
from torpor.testing.fake_guest import FakeGuestProgram
from torpor.testing.fake_guest import _Refusal as Refusal
from torpor.testing.node import FakeMachine, open_fake

FULL = StorageFull("cannot write the catalog: no space left")


class FullCatalog(MemoryCatalog):
    """Cannot write records of one status while ``full_for`` names it."""

    full_for: Status | None = None

    async def replace(self, session):
        if session.status is self.full_for:
            raise FULL
        return await super().replace(session)


async def status(node, ref):
    return (await node.sessions.get(TENANT, ref)).status


async def sleeper(node, name="day", **policy):
    """A session with x = 1, paused; its record."""
    await node.sessions.create(TENANT, CreateRequest(name=name, policy=Policy(**policy)))
    await value(node, name, "set x 1")
    return await node.sessions.pause(TENANT, name)


def instances_of_sessions(node, machine):
    return set(machine.host.instances) - node.pool.instances()


@pytest.fixture
def machine():
    return FakeMachine(catalog=FullCatalog())


# ---- what is stored comes back, or a typed error does ----------------------------------------------------------------


async def test_an_altered_pack_is_a_typed_loss_and_never_an_empty_disk(machine):
    async with open_fake(machine) as node:
        paused = await sleeper(node)
        objects = machine.objects
        assert isinstance(objects, MemoryObjects)
        altered = [info.key async for info in objects.list("") if paused.id in info.key and "/packs/" in info.key]
        kept = {key: await objects.get(key) for key in altered}
        for key, whole in kept.items():
            await objects.put(key, bytes(len(whole)))
        for _ in range(2):
            with pytest.raises(Corrupt):
                await value(node, "day", "get x")
            after = await node.sessions.get(TENANT, "day")
            assert (after.status, after.snapshot) == (Status.PAUSED_LOCAL, paused.snapshot)
        assert instances_of_sessions(node, machine) == set()
        for key, whole in kept.items():
            await objects.put(key, whole)
        assert await value(node, "day", "get x") == "1"


async def test_a_fork_that_cannot_be_of_now_is_refused_and_never_an_older_one(node):
    await sleeper(node)
    await value(node, "day", "set x 2")
    node.engine.fail("checkpoint.memory", EngineError("cannot checkpoint: EIO"))
    with pytest.raises(EngineError):
        await node.services.forks.fork(TENANT, "day", ForkRequest(names=("night",)))
    with pytest.raises(NotFound):
        await node.sessions.get(TENANT, "night")
    await node.services.forks.fork(TENANT, "day", ForkRequest(names=("night",)))
    assert await value(node, "night", "get x") == "2"


# ---- clocks ----------------------------------------------------------------------------------------------------------


async def test_a_policy_survives_resumes_and_servers_and_is_every_forks(machine):
    policy = Policy(idle_s=7.0, timeout_s=1800.0, retention_s=86_400.0)
    async with open_fake(machine) as node:
        await node.sessions.create(TENANT, CreateRequest(name="day", policy=policy, ttl_s=9000.0))
        born = await node.sessions.get(TENANT, "day")
    for _ in range(3):
        async with open_fake(machine) as node:
            await node.sessions.pause(TENANT, "day")
            await value(node, "day", "set x 1")
            now = await node.sessions.get(TENANT, "day")
            assert (now.policy, now.hard_deadline_at_s) == (policy, born.hard_deadline_at_s)
            assert now.run_deadline_at_s >= born.run_deadline_at_s
            ((fork, _),) = await node.services.forks.fork(TENANT, "day", ForkRequest())
            assert (fork.policy, fork.hard_deadline_at_s) == (policy, born.hard_deadline_at_s)


async def test_a_resume_that_fails_leaves_the_retention_as_the_one_live_clock_where_it_was(node):
    paused = await sleeper(node, timeout_s=1000.0, retention_s=500.0)
    for operation, times in (("restore", 2), ("start", 1)):
        node.engine.fail(operation, EngineError(f"{operation} failed: EIO"), times=times)
    with pytest.raises(EngineError):
        await node.sessions.resume(TENANT, "day")
    after = await node.sessions.get(TENANT, "day")
    assert live_clock(after) is LiveClock.RETENTION
    assert expires_at_s(after) == expires_at_s(paused) == paused.paused_at_s + 500.0
    assert (after.run_deadline_at_s, after.run_left_s) == (None, paused.run_left_s)


async def test_a_hard_deadline_is_an_instant_that_resumes_do_not_move_and_that_ends_a_paused_session(node, machine):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day", ttl_s=1000.0))
    for _ in range(2):
        await node.sessions.pause(TENANT, "day")
        resumed, _ = await node.sessions.resume(TENANT, "day")
        assert resumed.hard_deadline_at_s == session.hard_deadline_at_s
    await node.sessions.pause(TENANT, "day")
    record = await machine.catalog.get(TENANT, session.id)
    await machine.catalog.replace(replace(record, hard_deadline_at_s=record.hard_deadline_at_s - 1001.0))
    await node.services.clockwork.look_at_records()
    for _ in range(500):
        if (await machine.catalog.get(TENANT, session.id)).status is Status.DELETED:
            break
        await asyncio.sleep(0.01)
    assert await machine.key_store().is_destroyed(TENANT, session.id)


# ---- running means an in-guest round trip ----------------------------------------------------------------------------


async def test_a_guest_that_does_not_answer_is_never_said_to_run(node, machine, monkeypatch):
    await sleeper(node)
    seen = []

    def silent(*_):
        seen.append([record.status for record in machine.catalog._sessions.values()])
        raise Refusal("guest_error", "cannot proceed: no entropy")

    with monkeypatch.context() as patch:
        patch.setattr(FakeGuestProgram, "_on_resumed", silent)
        with pytest.raises(TorporError):
            await value(node, "day", "get x")
    assert seen
    assert all(statuses == [Status.RESUMING] for statuses in seen)
    assert await status(node, "day") is Status.PAUSED_LOCAL
    assert instances_of_sessions(node, machine) == set()
    assert await value(node, "day", "get x") == "1"


# ---- a record that cannot be written ---------------------------------------------------------------------------------


async def test_a_resume_that_cannot_be_recorded_keeps_its_instance_and_the_next_call_has_it(node, machine):
    await sleeper(node)
    machine.catalog.full_for = Status.RUNNING
    with pytest.raises(StorageFull):
        await value(node, "day", "set x 2")
    (instance,) = instances_of_sessions(node, machine)
    assert await status(node, "day") is Status.RESUMING
    machine.catalog.full_for = None
    assert await value(node, "day", "incr x") == "2"
    after = await node.sessions.get(TENANT, "day")
    assert (after.status, after.instance, after.generation) == (Status.RUNNING, instance, 2)
    assert instances_of_sessions(node, machine) == {instance}


async def test_a_create_that_cannot_be_recorded_leaves_nothing(node, machine):
    machine.catalog.full_for = Status.RUNNING
    with pytest.raises(StorageFull):
        await node.sessions.create(TENANT, CreateRequest(name="day"))
    machine.catalog.full_for = None
    assert instances_of_sessions(node, machine) == set()
    with pytest.raises(NotFound):
        await node.sessions.get(TENANT, "day")


async def test_a_pause_whose_end_cannot_be_recorded_parks_nobody_for_ever(node, machine):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    machine.catalog.full_for = Status.PAUSED_LOCAL
    with pytest.raises(TorporError):
        await node.sessions.pause(TENANT, "day")
    machine.catalog.full_for = None
    assert await value(node, "day", "incr x") == "2"
    assert (await node.sessions.get(TENANT, "day")).generation == 1
    await node.sessions.pause(TENANT, "day")
    assert await value(node, "day", "incr x") == "3"


@pytest.mark.parametrize("verb", ["pause", "snapshot"])
async def test_a_sandbox_that_dies_in_its_capture_is_a_typed_loss(node, machine, monkeypatch, verb):
    await sleeper(node)
    await value(node, "day", "set x 2")
    live = await node.sessions.get(TENANT, "day")

    async def dies(*_, **__):
        machine.host.kill(live.instance)
        raise EngineError("cannot checkpoint: its sandbox died")

    with monkeypatch.context() as patch:
        patch.setattr(type(node.engine), "checkpoint", dies)
        with pytest.raises(Conflict, match="allow_older") as lost:
            await getattr(node.sessions, verb)(TENANT, "day")
    assert lost.value.details["status"] == "lost"
    await node.sessions.resume(TENANT, "day", allow_older=True)
    assert await value(node, "day", "get x") == "1"


# ---- deleting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["same", "next"])
@pytest.mark.parametrize("stands", ["running", "paused", "lost", "unrestorable", "stuck"])
async def test_delete_succeeds_wherever_a_session_stands(machine, stands, server):
    async with open_fake(machine) as node:
        await node.sessions.create(TENANT, CreateRequest(name="day"))
        session = await node.sessions.get(TENANT, "day")
        if stands != "running":
            session = await node.sessions.pause(TENANT, "day")
        match stands:
            case "lost":
                resumed, _ = await node.sessions.resume(TENANT, "day")
                machine.host.kill(resumed.instance)
                with pytest.raises(GuestError):
                    await value(node, "day", "get x")
            case "unrestorable":
                for key in [info.key async for info in machine.objects.list("") if session.id in info.key]:
                    await machine.objects.put(key, b"not what was written")
            case "stuck":
                machine.catalog.full_for = Status.RUNNING
                with pytest.raises(StorageFull):
                    await value(node, "day", "get x")
                machine.catalog.full_for = None
        if server == "same":
            await deleted_without_a_trace(node, machine, session)
    if server == "next":
        async with open_fake(machine) as node:
            await deleted_without_a_trace(node, machine, session)


async def deleted_without_a_trace(node, machine, session):
    await node.sessions.delete(TENANT, session.id)
    assert await machine.key_store().is_destroyed(TENANT, session.id)
    assert [info.key async for info in machine.objects.list("") if session.id in info.key] == []
    assert instances_of_sessions(node, machine) == set()


async def test_a_delete_that_failed_halfway_is_repeated_to_its_end(node, machine, monkeypatch):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
    monkeypatch.setattr(patience.patiently, "__kwdefaults__", {"patience_s": 0.0})
    node.engine.fail("destroy", EngineError("cannot destroy: EBUSY"))
    with pytest.raises(EngineError):
        await node.sessions.delete(TENANT, "day")
    assert await status(node, session.id) is Status.DELETING
    await deleted_without_a_trace(node, machine, session)


async def test_a_delete_during_a_resume_ends_both_and_leaves_nothing(node, machine):
    session = await sleeper(node)
    burst = asyncio.ensure_future(node.sessions.code(TENANT, "day", "get x"))
    while await status(node, session.id) is not Status.RESUMING:  # noqa: ASYNC110 - a record tells nobody
        await asyncio.sleep(0)
    await node.sessions.delete(TENANT, session.id)
    with pytest.raises((Conflict, GuestError, NotFound)):
        await burst
    assert instances_of_sessions(node, machine) == set()
    assert [info.key async for info in machine.objects.list("") if session.id in info.key] == []


async def test_a_pool_is_never_larger_than_it_may_be(machine):
    async with open_fake(machine, pool_size=2) as node:
        names = [f"s{number}" for number in range(12)]
        await asyncio.gather(*(node.sessions.create(TENANT, CreateRequest(name=name)) for name in names))
        for _ in range(3):
            await asyncio.gather(*(node.sessions.pause(TENANT, name) for name in names))
            await asyncio.gather(*(node.sessions.resume(TENANT, name) for name in names))
            assert len(node.pool.instances()) <= 2
        await asyncio.sleep(0.4)
        assert len(node.pool.instances()) <= 2
        assert len(instances_of_sessions(node, machine)) == 12
