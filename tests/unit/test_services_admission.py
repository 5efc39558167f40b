import asyncio
import contextlib

import pytest

from torpor.adapters.clock.virtual import VirtualClock
from torpor.adapters.host.memory import HostMemory, SetMemory, memory_cgroups
from torpor.domain.errors import InvalidArgument, QuotaExceeded, Unavailable
from torpor.domain.ids import TenantId
from torpor.services.admission import PASSES_MAX, Admission, Request, default_reserve_bytes, next_turn
from torpor.services.supervisor import Supervisor

MIB = 1024 * 1024


class Line:
    """An admission over 100 bytes, and placements that end when they are told to."""

    def __init__(self, *, available=100, total=100, give_back=None):
        self.memory = SetMemory(total, available)
        self.clock = VirtualClock()
        self.supervisor = Supervisor()
        self.admission = Admission(self.memory, self.clock, self.supervisor, give_back=give_back, reserve_bytes=0)
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def ask(self, name, need_bytes, *, deadline_s=60.0):
        """``name``: the tenant's letter and a number."""
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.ensure_future(self._place(name, need_bytes, deadline_s))
        await self.clock.advance(0)

    async def end(self, name):
        self._ends[name].set()
        await self.clock.advance(0)

    async def _place(self, name, need_bytes, deadline_s):
        async with self.admission.room(TenantId(name[0]), need_bytes, deadline_s=deadline_s):
            self.order.append(name)
            await self._ends[name].wait()


@contextlib.asynccontextmanager
async def opened(**options):
    line = Line(**options)
    yield line
    for task in line.tasks.values():
        task.cancel()
    await asyncio.gather(*line.tasks.values(), return_exceptions=True)
    await line.supervisor.settle()
    assert (line.admission.promised_bytes, line.admission.waiting_count) == (0, 0)


async def test_spare_memory_is_held_only_where_it_is_free_and_nobody_waits():
    given_back = []

    async def give_back(wanted_bytes):
        given_back.append(wanted_bytes)
        return 0

    async with opened(give_back=give_back) as line:
        with line.admission.spare(101) as is_granted:
            assert (is_granted, line.admission.promised_bytes) == (False, 0)
        assert given_back == []
        with line.admission.spare(60) as is_granted:
            assert (is_granted, line.admission.free_bytes()) == (True, 40)
            await line.ask("a1", 50)
            assert line.order == []
            with line.admission.spare(10) as is_also_granted:
                assert not is_also_granted  # somebody waits
        await line.clock.advance(0)
        assert line.order == ["a1"]  # it need not look again: who gives memory back says so


async def test_what_fits_goes_at_once_and_is_counted_until_it_ends():
    async with opened() as line:
        await line.ask("a1", 60)
        assert (line.order, line.admission.promised_bytes, line.admission.free_bytes()) == (["a1"], 60, 40)
        await line.end("a1")
        assert line.admission.promised_bytes == 0


async def test_a_release_wakes_the_next():
    async with opened() as line:
        await line.ask("a1", 60)
        await line.ask("a2", 60)
        assert line.order == ["a1"]
        await line.end("a1")
        assert line.order == ["a1", "a2"]


async def test_memory_that_others_free_is_noticed():
    async with opened(available=10) as line:
        await line.ask("a1", 60)
        assert line.order == []
        line.memory.available = 60
        await line.clock.advance(1)
        assert line.order == ["a1"]


async def test_tenants_take_turns_and_each_is_served_in_its_own_order():
    async with opened() as line:
        await line.ask("z0", 100)
        for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
            await line.ask(name, 100)
        for name in ("z0", "a1", "b1", "c1", "a2", "b2", "a3"):
            assert line.order[-1] == name
            await line.end(name)


async def test_a_large_request_lets_a_few_pass_and_then_holds_everybody_up():
    async with opened() as line:
        await line.ask("s0", 50)
        await line.ask("l1", 100)
        for number in range(1, PASSES_MAX + 4):
            await line.ask(f"s{number}", 50)
            await line.end(f"s{number}")
        assert line.order == [f"s{number}" for number in range(PASSES_MAX + 1)]
        await line.end("s0")
        assert line.order[PASSES_MAX + 1 :] == ["l1"]
        await line.end("l1")
        assert line.order[PASSES_MAX + 2 :] == [f"s{number}" for number in range(PASSES_MAX + 1, PASSES_MAX + 4)]


async def test_the_wait_ends_typed_at_its_deadline_and_names_the_figures():
    async with opened(available=50 * MIB, total=100 * MIB) as line:
        await line.ask("a1", 20 * MIB)
        await line.ask("b1", 60 * MIB, deadline_s=10.0)
        await line.clock.advance(9.9)
        assert not line.tasks["b1"].done()
        await line.clock.advance(0.1)
        with pytest.raises(
            Unavailable, match=r"needs 60 MiB .* 30 are free and 20 promised.*repeat the call"
        ) as refused:
            await line.tasks["b1"]
        assert refused.value.details["reason"] == "no_memory"
        assert refused.value.details["retry_after_s"] > 0
        assert line.admission.waiting_count == 0


async def test_what_can_never_fit_is_refused_at_once():
    async with opened() as line:
        with pytest.raises(QuotaExceeded, match="a node with more memory") as refused:
            async with line.admission.room(TenantId("a"), 101, deadline_s=10.0):
                pass
        assert refused.value.details["reason"] == "no_memory"
        with pytest.raises(InvalidArgument):
            async with line.admission.room(TenantId("a"), -1, deadline_s=10.0):
                pass


async def test_a_waiter_that_is_cancelled_frees_its_place():
    async with opened() as line:
        await line.ask("a1", 60)
        await line.ask("b1", 100)
        await line.ask("b2", 30)
        assert line.order == ["a1"]
        line.tasks["b1"].cancel()
        await line.clock.advance(0)
        assert line.order == ["a1", "b2"]


async def test_an_error_inside_the_block_ends_the_reservation():
    async with opened() as line:
        with pytest.raises(ZeroDivisionError):
            async with line.admission.room(TenantId("a"), 10, deadline_s=1.0):
                raise ZeroDivisionError
        assert line.admission.promised_bytes == 0


async def test_what_is_kept_for_speed_is_given_back_before_anybody_waits():
    asked = []

    async def give_back(wanted_bytes):
        asked.append(wanted_bytes)
        line.memory.available += 25
        return 25

    async with opened(available=20, give_back=give_back) as line:
        await line.ask("a1", 60)
        assert (line.order, asked) == (["a1"], [40, 15])


async def test_a_deadline_does_not_wait_for_memory_that_is_slow_to_come_back():
    async def give_back(_wanted_bytes):
        await line.clock.sleep(100)
        return 0

    async with opened(available=20, give_back=give_back) as line:
        await line.ask("a1", 60, deadline_s=2.0)
        await line.clock.advance(2)
        with pytest.raises(Unavailable):
            await line.tasks["a1"]
        await line.clock.advance(100)


async def test_an_eaten_reserve_is_relieved_and_an_intact_one_left():
    asked = []

    async def give_back(wanted_bytes):
        asked.append(wanted_bytes)
        return wanted_bytes

    async with opened(give_back=give_back) as line:
        assert await line.admission.relieve() == 0
        await line.ask("a1", 60)
        line.memory.available = 30
        assert await line.admission.relieve() == 30
        assert asked == [30]


def test_the_reserve_is_a_share_of_the_memory_and_not_less_than_a_floor():
    assert default_reserve_bytes(1024 * MIB) == 256 * MIB
    assert default_reserve_bytes(100 * 1024 * MIB) == 5 * 1024 * MIB


def test_the_rule_passes_over_what_does_not_fit_until_it_was_passed_often_enough():
    large, small = Request(TenantId("l"), 100), Request(TenantId("s"), 10)
    assert next_turn([], 50).admitted is None
    assert (next_turn([large, small], 50).admitted, next_turn([large, small], 50).passed) == (small, (large,))
    assert next_turn([small, large], 200).admitted is small
    large.passed_count = PASSES_MAX
    assert next_turn([large, small], 50).admitted is None
    assert next_turn([small, large], 50).admitted is small


def test_this_machine_says_what_it_has():
    memory = HostMemory()
    assert 0 < memory.available_bytes() <= memory.total_bytes()


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_limit_lower_than_the_machine_counts_less_what_is_used(tmp_path, version):
    proc, mount = tmp_path / "proc", tmp_path / "mount"
    (proc / "self").mkdir(parents=True)
    inner = mount / "outer/inner"
    inner.mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 8192 kB\nMemFree: 1 kB\nMemAvailable:  4096 kB\n")
    if version == 1:
        kind, options, own = "cgroup", "rw,memory", "4:memory:/outer/inner\n0::/\n"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        (inner / names[0]).write_text("9223372036854771712\n")
    else:
        kind, options, own = "cgroup2", "rw", "0::/outer/inner\n"
        names = ("memory.max", "memory.current", "inactive_file")
        (inner / names[0]).write_text("max\n")
    (proc / "self/cgroup").write_text(own)
    (proc / "self/mountinfo").write_text(f"30 23 0:26 / {mount} rw - {kind} {kind} {options}\n")
    (mount / "outer" / names[0]).write_text("2000000\n")
    (mount / "outer" / names[1]).write_text("1500000\n")
    (mount / "outer/memory.stat").write_text(f"anon 5\n{names[2]} 300000\n")
    memory = HostMemory(proc)
    assert (memory.total_bytes(), memory.available_bytes()) == (2_000_000, 800_000)
    (mount / "outer" / names[1]).write_text("2400000\n")
    assert memory.available_bytes() == 0


def test_without_a_limit_the_machine_counts(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 8192 kB\nMemAvailable:  4096 kB\n")
    (tmp_path / "self/cgroup").write_text("0::/\n")
    (tmp_path / "self/mountinfo").write_text("22 1 0:20 / / rw - ext4 /dev/vda rw\n")
    memory = HostMemory(tmp_path)
    assert (memory.total_bytes(), memory.available_bytes()) == (8192 * 1024, 4096 * 1024)


def test_a_mount_that_shows_a_part_of_the_tree_is_read_from_there(tmp_path):
    (tmp_path / "inner").mkdir()
    mountinfo = f"30 23 0:26 /pod {tmp_path} rw - cgroup2 cgroup2 rw\n"
    assert list(memory_cgroups(mountinfo, "0::/pod/inner\n")) == [tmp_path / "inner", tmp_path]
    assert list(memory_cgroups(mountinfo, "0::/elsewhere\n")) == [tmp_path]
