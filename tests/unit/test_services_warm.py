import asyncio
import itertools

import pytest

from torpor.adapters.clock.virtual import VirtualClock
from torpor.adapters.engines.fake import FakeEngine
from torpor.adapters.guest.client import FramedDialer
from torpor.domain.errors import Conflict, EngineError
from torpor.domain.ids import InstanceId, SessionId
from torpor.ports.engine import InstanceShape, InstanceStatus
from torpor.services.doomed import first_for
from torpor.services.live import Live
from torpor.services.warm import Kept, Warm
from torpor.testing.fake_guest import FakeGuestProgram

PROGRAM = "fake-guest"
NUMBERS = itertools.count()


class Bench:
    """A clock, an engine, a warm tier of 100 bytes, and instances as a capture leaves them."""

    def __init__(self, tmp_path, *, budget_bytes=100):
        self.clock = VirtualClock()
        self.engine = FakeEngine({PROGRAM: FakeGuestProgram}, self.clock)
        self.warm = Warm(budget_bytes=budget_bytes)
        self._tmp_path = tmp_path

    async def captured(self, shape):
        instance = InstanceId(f"{next(NUMBERS):020d}")
        await self.engine.create(instance, shape)
        await self.engine.start(instance)
        guest = FramedDialer(self.clock).connect(instance, await self.engine.attach(instance))
        await guest.hello()
        await guest.quiesce()
        folder = self._tmp_path / instance
        folder.mkdir()
        await self.engine.checkpoint(instance, folder)
        return Live(instance, self.engine, guest, 1)

    async def keep(self, name, live, size_bytes=40, *, sequence=2):
        await self.clock.advance(1)
        return await self.warm.keep(SessionId(name), live, generation=1, sequence=sequence, size_bytes=size_bytes)

    async def take(self, name, *, sequence=2):
        return await self.warm.take(SessionId(name), sequence=sequence)

    def alive(self):
        return set(self.engine.host.instances)


@pytest.fixture
def shape(tmp_path):
    return InstanceShape(rootfs=tmp_path, argv=(PROGRAM,))


@pytest.fixture
async def bench(tmp_path):
    opened = Bench(tmp_path)
    yield opened
    await opened.warm.drop_all()
    assert (opened.warm.bytes_held, opened.warm.instances()) == (0, frozenset())


async def test_what_is_kept_is_frozen_and_handed_over_once_still_frozen(bench, shape):
    live = await bench.captured(shape)
    assert await bench.keep("a", live)
    assert (bench.warm.bytes_held, bench.warm.instances()) == (40, {live.instance})
    assert await bench.engine.inspect(live.instance) is InstanceStatus.FROZEN
    assert await bench.take("a") is live
    assert await bench.engine.inspect(live.instance) is InstanceStatus.FROZEN
    assert await bench.take("a") is None
    assert (bench.warm.bytes_held, bench.alive()) == (0, {live.instance})
    await live.guest.close()


async def test_of_two_that_take_at_once_one_gets_it(bench, shape):
    live = await bench.captured(shape)
    assert await bench.keep("a", live)
    taken = await asyncio.gather(*(bench.take("a") for _ in range(3)))
    assert taken == [live, None, None]
    await live.guest.close()


async def test_another_snapshots_instance_is_destroyed_and_never_shown(bench, shape):
    assert await bench.keep("a", await bench.captured(shape), sequence=2)
    assert await bench.take("a", sequence=3) is None
    assert bench.alive() == set()
    assert await bench.take("a", sequence=2) is None


async def test_a_session_keeps_its_newest_state_alone(bench, shape):
    older, newer = await bench.captured(shape), await bench.captured(shape)
    assert await bench.keep("a", older, sequence=2)
    assert await bench.keep("a", newer, sequence=3)
    assert bench.alive() == {newer.instance}
    assert await bench.take("a", sequence=3) is newer
    await newer.guest.close()


async def test_the_longest_kept_make_room(bench, shape):
    kept = [await bench.captured(shape) for _ in range(4)]
    for name, live in zip("abcd", kept, strict=True):
        assert await bench.keep(name, live)
    assert bench.alive() == {kept[2].instance, kept[3].instance}
    assert bench.warm.bytes_held == 80


async def test_what_is_larger_than_the_budget_drops_nobody_and_stays_its_callers(bench, shape):
    small, large = await bench.captured(shape), await bench.captured(shape)
    assert await bench.keep("a", small)
    assert not await bench.keep("b", large, 101)
    assert bench.alive() == {small.instance, large.instance}
    assert bench.warm.instances() == {small.instance}
    await large.guest.close()


async def test_a_budget_of_nothing_keeps_nothing(tmp_path, shape):
    bench = Bench(tmp_path, budget_bytes=0)
    live = await bench.captured(shape)
    assert not bench.warm.enabled
    assert not await bench.keep("a", live, 0)
    assert bench.warm.instances() == frozenset()
    await live.guest.close()


async def test_an_instance_that_does_not_freeze_is_not_kept(bench, shape):
    live = await bench.captured(shape)
    bench.engine.fail("freeze", EngineError("cannot freeze"))
    assert not await bench.keep("a", live)
    assert (bench.warm.bytes_held, bench.alive()) == (0, {live.instance})
    await live.guest.close()


async def test_an_instance_that_died_is_dropped_and_not_handed_over(bench, shape):
    live = await bench.captured(shape)
    assert await bench.keep("a", live)
    bench.engine.host.kill(live.instance)
    assert await bench.take("a") is None
    assert bench.alive() == set()


async def test_dropping_a_session_destroys_its_instance_and_no_other(bench, shape):
    first, second = await bench.captured(shape), await bench.captured(shape)
    assert await bench.keep("a", first)
    assert await bench.keep("b", second)
    await bench.warm.drop(SessionId("a"))
    await bench.warm.drop(SessionId("nobody"))
    assert bench.alive() == {second.instance}


async def test_pressure_takes_the_longest_kept_first_and_no_more_than_asked(bench, shape):
    kept = [await bench.captured(shape) for _ in range(3)]
    for name, live in zip("abc", kept, strict=True):
        assert await bench.keep(name, live, 30)
    assert await bench.warm.shrink(90) == 0
    assert await bench.warm.give_back(1) == 30
    assert bench.alive() == {kept[1].instance, kept[2].instance}
    assert await bench.warm.give_back(1000) == 60
    assert bench.alive() == set()


async def test_what_was_not_destroyed_still_counts_is_never_handed_over_and_is_tried_again(bench, shape):
    live = await bench.captured(shape)
    assert await bench.keep("a", live, 60)
    bench.engine.fail("destroy", Conflict("cannot remove: busy"))
    assert await bench.warm.shrink(0) == 0
    assert (bench.warm.bytes_held, bench.warm.instances()) == (60, {live.instance})
    assert await bench.take("a") is None
    bench.engine.fail("destroy", Conflict("cannot remove: busy"))
    other = await bench.captured(shape)
    assert not await bench.keep("b", other, 60)
    assert await bench.warm.shrink(0) == 60
    assert bench.alive() == {other.instance}
    assert await bench.keep("b", other, 60)


async def test_a_take_waits_for_the_keep_under_way(tmp_path, shape):
    bench = Bench(tmp_path)
    bench.engine._latency_s["freeze"] = 5.0
    live = await bench.captured(shape)
    keeping = asyncio.ensure_future(bench.warm.keep(SessionId("a"), live, generation=1, sequence=2, size_bytes=40))
    taking = asyncio.ensure_future(bench.take("a"))
    await bench.clock.advance(4)
    assert (bench.warm.bytes_held, bench.warm.instances(), taking.done()) == (40, {live.instance}, False)
    await bench.clock.advance(1)
    assert (await keeping, await taking) == (True, live)
    await live.guest.close()


async def test_two_that_enter_at_once_share_the_budget(tmp_path, shape):
    bench = Bench(tmp_path)
    bench.engine._latency_s["freeze"] = 1.0
    lives = [await bench.captured(shape) for _ in range(2)]
    keeping = [
        asyncio.ensure_future(bench.warm.keep(SessionId(name), live, generation=1, sequence=2, size_bytes=60))
        for name, live in zip("ab", lives, strict=True)
    ]
    await bench.clock.advance(1)
    assert [await one for one in keeping] == [True, False]
    assert bench.warm.instances() == {lives[0].instance}
    await bench.warm.drop_all()
    await lives[1].guest.close()


async def test_a_cancelled_shrink_and_a_cancelled_take_lose_track_of_nothing(tmp_path, shape):
    bench = Bench(tmp_path)
    bench.engine._latency_s["destroy"] = 5.0
    live = await bench.captured(shape)
    assert await bench.keep("a", live)
    taking = asyncio.ensure_future(bench.take("a"))
    taking.cancel()
    await asyncio.wait((taking,))
    shrinking = asyncio.ensure_future(bench.warm.shrink(0))
    await bench.clock.advance(1)
    shrinking.cancel()
    await asyncio.wait((shrinking,))
    assert bench.warm.instances() == {live.instance}
    again = [asyncio.ensure_future(bench.warm.shrink(0)) for _ in range(2)]
    await bench.clock.advance(5)
    assert [await one for one in again] == [40, 40]
    assert bench.alive() == set()


def test_as_few_of_the_longest_held_go_as_suffice():
    held = [Kept(SessionId(name), None, 1, 1, size) for name, size in [("old", 5), ("mid", 5), ("new", 9)]]
    assert [one.session for one in first_for(0, held)] == []
    assert [one.session for one in first_for(5, held)] == ["old"]
    assert [one.session for one in first_for(6, held)] == ["old", "mid"]
    assert [one.session for one in first_for(99, held)] == ["old", "mid", "new"]
