"""Sessions over fakes, and what fails around them: the catalog, a caller, a guest, a defect of ours."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fake_sessions import until, value

from torpor.domain.errors import Conflict, StorageFull
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.lifecycle import Snapshot
from torpor.domain.session import Policy, Status
from torpor.services.requests import ClockChange, CreateRequest, ForkRequest
from torpor.services.sessions import not_captured, not_paused


async def test_a_guest_that_does_not_answer_holds_up_no_other_sessions_clock(node, monkeypatch):
    hung, _ = await node.sessions.create(TENANT, CreateRequest(name="hung", policy=Policy(idle_s=0.2)))
    await node.sessions.create(TENANT, CreateRequest(name="day", policy=Policy(idle_s=0.2)))
    never = asyncio.Event()
    live = node.services.runtimes.of(hung.id).live
    monkeypatch.setattr(live.guest, "activity", never.wait)

    async def is_paused():
        await asyncio.wait_for(node.services.clockwork.look_at_activity(), 5)
        return (await node.sessions.get(TENANT, "day")).status is Status.PAUSED_LOCAL

    await until(is_paused)
    assert (await node.sessions.get(TENANT, "hung")).status is Status.RUNNING
    monkeypatch.undo()
    never.set()


async def test_a_clock_goes_on_after_an_error_without_a_type(node, monkeypatch):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day", policy=Policy(timeout_s=0.01)))
    monkeypatch.setattr("torpor.services.clockwork.RETRY_S", 0.01)
    failures = [OSError("a defect of ours")]
    pause = node.sessions.pause

    async def fails_once(*args, **kwargs):
        if failures:
            raise failures.pop()
        return await pause(*args, **kwargs)

    monkeypatch.setattr(node.sessions, "pause", fails_once)

    async def is_paused():
        await node.services.clockwork.look_at_records()
        return (await node.sessions.get(TENANT, session.id)).status is Status.PAUSED_LOCAL

    await until(is_paused)


async def test_a_live_snapshot_whose_end_could_not_be_recorded_costs_nobody_the_session(node, machine, monkeypatch):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    replace_ = machine.catalog.replace

    async def full_at_its_end(record):
        if record.status is Status.RUNNING:
            raise StorageFull("cannot write the catalog: the disk is full")
        return await replace_(record)

    monkeypatch.setattr(machine.catalog, "replace", full_at_its_end)
    with pytest.raises(Conflict):
        await node.sessions.snapshot(TENANT, "day")
    assert (await node.sessions.get(TENANT, "day")).status is Status.SNAPSHOTTING
    with pytest.raises(StorageFull):
        await value(node, "day", "get x")
    monkeypatch.undo()
    assert await value(node, "day", "incr x") == "2"
    again = await node.sessions.get(TENANT, "day")
    assert (again.status, again.instance) == (Status.RUNNING, session.instance)


@pytest.mark.parametrize("use", ["snapshot", "pause"])
async def test_an_order_to_capture_whose_caller_left_is_ended_by_the_next(node, use):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    await node.services.records.apply(TENANT, session.id, Snapshot())  # and the caller was cancelled here
    after = await getattr(node.sessions, use)(TENANT, "day")
    assert after.snapshot is not None
    assert await value(node, "day", "incr x") == "2"


async def test_clocks_that_are_set_at_the_same_time_do_not_undo_each_other(node, machine, monkeypatch):
    await node.sessions.create(TENANT, CreateRequest(name="day", policy=Policy(idle_s=None)))
    find = machine.catalog.find

    async def slow(tenant, name):
        found = await find(tenant, name)
        await asyncio.sleep(0)
        return found

    monkeypatch.setattr(machine.catalog, "find", slow)
    changes = (
        ClockChange(Policy(idle_s=7.0), fields=frozenset({"idle_s"})),
        ClockChange(Policy(timeout_s=60.0), fields=frozenset({"timeout_s"})),
        ClockChange(ttl_s=90.0, fields=frozenset({"ttl_s"})),
        ClockChange(Policy(retention_s=500.0), fields=frozenset({"retention_s"})),
    )
    await asyncio.gather(*(node.sessions.set_clocks(TENANT, "day", change) for change in changes))
    after = await node.sessions.get(TENANT, "day")
    assert (after.policy.idle_s, after.policy.timeout_s, after.policy.retention_s) == (7.0, 60.0, 500.0)
    assert after.hard_deadline_at_s is not None


@pytest.mark.parametrize("at_write", [1, 2])
@pytest.mark.parametrize("makes", ["create", "fork"])
async def test_a_birth_that_the_full_disk_ends_leaves_neither_key_nor_name(node, machine, monkeypatch, makes, at_write):
    await node.sessions.create(TENANT, CreateRequest(name="source"))
    await node.sessions.pause(TENANT, "source")
    secrets = set(machine.keys._secrets)
    insert, replace, writes = machine.catalog.insert, machine.catalog.replace, []

    def full_once(write):
        async def written(record):
            writes.append(record)
            if len(writes) == at_write:
                raise StorageFull("cannot write the catalog: the disk is full")
            return await write(record)

        return written

    monkeypatch.setattr(machine.catalog, "insert", full_once(insert))
    monkeypatch.setattr(machine.catalog, "replace", full_once(replace))
    made = {
        "create": lambda: node.sessions.create(TENANT, CreateRequest(name="day")),
        "fork": lambda: node.services.forks.fork(TENANT, "source", ForkRequest(names=("day",))),
    }[makes]
    with pytest.raises(StorageFull):
        await made()
    assert set(machine.keys._secrets) == secrets
    assert [session.name for session in (await node.sessions.page(TENANT)).sessions] == ["source"]


@pytest.mark.parametrize("makes", ["create", "fork"])
async def test_a_birth_whose_caller_left_comes_to_its_end_and_loses_no_instance(node, monkeypatch, makes):
    await node.sessions.create(TENANT, CreateRequest(name="source"))
    gate, began, restore = asyncio.Event(), asyncio.Event(), node.engine.restore

    async def slow(*args, **options):
        began.set()
        await gate.wait()
        await restore(*args, **options)

    monkeypatch.setattr(node.engine, "restore", slow)
    made = {
        "create": lambda: node.sessions.create(TENANT, CreateRequest(name="day")),
        "fork": lambda: node.services.forks.fork(TENANT, "source", ForkRequest(names=("day",))),
    }[makes]
    call = asyncio.ensure_future(made())
    await began.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    gate.set()

    async def runs():
        return (await node.sessions.get(TENANT, "day")).status is Status.RUNNING

    await until(runs)
    await value(node, "day", "set x 1")

    async def all_are_held():
        held = node.services.runtimes.instances() | node.pool.instances()
        return set(await node.engine.instances()) == held

    await until(all_are_held)


async def test_who_learns_late_of_a_death_does_not_end_the_instance_that_came_after(node, machine, monkeypatch):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
    await value(node, "day", "set x 1")
    await node.sessions.snapshot(TENANT, "day")
    inspect, late = node.engine.inspect, asyncio.Event()
    dead = session.instance

    async def first_is_slow(instance):
        status = await inspect(instance)
        if instance == dead and not late.is_set():
            late.set()
            await resumed.wait()
        return status

    resumed = asyncio.Event()
    monkeypatch.setattr(node.engine, "inspect", first_is_slow)
    bursts = [asyncio.ensure_future(node.sessions.code(TENANT, "day", "wait")) for _ in range(2)]
    await asyncio.sleep(0.05)
    machine.host.kill(dead)
    await late.wait()

    async def goes_back():
        try:
            await node.sessions.resume(TENANT, "day", allow_older=True)
        except Conflict:
            return False
        return (await node.sessions.get(TENANT, "day")).instance not in {None, dead}

    await until(goes_back)
    resumed.set()
    await asyncio.gather(*bursts, return_exceptions=True)
    assert await value(node, "day", "incr x") == "2"


@pytest.mark.parametrize("status", [Status.LOST, Status.RESUMING])
@pytest.mark.parametrize("why", [not_captured, not_paused])
async def test_a_pause_whose_session_died_is_a_conflict_also_if_somebody_brings_it_back_already(node, status, why):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
    lost = replace(session, status=status, last_error="its sandbox died", last_error_code="instance_lost")
    error = why(lost)
    assert isinstance(error, Conflict)
    assert error.details["reason"] == "lost_while_captured"
