"""What is repeated, how often, and what never is; bounds, counts and faults."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from torpor.adapters.clock.virtual import VirtualClock
from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.adapters.objects.faulty import CALM, Fault, FaultyObjects, Weather
from torpor.adapters.objects.forwarding import ForwardingObjects, Operation
from torpor.adapters.objects.limit import LimitObjects
from torpor.adapters.objects.memory import MemoryObjects
from torpor.adapters.objects.metered import MeteredObjects
from torpor.adapters.objects.retry import Patience, RetryObjects
from torpor.domain.errors import NotFound, Unavailable
from torpor.domain.ids import DEFAULT_TENANT, SnapshotId
from torpor.domain.snapshot import SnapshotRef
from torpor.store.heads import Heads


class Slept(VirtualClock):
    """Notes how long it was asked to sleep, and wakes at once."""

    def __init__(self):
        super().__init__()
        self.delays_s = []

    async def sleep(self, duration_s):
        self.delays_s.append(duration_s)
        await asyncio.sleep(0)


class Stack:
    def __init__(self, **patience):
        self.clock = Slept()
        self.memory = MemoryObjects()
        self.faulty = FaultyObjects(self.memory, self.clock, SeededEntropy(3))
        self.metered = MeteredObjects(self.faulty)
        self.objects = RetryObjects(self.metered, self.clock, SeededEntropy(4), patience=Patience(**patience))


CALLS = {
    Operation.PUT: lambda objects: objects.put("a", b"1"),
    Operation.GET: lambda objects: objects.get("a"),
    Operation.GET_RANGE: lambda objects: objects.get_range("a", offset=0, size=1),
    Operation.HEAD: lambda objects: objects.head("a"),
    Operation.DELETE: lambda objects: objects.delete("a"),
}


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("operation", list(CALLS))
async def test_a_call_that_may_be_repeated_is(operation, fault):
    stack = Stack()
    await stack.memory.put("a", b"1")
    stack.faulty.fail_next(operation, fault, count=2)
    await CALLS[operation](stack.objects)
    assert (stack.metered.meter.calls[operation], len(stack.clock.delays_s)) == (3, 2)


async def test_patience_ends_and_grows_with_jitter_up_to_its_bound():
    stack = Stack(attempts=6, first_s=1.0, longest_s=4.0)
    stack.faulty.is_out = True
    with pytest.raises(Unavailable):
        await stack.objects.get("a")
    assert stack.metered.meter.calls[Operation.GET] == 6
    assert all(most / 2 <= slept <= most for slept, most in zip(stack.clock.delays_s, (1, 2, 4, 4, 4), strict=True))
    assert len(set(stack.clock.delays_s)) == 5


async def test_an_error_that_repeating_does_not_mend_is_raised_at_once():
    stack = Stack()
    with pytest.raises(NotFound):
        await stack.objects.get("a")

    class Broken(MemoryObjects):
        async def get(self, key):
            raise Unavailable(f"cannot read {key}: credentials", retry_after_s=60.0)

    with pytest.raises(Unavailable):
        await RetryObjects(Broken(), stack.clock, SeededEntropy(1)).get("a")
    assert stack.clock.delays_s == []


async def test_attempts_that_take_long_do_not_add_up():
    class Slow(MemoryObjects):
        asked = 0

        async def get(self, key):
            self.asked += 1
            await clock.sleep(25.0)
            raise Unavailable(f"cannot read {key}: no answer")

    clock, slow = VirtualClock(autojump_after_s=0.001), Slow()
    with pytest.raises(Unavailable):
        await RetryObjects(slow, clock, SeededEntropy(1), patience=Patience(total_s=60.0)).get("a")
    assert slow.asked == 3


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_conditional_write_is_never_repeated_by_itself(fault):
    stack = Stack()
    stack.faulty.fail_next(Operation.PUT_IF, fault)
    with pytest.raises(Unavailable):
        await stack.objects.put_if("head", b"1", etag=None)
    assert (stack.metered.meter.calls[Operation.PUT_IF], stack.clock.delays_s) == (1, [])


async def test_a_listing_that_breaks_off_goes_on_where_it_was():
    stack = Stack(attempts=3)
    for key in "abcd":
        await stack.memory.put(key, b"")
    stack.faulty.fail_next(Operation.LIST, Fault.AFTER)
    stack.faulty.fail_next(Operation.LIST, Fault.BEFORE)
    assert [info.key async for info in stack.objects.list("")] == ["a", "b", "c", "d"]
    stack.faulty.is_out = True
    with pytest.raises(Unavailable):
        [info async for info in stack.objects.list("")]
    assert stack.metered.meter.calls[Operation.LIST] == 6


async def test_the_meter_counts_calls_bytes_and_errors():
    stack = Stack(attempts=1)
    await stack.metered.put("a", b"12345")
    await stack.metered.put_if("b", b"123", etag=None)
    await stack.metered.get("a")
    await stack.metered.get_range("a", offset=1, size=2)
    [info async for info in stack.metered.list("")]
    with pytest.raises(NotFound):
        await stack.metered.head("c")
    stack.faulty.is_out = True
    with pytest.raises(Unavailable):
        await stack.metered.get("a")
    meter = stack.metered.meter
    assert (meter.written_bytes, meter.read_bytes) == (8, 7)
    assert meter.calls == {"put": 1, "put_if": 1, "get": 2, "get_range": 1, "list": 1, "head": 1}
    assert meter.errors == {"not_found": 1, "unavailable": 1}


async def test_no_more_calls_run_at_once_than_the_limit():
    class Crowd(ForwardingObjects):
        inside = most = 0

        async def _around(self, _call, perform):
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0)
            self.inside -= 1
            return await perform()

    crowd = Crowd(MemoryObjects())
    limited = LimitObjects(crowd, 3)
    await asyncio.gather(*(limited.put(f"k{number}", b"") for number in range(20)))
    assert crowd.most == 3


async def test_the_reader_of_a_listing_may_call_a_store_that_allows_one_call():
    limited = LimitObjects(MemoryObjects(), 1)
    for key in "abc":
        await limited.put(key, b"")
    async for info in limited.list(""):
        await limited.delete(info.key)
    assert [info async for info in limited.list("")] == []


async def test_equal_seeds_give_equal_faults_and_calm_gives_none():
    async def history(weather):
        faulty = FaultyObjects(MemoryObjects(), VirtualClock(), SeededEntropy(9), weather=weather)
        for number in range(200):
            with contextlib.suppress(Unavailable):
                await faulty.put(f"k{number}", b"")
        return faulty.faults

    storm = Weather(before=0.1, after=0.1)
    faults = await history(storm)
    assert faults == await history(storm)
    assert {fault for _, fault in faults} == set(Fault)
    assert 15 < len(faults) < 70
    assert await history(CALM) == []


async def test_a_lost_answer_is_of_a_write_that_happened():
    memory = MemoryObjects()
    faulty = FaultyObjects(memory, VirtualClock(), SeededEntropy(1))
    faulty.fail_next(Operation.PUT, Fault.BEFORE)
    faulty.fail_next(Operation.PUT, Fault.AFTER)
    for expected in ([], ["a"]):
        with pytest.raises(Unavailable):
            await faulty.put("a", b"1")
        assert [info.key async for info in memory.list("")] == expected


async def test_a_delay_passes_on_the_clock_that_was_handed_in():
    clock = VirtualClock()
    faulty = FaultyObjects(MemoryObjects(), clock, SeededEntropy(1), weather=Weather(delayed=1.0, delay_max_s=9.0))
    async with asyncio.TaskGroup() as group:
        put = group.create_task(faulty.put("a", b"1"))
        await clock.advance(0.0)
        assert not put.done()
        await clock.advance(9.0)
        assert put.done()


async def test_heads_take_their_own_lost_write_for_success_through_retry():
    stack = Stack()
    heads = Heads(stack.objects, SeededEntropy(5))
    ref = SnapshotRef(DEFAULT_TENANT, "session", SnapshotId("one"), 1, "d" * 64)
    stack.faulty.fail_next(Operation.PUT_IF, Fault.AFTER)
    stack.faulty.fail_next(Operation.HEAD, Fault.AFTER)
    assert await heads.advance(ref) > 0
    assert await heads.read(DEFAULT_TENANT, "session") == ref
