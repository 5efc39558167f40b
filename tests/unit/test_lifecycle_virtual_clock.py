import asyncio

import pytest

from torpor.adapters.clock.virtual import VirtualClock
from torpor.ports.clock import Clock


async def test_time_stands_still_until_it_is_moved() -> None:
    clock: Clock = VirtualClock(wall_s=1000.0)
    before = (clock.wall_s(), clock.monotonic_s())
    await asyncio.sleep(0.001)
    assert (clock.wall_s(), clock.monotonic_s()) == before == (1000.0, 0.0)


async def test_sleepers_wake_in_order_each_at_its_own_instant() -> None:
    clock, woken = VirtualClock(wall_s=0.0), list[tuple[str, float]]()

    async def sleeper(name: str, *durations_s: float) -> None:
        for duration_s in durations_s:
            await clock.sleep(duration_s)
            woken.append((name, clock.wall_s()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("a", 3, 1))
        group.create_task(sleeper("b", 2, 2, 10))
        group.create_task(sleeper("c", 3))
        await clock.advance(5)
        assert woken == [("b", 2.0), ("a", 3.0), ("c", 3.0), ("b", 4.0), ("a", 4.0)]
        assert (clock.monotonic_s(), clock.sleepers_count) == (5.0, 1)
        await clock.advance(9)
    assert woken[-1] == ("b", 14.0)


async def test_a_sleep_of_nothing_lets_others_run() -> None:
    clock, done = VirtualClock(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_set(done))
        await clock.sleep(0)
        assert done.is_set()


async def _set(event: asyncio.Event) -> None:
    event.set()


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = VirtualClock()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(clock.sleep(5), timeout=0.001)
    assert clock.sleepers_count == 0
    await clock.advance(10)
    assert clock.monotonic_s() == 10.0


async def test_a_wall_clock_that_is_set_wakes_nobody() -> None:
    clock = VirtualClock(wall_s=1000.0)
    async with asyncio.TaskGroup() as group:
        sleeper = group.create_task(clock.sleep(5))
        await clock.advance(1)
        clock.jump_wall(-900.0)
        assert (clock.wall_s(), clock.monotonic_s(), sleeper.done()) == (101.0, 1.0, False)
        await clock.advance(4)
        assert sleeper.done()


async def test_an_autojumping_clock_passes_days_by_itself() -> None:
    clock, woken = VirtualClock(autojump_after_s=0.0), list[float]()

    async def nap(duration_s: float) -> None:
        await clock.sleep(duration_s)
        woken.append(clock.monotonic_s())
        await clock.sleep(1)

    await asyncio.gather(nap(86400), nap(3600), nap(7200))
    assert woken == [3600.0, 7200.0, 86400.0]
    assert clock.monotonic_s() == 86401.0


async def test_time_does_not_go_back() -> None:
    with pytest.raises(AssertionError, match="does not go back"):
        await VirtualClock().advance(-1)
