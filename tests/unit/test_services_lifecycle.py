"""Sessions over fakes: clocks, forks, live snapshots, persistence, the warm tier, and the way down the ladder."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fake_sessions import until, value

from torpor.adapters.host.memory import SetMemory
from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.errors import (
    Conflict,
    EngineError,
    InvalidArgument,
    NotFound,
    QuotaExceeded,
    Unavailable,
    Unsupported,
)
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.lifecycle import Pause
from torpor.domain.session import DeadlineAction, OnResume, Persistence, Policy, Status
from torpor.services.requests import ClockChange, CreateRequest, ForkRequest, Outcome, Tier
from torpor.testing.node import open_fake

GB = 1024**3


@pytest.fixture
async def warm_node(machine):
    async with open_fake(machine, warm_bytes=GB) as opened:
        yield opened
        assert (await opened.store.check()).clean


async def test_a_fork_of_a_running_session_has_its_state_of_now_and_a_life_of_its_own(node):
    source, _ = await node.sessions.create(TENANT, CreateRequest(name="day", metadata={"owner": "me"}))
    await value(node, "day", "set x 1")
    ((fork, told),) = await node.services.forks.fork(TENANT, "day", ForkRequest(names=("night",)))
    assert (told.cause, told.outcome, fork.forked_from, fork.metadata) == (
        "forked",
        Outcome.RESUMED,
        source.id,
        {"owner": "me"},
    )
    assert await value(node, "night", "incr x") == "2"
    assert await value(node, "day", "get x") == "1"
    assert (await node.sessions.get(TENANT, "day")).status is Status.RUNNING
    assert await value(node, "night", "hostname") == "night"


async def test_a_fork_outlives_its_source_and_its_own_pauses(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    await node.sessions.pause(TENANT, "day")
    ((fork, _),) = await node.services.forks.fork(TENANT, "day", ForkRequest())
    await node.sessions.delete(TENANT, "day")
    await value(node, fork.id, "incr x")
    await node.sessions.pause(TENANT, fork.id)
    assert await value(node, fork.id, "incr x") == "3"


async def test_ten_forks_draw_from_one_fetch_and_differ(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    forks = await node.services.forks.fork(TENANT, "day", ForkRequest(count=10))
    drawn = [await value(node, fork.id, "draw") for fork, _ in forks]
    assert len(set(drawn)) == 10
    assert [await value(node, fork.id, "get x") for fork, _ in forks] == ["1"] * 10


async def test_forks_are_all_made_or_none(node, machine):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await node.sessions.pause(TENANT, "day")
    node.engine.fail("restore", EngineError("restore failed: EOF"), times=2)
    node.engine.fail("start", EngineError("start failed: EOF"), times=1)
    with pytest.raises(EngineError):
        await node.services.forks.fork(TENANT, "day", ForkRequest(count=1))
    assert [session.name for session in (await node.sessions.page(TENANT)).sessions] == ["day"]
    assert set(machine.host.instances) <= node.pool.instances()


async def test_a_fork_whose_source_is_deleted_meanwhile_says_so_and_leaves_nothing(node, monkeypatch):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    fork = type(node.store).fork

    async def fork_late(store, request):
        await node.sessions.delete(TENANT, request.source.subject)
        return await fork(store, request)

    monkeypatch.setattr(type(node.store), "fork", fork_late)
    with pytest.raises(NotFound, match="no session"):
        await node.services.forks.fork(TENANT, "day", ForkRequest(names=("night",)))
    assert (await node.sessions.page(TENANT)).sessions == ()


async def test_a_capture_that_a_dead_server_left_undone_is_told_as_a_failure_of_the_moment(node):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
    await node.services.records.apply(TENANT, session.id, Pause())  # and then nothing: as if the server had died
    runtime = node.services.runtimes.of(session.id)
    live, runtime.live = runtime.live, None
    await live.guest.close()
    await node.services.reconciler.run()
    after = await node.sessions.get(TENANT, "day")
    assert (after.status, after.last_error_code) == (Status.RUNNING, Unavailable.code)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ForkRequest(count=0), "count"),
        (ForkRequest(count=101), "count"),
        (ForkRequest(count=2, names=("a",)), "names"),
        (ForkRequest(count=2, names=("a", "a")), "names"),
    ],
)
async def test_a_bad_fork_is_refused_by_its_field(node, request_, field):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    with pytest.raises(InvalidArgument) as refused:
        await node.services.forks.fork(TENANT, "day", request_)
    assert refused.value.details["field"] == field


async def test_a_live_snapshot_lets_the_original_go_on_and_is_what_a_loss_goes_back_to(node, machine):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    taken = await node.sessions.snapshot(TENANT, "day")
    assert (taken.status, taken.snapshot.sequence, taken.generation) == (Status.RUNNING, taken.operation, 1)
    assert await value(node, "day", "incr x") == "2"
    machine.host.kill(taken.instance)
    with pytest.raises(Exception, match=r"died|gone|lost"):
        await value(node, "day", "get x")
    await node.sessions.resume(TENANT, "day", allow_older=True)
    assert await value(node, "day", "get x") == "1"


async def test_a_filesystem_session_keeps_its_disk_and_starts_its_processes_anew(node):
    await node.sessions.create(TENANT, CreateRequest(name="day", persistence=Persistence.FILESYSTEM))
    await value(node, "day", "set x 1")

    async def data():
        yield b"kept"

    await node.sessions.write_file(TENANT, "day", "/root/note", data())
    paused = await node.sessions.pause(TENANT, "day")
    assert paused.snapshot.image_bytes > 0
    _, told = await node.sessions.resume(TENANT, "day")
    assert told.outcome is Outcome.RESTORED_FILESYSTEM
    assert b"".join([piece async for piece in node.sessions.read_file(TENANT, "day", "/root/note")]) == b"kept"
    assert (await node.sessions.code(TENANT, "day", "get x")).result.error is not None


async def test_an_ephemeral_session_is_let_go_and_comes_back_empty_and_says_so(node, machine):
    await node.sessions.create(TENANT, CreateRequest(name="day", persistence=Persistence.EPHEMERAL))
    await value(node, "day", "set x 1")
    paused = await node.sessions.pause(TENANT, "day")
    assert (paused.status, paused.snapshot, paused.durability) == (Status.PAUSED_LOCAL, None, None)
    assert set(machine.host.instances) <= node.pool.instances()
    _, told = await node.sessions.resume(TENANT, "day")
    assert (told.outcome, told.generation) == (Outcome.STATE_LOST, 2)
    assert (await node.sessions.code(TENANT, "day", "get x")).result.error is not None
    with pytest.raises(Conflict, match="ephemeral"):
        await node.sessions.snapshot(TENANT, "day")
    with pytest.raises(Unsupported, match="ephemeral"):
        await node.services.forks.fork(TENANT, "day", ForkRequest())


async def test_a_memory_that_does_not_restore_comes_back_as_its_disk_and_says_why(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    await node.sessions.pause(TENANT, "day")
    node.engine.fail("restore", EngineError("restore failed: EOF"), times=2)
    burst = await node.sessions.code(TENANT, "day", "")
    assert burst.resumption.outcome is Outcome.RESTORED_FILESYSTEM
    assert burst.resumption.stepped_down == ("restore failed: EOF",)


async def test_a_warm_session_comes_back_from_memory_under_a_new_generation(warm_node, machine):
    session, _ = await warm_node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(warm_node, "day", "set x 1")
    instance = (await warm_node.sessions.get(TENANT, "day")).instance
    await warm_node.sessions.pause(TENANT, "day")
    assert machine.host.instances[instance].is_frozen
    burst = await warm_node.sessions.code(TENANT, "day", "incr x")
    assert (burst.resumption.tier, burst.resumption.generation) == (Tier.WARM, 2)
    assert burst.result.result["text/plain"] == "2"
    await warm_node.sessions.pause(TENANT, session.id)
    await warm_node.sessions.delete(TENANT, "day")
    assert set(machine.host.instances) <= warm_node.pool.instances()


async def test_a_warm_instance_that_will_not_thaw_gives_way_to_the_store(warm_node):
    await warm_node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(warm_node, "day", "set x 1")
    await warm_node.sessions.pause(TENANT, "day")
    warm_node.engine.fail("thaw", EngineError("thaw failed: EIO"))
    burst = await warm_node.sessions.code(TENANT, "day", "get x")
    assert burst.result.result["text/plain"] == "1"
    assert burst.resumption.tier is Tier.LOCAL


async def test_a_warm_leftover_of_a_dead_server_is_removed_and_the_store_serves(machine):
    async with open_fake(machine, warm_bytes=GB) as first:
        await first.sessions.create(TENANT, CreateRequest(name="day"))
        await value(first, "day", "set x 1")
        await first.sessions.pause(TENANT, "day")
    async with open_fake(machine, warm_bytes=GB) as second:
        assert len(second.settled.orphans) >= 1
        burst = await second.sessions.code(TENANT, "day", "get x")
        assert (burst.result.result["text/plain"], burst.resumption.tier) == ("1", Tier.LOCAL)


async def test_an_idle_session_is_paused_and_its_timeline_says_so(node):
    await node.sessions.create(TENANT, CreateRequest(name="day", policy=Policy(idle_s=0.2)))
    await value(node, "day", "set x 1")

    async def is_paused():
        await node.services.clockwork.look_at_activity()
        return (await node.sessions.get(TENANT, "day")).status is Status.PAUSED_LOCAL

    await until(is_paused)
    session = await node.sessions.get(TENANT, "day")
    assert [(moment.event, moment.reason) for moment in session.timeline][-2:] == [
        ("pause", "idle"),
        ("snapshot_stored", ""),
    ]
    assert await value(node, "day", "get x") == "1"


async def test_a_burst_in_flight_keeps_it_awake_however_long_it_is_silent(node):
    await node.sessions.create(TENANT, CreateRequest(name="day", policy=Policy(idle_s=0.1)))
    burst = asyncio.ensure_future(node.sessions.code(TENANT, "day", "wait"))
    for _ in range(60):
        await node.services.clockwork.look_at_activity()
        await asyncio.sleep(0.01)
    session = await node.sessions.get(TENANT, "day")
    assert session.status is Status.RUNNING
    assert node.sessions.awake_because(session.id)[0] == "1 burst in flight"
    await node.sessions.interrupt(TENANT, "day")
    await burst


async def test_the_run_deadline_pauses_and_the_next_resume_gets_the_whole_time_again(node):
    await node.sessions.create(TENANT, CreateRequest(name="day", policy=Policy(timeout_s=0.05)))

    async def is_paused():
        await node.services.clockwork.look_at_records()
        return (await node.sessions.get(TENANT, "day")).status is Status.PAUSED_LOCAL

    await until(is_paused)
    session, _ = await node.sessions.resume(TENANT, "day")
    assert session.policy.timeout_s == 0.05
    assert session.run_deadline_at_s > session.running_since_s
    assert session.timeline[-4].reason == "run deadline"


@pytest.mark.parametrize(
    "request_",
    [
        CreateRequest(name="day", policy=Policy(timeout_s=0.05, timeout_action=DeadlineAction.KILL)),
        CreateRequest(name="day", ttl_s=0.05),
    ],
)
async def test_a_deadline_that_kills_deletes(node, machine, request_):
    await node.sessions.create(TENANT, request_)

    async def is_gone():
        await node.services.clockwork.look_at_records()
        return not (await node.sessions.page(TENANT)).sessions

    await until(is_gone)
    assert set(machine.host.instances) <= node.pool.instances()


async def test_a_paused_session_is_announced_and_then_deleted_after_its_retention(node, machine):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day", policy=Policy(retention_s=1000.0)))
    await node.sessions.pause(TENANT, "day")
    record = await machine.catalog.get(TENANT, session.id)
    await machine.catalog.replace(replace(record, paused_at_s=record.paused_at_s - 950.0))

    async def is_announced():
        await node.services.clockwork.look_at_records()
        return (await machine.catalog.get(TENANT, session.id)).expiry_warned_at_s is not None

    await until(is_announced)
    record = await machine.catalog.get(TENANT, session.id)
    await machine.catalog.replace(replace(record, paused_at_s=record.paused_at_s - 51.0))

    async def is_gone():
        await node.services.clockwork.look_at_records()
        return (await machine.catalog.get(TENANT, session.id)).status is Status.DELETED

    await until(is_gone)


async def test_reads_bursts_and_resumes_leave_every_deadline_where_it_was(node):
    policy = Policy(idle_s=None, timeout_s=1000.0, retention_s=500.0)
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day", policy=policy, ttl_s=5000.0))
    first = await node.sessions.get(TENANT, "day")
    for _ in range(3):
        await value(node, "day", "set x 1")
    assert (await node.sessions.get(TENANT, "day")).run_deadline_at_s == first.run_deadline_at_s
    for _ in range(3):
        paused = await node.sessions.pause(TENANT, "day")
        assert paused.policy == policy
        assert paused.run_left_s <= 1000.0
        await node.sessions.resume(TENANT, "day")
    last = await node.sessions.get(TENANT, session.id)
    assert last.hard_deadline_at_s == first.hard_deadline_at_s
    assert last.run_deadline_at_s >= first.run_deadline_at_s


async def test_clocks_are_set_by_name_and_the_others_stay(node):
    await node.sessions.create(TENANT, CreateRequest(name="day", policy=Policy(idle_s=7.0)))
    change = ClockChange(Policy(timeout_s=60.0), ttl_s=90.0, fields=frozenset({"timeout_s", "ttl_s"}))
    session = await node.sessions.set_clocks(TENANT, "day", change)
    assert (session.policy.idle_s, session.policy.timeout_s) == (7.0, 60.0)
    assert session.run_deadline_at_s == pytest.approx(session.hard_deadline_at_s - 30.0, abs=1.0)


@pytest.mark.parametrize("field", ["idle_s", "timeout_s", "retention_s"])
@pytest.mark.parametrize("length_s", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_length_that_is_none_is_refused_by_its_field(node, field, length_s):
    with pytest.raises(InvalidArgument) as refused:
        await node.sessions.create(TENANT, CreateRequest(policy=Policy(**{field: length_s})))
    assert refused.value.details["field"] == field


async def test_a_rebuild_is_not_offered_yet(node):
    with pytest.raises(Unsupported, match="not offered yet"):
        await node.sessions.create(TENANT, CreateRequest(policy=Policy(on_resume=OnResume.REBUILD)))


async def test_a_resume_that_does_not_fit_waits_for_memory_and_takes_it_from_the_warm_tier(machine):
    memory = SetMemory(GB, GB)
    async with open_fake(machine, warm_bytes=GB, memory=memory) as node:
        for name in ("day", "night"):
            await node.sessions.create(TENANT, CreateRequest(name=name))
            await value(node, name, "set x 1")
        await node.sessions.pause(TENANT, "night")
        await node.services.warm.drop_all()
        await node.sessions.pause(TENANT, "day")
        assert node.services.warm.bytes_held > 0
        memory.available = 0
        resuming = asyncio.ensure_future(node.sessions.resume(TENANT, "night"))

        async def gave_way():
            return node.services.warm.bytes_held == 0

        await until(gave_way)
        assert not resuming.done()
        memory.available = GB
        session, told = await resuming
        assert (session.status, told.tier) == (Status.RUNNING, Tier.LOCAL)
        assert await value(node, "night", "get x") == "1"


async def test_a_session_larger_than_the_node_is_refused_at_once_and_stays_paused(machine):
    memory = SetMemory(GB, GB)
    async with open_fake(machine, memory=memory) as node:
        await node.sessions.create(TENANT, CreateRequest(name="day"))
        paused = await node.sessions.pause(TENANT, "day")
    memory.total = 256 * 1024**2  # all of it is reserve
    async with open_fake(machine, memory=memory) as node:
        with pytest.raises(QuotaExceeded) as refused:
            await node.sessions.code(TENANT, "day", "")
        assert refused.value.details["reason"] == "no_memory"
        after = await node.sessions.get(TENANT, "day")
        assert (after.status, after.snapshot) == (Status.PAUSED_LOCAL, paused.snapshot)


async def test_a_filesystem_session_goes_by_its_own_name_after_a_boot(node):
    await node.sessions.create(TENANT, CreateRequest(name="day", persistence=Persistence.FILESYSTEM))
    await node.sessions.pause(TENANT, "day")
    assert await value(node, "day", "hostname") == "day"


async def test_a_step_down_that_its_caller_did_not_hear_of_is_told_with_the_next_burst(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await node.sessions.pause(TENANT, "day")
    node.engine.fail("restore", EngineError("restore failed: EOF"), times=2)
    burst = asyncio.ensure_future(node.sessions.code(TENANT, "day", "wait"))

    async def is_running():
        return (await node.sessions.get(TENANT, "day")).status is Status.RUNNING

    await until(is_running)
    await asyncio.sleep(0.05)
    burst.cancel()
    await asyncio.wait((burst,))
    await node.sessions.interrupt(TENANT, "day")
    told = (await node.sessions.code(TENANT, "day", "")).resumption
    assert told.outcome is Outcome.RESTORED_FILESYSTEM
    assert (await node.sessions.code(TENANT, "day", "")).resumption is None


async def test_what_woke_a_session_for_a_file_is_told_with_the_next_burst(node):
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    await node.sessions.pause(TENANT, "day")

    async def data():
        yield b"x"

    await node.sessions.write_file(TENANT, "day", "/root/note", data())
    assert (await node.sessions.code(TENANT, "day", "")).resumption.generation == 2


async def test_a_deletion_that_failed_half_way_is_gone_on_with(machine, monkeypatch):
    async with open_fake(machine) as node:
        session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
        await node.sessions.pause(TENANT, "day")

        async def out(_objects, key):
            raise Unavailable(f"cannot delete {key}: no answer")

        with monkeypatch.context() as outage:
            outage.setattr(MemoryObjects, "delete", out)
            with pytest.raises(Unavailable):
                await node.sessions.delete(TENANT, "day")
        assert (await machine.catalog.get(TENANT, session.id)).status is Status.DELETING

        async def is_gone():
            await node.services.clockwork.look_at_deletions()
            return (await machine.catalog.get(TENANT, session.id)).status is Status.DELETED

        await until(is_gone)
