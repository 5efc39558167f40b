"""Sessions over fakes: waking, sharing, giving up, refusing, erasing."""

from __future__ import annotations

import asyncio

import pytest
from fake_sessions import value

from torpor.domain.errors import (
    Conflict,
    EngineError,
    GuestError,
    InvalidArgument,
    NotFound,
    StorageFull,
    Unsupported,
)
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.ids import TenantId
from torpor.domain.session import Durability, Status
from torpor.ports.guest import ProcessSpec
from torpor.services.requests import CreateRequest
from torpor.testing.node import open_fake


async def test_a_variable_survives_a_pause_and_the_burst_is_told_of_the_gap(node):
    session, created = await node.sessions.create(TENANT, CreateRequest(name="day"))
    assert created.cause == "created"
    await value(node, "day", "set x 41")
    paused = await node.sessions.pause(TENANT, "day")
    assert (paused.status, paused.durability, paused.instance) == (Status.PAUSED_LOCAL, Durability.DISK, None)
    burst = await node.sessions.code(TENANT, session.id, "incr x")
    assert burst.result.result["text/plain"] == "42"
    assert (burst.resumption.cause, burst.resumption.generation) == ("resumed", 2)
    assert burst.resumption.gap_s >= 0
    assert burst.resumption.timings_ms["first_output"] >= burst.resumption.timings_ms["ready"]


async def test_a_paused_session_has_no_instance_and_the_pool_holds_none_of_it(node, machine):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await node.sessions.pause(TENANT, "day")
    await asyncio.sleep(0)
    assert set(machine.host.instances) == node.pool.instances()


async def test_concurrent_wakes_share_one_resume(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await node.sessions.pause(TENANT, "day")
    bursts = await asyncio.gather(*(node.sessions.code(TENANT, "day", "get missing") for _ in range(10)))
    assert sum(burst.resumption is not None for burst in bursts) == 1
    assert {burst.session.generation for burst in bursts} == {2}


async def test_concurrent_pauses_share_one_capture(node):
    session, _ = await node.sessions.create(TENANT, CreateRequest())
    paused = await asyncio.gather(*(node.sessions.pause(TENANT, session.id) for _ in range(5)))
    assert {each.snapshot.sequence for each in paused} == {2}


async def test_a_burst_that_arrives_before_the_commit_goes_on_in_place(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    before = await node.sessions.get(TENANT, "day")
    pausing = await node.sessions.pause(TENANT, "day", wait=None)
    assert pausing.status is Status.PAUSING
    assert await value(node, "day", "get x") == "1"
    after = await node.sessions.get(TENANT, "day")
    assert (after.status, after.generation, after.instance) == (Status.RUNNING, 1, before.instance)


async def test_a_failed_capture_leaves_it_running_with_the_errors_own_type(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    node.engine.fail("checkpoint.memory", StorageFull("cannot write the image: no space"))
    with pytest.raises(StorageFull, match="nothing of it was lost"):
        await node.sessions.pause(TENANT, "day")
    assert await value(node, "day", "incr x") == "2"
    assert (await node.sessions.pause(TENANT, "day")).status is Status.PAUSED_LOCAL


async def test_a_restore_that_fails_once_is_tried_again_in_a_fresh_sandbox(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    await node.sessions.pause(TENANT, "day")
    node.engine.fail("restore", EngineError("restore failed: EOF"))
    burst = await node.sessions.code(TENANT, "day", "get x")
    assert burst.result.result["text/plain"] == "1"
    assert burst.resumption.attempts == 2


async def test_a_restore_that_keeps_failing_leaves_the_snapshot_as_it_was(node, machine):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    paused = await node.sessions.pause(TENANT, "day")
    node.engine.fail("restore", EngineError("restore failed: EOF"), times=2)
    node.engine.fail("start", EngineError("start failed: EIO"))  # nor does its disk come up
    with pytest.raises(EngineError, match="EOF"):
        await node.sessions.code(TENANT, "day", "get x")
    after = await node.sessions.get(TENANT, "day")
    assert (after.status, after.snapshot) == (Status.PAUSED_LOCAL, paused.snapshot)
    assert set(machine.host.instances) <= node.pool.instances()
    assert await value(node, "day", "get x") == "1"


async def test_a_create_that_fails_leaves_nothing(node, machine):
    node.engine.fail("restore", EngineError("restore failed: EOF"), times=2)
    with pytest.raises(EngineError):
        await node.sessions.create(TENANT, CreateRequest(name="day"))
    assert (await node.sessions.page(TENANT)).sessions == ()
    assert set(machine.host.instances) <= node.pool.instances()
    await node.sessions.create(TENANT, CreateRequest(name="day"))


async def test_a_sandbox_that_died_is_lost_and_goes_back_only_if_asked(node, machine):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    await node.sessions.pause(TENANT, "day")
    await value(node, "day", "set x 2")
    machine.host.kill((await node.sessions.get(TENANT, "day")).instance)
    with pytest.raises(GuestError):
        await node.sessions.code(TENANT, "day", "get x")
    assert (await node.sessions.get(TENANT, "day")).status is Status.LOST
    with pytest.raises(Conflict, match="allow_older"):
        await node.sessions.code(TENANT, "day", "get x")
    resumed, _ = await node.sessions.resume(TENANT, session.id, allow_older=True)
    assert resumed.status is Status.RUNNING
    assert await value(node, "day", "get x") == "1"


async def test_deleting_shreds_the_key_and_frees_the_name(node, machine):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
    await node.sessions.pause(TENANT, "day")
    await node.sessions.delete(TENANT, "day")
    assert await machine.key_store().is_destroyed(TENANT, session.id)
    assert not [info async for info in machine.objects.list("") if session.id in info.key]
    with pytest.raises(NotFound):
        await node.sessions.get(TENANT, session.id)
    await node.sessions.create(TENANT, CreateRequest(name="day"))


async def test_tenants_do_not_see_each_other(node):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
    other = TenantId("other")
    for ref in ("day", session.id):
        with pytest.raises(NotFound):
            await node.sessions.code(other, ref, "get x")
    twin, _ = await node.sessions.create(other, CreateRequest(name="day"))
    assert twin.id != session.id


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (CreateRequest(name="Not A Name"), InvalidArgument),
        (CreateRequest(name="a" * 20), InvalidArgument),
        (CreateRequest(template="nope"), NotFound),
        (CreateRequest(env={"A=B": "c"}), InvalidArgument),
        (CreateRequest(metadata={"k": "v" * 5000}), InvalidArgument),
    ],
)
async def test_a_bad_request_is_refused_and_leaves_nothing(node, request_, error):
    with pytest.raises(error):
        await node.sessions.create(TENANT, request_)
    assert (await node.sessions.page(TENANT)).sessions == ()


async def test_a_taken_name_is_a_conflict_that_says_what_to_do(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    with pytest.raises(Conflict, match="torpor rm day"):
        await node.sessions.create(TENANT, CreateRequest(name="day"))


async def test_what_is_not_offered_is_refused_and_the_session_goes_on(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    with pytest.raises(Unsupported):
        await node.sessions.pause(TENANT, "day", wait=Durability.OBJECT)
    with pytest.raises(InvalidArgument):
        await node.sessions.execute(TENANT, "day", ProcessSpec(argv=()))
    assert (await node.sessions.get(TENANT, "day")).status is Status.RUNNING


async def test_the_next_server_takes_over_running_sessions_and_destroys_orphans(machine):
    async with open_fake(machine) as node:
        await node.sessions.create(TENANT, CreateRequest(name="day"))
        await value(node, "day", "set x 1")
    orphans = node.pool.instances()  # once the server is gone, nobody will ever ask for these
    assert orphans
    async with open_fake(machine, pool_size=0) as node:
        assert len(node.settled.reattached) == 1
        assert set(node.settled.orphans) == set(orphans)
        assert await value(node, "day", "get x") == "1"
        assert (await node.sessions.get(TENANT, "day")).generation == 1


async def test_a_session_whose_instance_died_with_the_server_is_lost(machine):
    async with open_fake(machine) as node:
        session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
        instance = (await node.sessions.get(TENANT, "day")).instance
    del machine.host.instances[instance]
    async with open_fake(machine) as node:
        assert node.settled.lost == [session.id]
        assert (await node.sessions.get(TENANT, "day")).status is Status.LOST


async def test_compute_is_counted_while_an_instance_runs_and_not_while_paused(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    first = await node.sessions.pause(TENANT, "day")
    assert first.compute_s > 0
    assert first.running_since_s is None
    await asyncio.sleep(0.05)
    assert (await node.sessions.get(TENANT, "day")).compute_s == first.compute_s


async def test_a_session_has_the_caps_that_were_asked_for_and_keeps_them_over_pauses_and_forks(node, machine):
    request = CreateRequest(name="day", cpus=0.5, memory_bytes=3 << 30)
    session, _ = await node.sessions.create(TENANT, request)
    template = (await node.templates.list())[0]
    assert (session.limits.cpus, session.limits.memory_bytes) == (0.5, 3 << 30)
    assert session.limits.disk_bytes == template.shape["disk_bytes"]

    def shape_of(record):
        return machine.host.instances[record.instance].shape

    first = shape_of(session)
    assert (first.cpus, first.memory_bytes) == (0.5, 3 << 30)
    assert first.shared_bytes == template.shape["memory_bytes"] // 2
    await node.sessions.pause(TENANT, "day")
    await value(node, "day", "set x 1")
    woken = await node.sessions.get(TENANT, "day")
    assert (shape_of(woken), woken.limits) == (first, session.limits)


@pytest.mark.parametrize(
    "asked",
    [{"cpus": 0.001}, {"cpus": float("inf")}, {"cpus": float("nan")}, {"memory_bytes": 4096}, {"memory_bytes": -1}],
)
async def test_caps_that_no_session_could_live_with_are_refused_by_name(node, asked):
    with pytest.raises(InvalidArgument) as refused:
        await node.sessions.create(TENANT, CreateRequest(**asked))
    assert refused.value.details["field"] in asked


async def test_a_disk_of_another_size_is_refused_with_the_size_there_is(node):
    size_bytes = (await node.templates.list())[0].shape["disk_bytes"]
    session, _ = await node.sessions.create(TENANT, CreateRequest(disk_bytes=size_bytes))
    assert session.limits.disk_bytes == size_bytes
    with pytest.raises(Unsupported) as refused:
        await node.sessions.create(TENANT, CreateRequest(disk_bytes=2 * size_bytes))
    assert refused.value.details == {"field": "disk_bytes", "offered": size_bytes}
