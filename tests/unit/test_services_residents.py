"""Which golden images stay in memory: those in use, then those used last; a new template's gets a place in time."""

import asyncio
import contextlib

from torpor.adapters.clock.virtual import VirtualClock
from torpor.services import residents
from torpor.services.residents import IMAGES_MAX, REST_S_MIN, Residents


class Counted(Residents):
    """Loads names instead of images, and notes what was loaded and closed."""

    def __init__(self, clock):
        super().__init__(None, None, clock)
        self.loaded: list[str] = []
        self.closed: list[str] = []

    async def _load(self, golden):
        await asyncio.sleep(0)
        self.loaded.append(golden)
        closing = contextlib.AsyncExitStack()
        closing.callback(self.closed.append, golden)
        return residents._Image(golden, closing, self._clock.monotonic_s())

    async def use(self, *goldens):
        found = []
        for golden in goldens:
            async with self.lent(golden) as resident:
                found.append(resident)
        return found


FIRST = [f"golden {number}" for number in range(IMAGES_MAX)]


async def test_an_image_is_loaded_once_however_many_want_it_at_once():
    images = Counted(VirtualClock())
    assert await asyncio.gather(*(images.use("golden") for _ in range(5))) == [["golden"]] * 5
    assert images.loaded == ["golden"]


async def test_images_that_are_used_in_turn_do_not_push_each_other_out():
    clock = VirtualClock()
    images = Counted(clock)
    assert await images.use(*FIRST) == FIRST
    await clock.advance(REST_S_MIN / 2)
    assert await images.use("new", *FIRST) == [None, *FIRST]
    assert (images.loaded, images.closed) == (FIRST, [])


async def test_the_image_that_rested_longest_gives_its_place_to_one_that_is_wanted():
    clock = VirtualClock()
    images = Counted(clock)
    await images.use(*FIRST)
    await clock.advance(1)
    await images.use(FIRST[0])
    await clock.advance(REST_S_MIN)
    assert await images.use("new", FIRST[0]) == ["new", FIRST[0]]
    assert images.closed == [FIRST[1]]
    assert await images.use(FIRST[1]) == [FIRST[1]]
    assert images.closed == [FIRST[1], FIRST[2]]


async def test_an_image_in_use_keeps_its_place_however_long():
    clock = VirtualClock()
    images = Counted(clock)
    async with contextlib.AsyncExitStack() as using:
        for golden in FIRST:
            await using.enter_async_context(images.lent(golden))
        await clock.advance(10 * REST_S_MIN)
        assert await images.use("new") == [None]
    assert await images.use("new") == [None], "they were used until just now"
    await clock.advance(REST_S_MIN)
    assert await images.use("new") == ["new"]


async def test_all_memory_is_given_back_at_the_end():
    images = Counted(VirtualClock())
    await images.use(*FIRST)
    await images.drop()
    assert sorted(images.closed) == FIRST
