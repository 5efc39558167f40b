"""What holds of a node's memory queue after any history: of requests, ends, cancellations, and memory that moves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.adapters.clock.virtual import VirtualClock
from torpor.adapters.host.memory import SetMemory
from torpor.domain.errors import Unavailable
from torpor.domain.ids import TenantId
from torpor.services.admission import PASSES_MAX, Admission
from torpor.services.supervisor import Supervisor

TOTAL = 100
RESERVE = 10
MOST = TOTAL - RESERVE

TENANTS = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), TENANTS, st.integers(0, MOST), st.sampled_from([0.0, 3.0, 12.0])),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("memory"), st.integers(0, TOTAL)),
        st.tuples(st.just("time"), st.sampled_from([0.1, 2.0])),
    ),
    max_size=25,
)


@dataclass(eq=False)
class Placement:
    tenant: str
    need: int
    end: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: str = "waiting"
    task: asyncio.Task[None] | None = None


TURNS = 20


class World:
    """The real queue; memory that a test moves; placements that hold what they were promised."""

    def __init__(self) -> None:
        self.memory = SetMemory(TOTAL, TOTAL)
        self.clock = VirtualClock()
        self.supervisor = Supervisor()
        self.admission = Admission(self.memory, self.clock, self.supervisor, reserve_bytes=RESERVE)
        self.asked: list[Placement] = []
        self.admitted: list[Placement] = []

    async def ask(self, tenant: str, need: int, patience_s: float) -> Placement:
        placement = Placement(tenant, need)
        self.asked.append(placement)
        deadline_s = self.clock.monotonic_s() + patience_s
        placement.task = asyncio.ensure_future(self._place(placement, deadline_s))
        await self.clock.advance(0)
        return placement

    async def _place(self, placement: Placement, deadline_s: float) -> None:
        try:
            async with self.admission.room(TenantId(placement.tenant), placement.need, deadline_s=deadline_s):
                self._check_promises()
                self._check_order(placement)
                placement.outcome = "admitted"
                self.admitted.append(placement)
                await placement.end.wait()
                placement.outcome = "ended"
        except Unavailable as error:
            placement.outcome = f"refused: {error.details['reason']}"
        except asyncio.CancelledError:
            placement.outcome = "cancelled"
            raise

    def _check_promises(self) -> None:
        assert self.admission.promised_bytes <= self.memory.available - RESERVE

    def _check_order(self, placement: Placement) -> None:
        """Whoever still stands in line of its tenant came after it. One admitted before it may wake up after it."""
        after = self.asked[self.asked.index(placement) + 1 :]
        later = [one for one in after if one.tenant == placement.tenant and one.outcome == "waiting"]
        assert len(self.admission._line.get(TenantId(placement.tenant), ())) <= len(later)

    async def step(self, kind: str, *of) -> None:
        match kind:
            case "ask":
                await self.ask(*of)
            case "end" if of[0] < len(self.asked):
                self.asked[of[0]].end.set()
            case "cancel" if of[0] < len(self.asked):
                self.asked[of[0]].task.cancel()
            case "memory":
                self.memory.available = of[0]
            case "time":
                await self.clock.advance(of[0])
        await self.clock.advance(0)
        for _ in range(TURNS):  # who was admitted, cancelled or refused says so a few turns of the loop later
            await asyncio.sleep(0)
        holding = sum(one.need for one in self.asked if one.outcome == "admitted")
        assert self.admission.promised_bytes == holding
        assert self.admission.waiting_count == sum(one.outcome == "waiting" for one in self.asked)

    async def finish(self) -> None:
        for placement in self.asked:
            placement.end.set()
        await self.clock.advance(15)
        await asyncio.gather(*(placement.task for placement in self.asked), return_exceptions=True)
        await self.supervisor.settle()


@settings(max_examples=settings.default.max_examples // 2, deadline=None)
@given(STEPS)
def test_memory_is_never_promised_twice_and_every_waiter_ends(steps):
    async def history() -> None:
        world = World()
        for step in steps:
            await world.step(*step)
        await world.finish()
        assert {one.outcome for one in world.asked} <= {"ended", "refused: no_memory", "cancelled"}
        assert (world.admission.promised_bytes, world.admission.waiting_count) == (0, 0)
        for one in world.asked:
            assert one.task.cancelled() or one.task.exception() is None, one.task.exception()

    asyncio.run(history())


@settings(max_examples=settings.default.max_examples // 2, deadline=None)
@given(
    st.integers(MOST // 2 + 1, MOST), st.lists(st.tuples(TENANTS, st.integers(1, MOST // 2)), min_size=1, max_size=40)
)
def test_no_request_starves_behind_smaller_ones_that_keep_coming(large, smalls):
    async def history() -> None:
        world = World()
        first = await world.ask("z", MOST // 2, 12.0)
        waiting_for = await world.ask("large", large, 12.0)
        assert waiting_for.outcome == "waiting"
        passed = []
        for tenant, need in smalls:
            passed.append(await world.ask(tenant, need, 12.0))
            first.end.set()
            for one in passed[:-1]:  # of those that go first there is always one left, so the large one never fits
                one.end.set()
            await world.clock.advance(0)
        went_first = [
            one for one in world.admitted if one in passed and world.admitted.index(one) < _rank(world, waiting_for)
        ]
        assert len(went_first) <= PASSES_MAX + len(set("abc"))
        await world.finish()
        assert waiting_for.outcome == "ended"

    asyncio.run(history())


def _rank(world: World, placement: Placement) -> int:
    return world.admitted.index(placement) if placement in world.admitted else len(world.admitted)


@settings(max_examples=settings.default.max_examples // 2, deadline=None)
@given(st.lists(TENANTS, min_size=1, max_size=12))
def test_tenants_that_all_want_everything_are_served_in_turns(tenants):
    async def history() -> None:
        world = World()
        first = await world.ask("z", MOST, 12.0)
        for tenant in tenants:
            await world.ask(tenant, MOST, 12.0)
        first.end.set()
        await world.clock.advance(0)
        while len(world.admitted) <= len(tenants):
            world.admitted[-1].end.set()
            await world.clock.advance(0)
        assert [one.tenant for one in world.admitted[1:]] == _in_turns(tenants)
        await world.finish()

    asyncio.run(history())


def _in_turns(tenants: list[str]) -> list[str]:
    order = list(dict.fromkeys(tenants))
    rounds = [[tenant for tenant in order if tenants.count(tenant) > number] for number in range(len(tenants))]
    return [tenant for served in rounds for tenant in served]
