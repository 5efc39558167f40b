"""This node's copies: what they save, what bounds them, and that they are never trusted blindly."""

from __future__ import annotations

import asyncio
import shutil
import threading

import pytest

from torpor.adapters.objects import cache_folder
from torpor.adapters.objects.cache import CachedObjects
from torpor.adapters.objects.cache_folder import BLOCK_BYTES, CacheFolder
from torpor.adapters.objects.forwarding import ForwardingObjects, Operation
from torpor.adapters.objects.memory import MemoryObjects
from torpor.adapters.objects.metered import MeteredObjects
from torpor.domain.errors import Corrupt, NotFound, Unavailable
from torpor.ports.objects import note_traffic, traffic_noted

DATA = bytes(range(256)) * 2048  # four blocks


class Distant(ForwardingObjects):
    """As a bucket: notes what it sends. Reads wait at ``gate``."""

    def __init__(self, inner):
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrivals = asyncio.Semaphore(0)

    async def _around(self, call, perform):
        if call.operation in {Operation.GET, Operation.GET_RANGE}:
            self.arrivals.release()
            await self.gate.wait()
        answer = await perform()
        if isinstance(answer, bytes):
            note_traffic(fetched_bytes=len(answer))
        return answer


class Node:
    def __init__(self, folder, *, budget_bytes=10**7, memory=None):
        self.memory = memory or MemoryObjects()
        self.distant = Distant(self.memory)
        self.metered = MeteredObjects(self.distant)
        self.folder = CacheFolder(folder, budget_bytes)
        self.objects = CachedObjects(self.metered, self.folder, is_immutable=lambda key: key.startswith("packs/"))

    @property
    def fetched_bytes(self):
        return self.metered.meter.read_bytes


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


def on_disk_bytes(root):
    return sum(path.stat().st_size for path in root.iterdir())


async def test_what_was_read_once_is_read_from_here_and_says_so(root):
    node = Node(root)
    await node.memory.put("packs/a", DATA)
    for cold in (True, False):
        with traffic_noted() as traffic:
            assert await node.objects.get("packs/a") == DATA
            assert await node.objects.get_range("packs/a", offset=1000, size=200_000) == DATA[1000:201_000]
        assert traffic.is_cold is cold
        assert traffic.fetched_bytes == (len(DATA) if cold else 0)
        assert traffic.cached_bytes == 200_000 + (0 if cold else len(DATA))
    assert node.fetched_bytes == len(DATA) == node.objects.counts.fetched_bytes


async def test_only_what_lacks_of_a_range_is_fetched(root):
    node = Node(root)
    await node.memory.put("packs/a", DATA)
    for offset, size, fetched in ((100, 100, 100), (300, 100, 100), (50, 400, 200), (100, 350, 0), (450, 10, 10)):
        before = node.fetched_bytes
        assert await node.objects.get_range("packs/a", offset=offset, size=size) == DATA[offset : offset + size]
        assert node.fetched_bytes - before == fetched


async def test_a_range_past_the_end_is_corrupt_also_of_a_whole_copy(root):
    node = Node(root)
    await node.memory.put("packs/a", b"0123456789")
    for _ in range(2):
        with pytest.raises(Corrupt):
            await node.objects.get_range("packs/a", offset=5, size=6)
        assert await node.objects.get("packs/a") == b"0123456789"


async def test_what_this_node_wrote_is_read_from_here(root):
    node = Node(root)
    await node.objects.put("packs/a", DATA)
    assert await node.objects.get_range("packs/a", offset=BLOCK_BYTES - 1, size=2) == DATA[BLOCK_BYTES - 1 :][:2]
    assert node.fetched_bytes == 0
    assert await node.memory.get("packs/a") == DATA


async def test_copies_survive_a_restart_in_their_order_of_use(root):
    first = Node(root)
    for key in ("packs/a", "packs/b", "packs/c"):
        await first.memory.put(key, DATA)
        await first.objects.get(key)
        await first.folder.written()
    await first.objects.get_range("packs/a", offset=0, size=1)
    (root / "half.unfinished").write_bytes(b"what a crash left")
    second = Node(root, memory=first.memory, budget_bytes=3 * len(DATA))
    assert not (root / "half.unfinished").exists()
    for key in ("packs/c", "packs/a"):
        assert await second.objects.get(key) == DATA
    assert second.fetched_bytes == 0
    await second.objects.get("packs/b")
    assert second.fetched_bytes == len(DATA), "b was used least recently, and three do not fit"


@pytest.mark.parametrize("harm", ["flipped", "shortened", "removed", "digests"])
async def test_a_copy_that_is_not_intact_is_dropped_and_fetched_anew(root, harm):
    node = Node(root)
    await node.memory.put("packs/a", DATA)
    await node.objects.get("packs/a")
    await node.folder.written()
    (file,) = root.iterdir()
    held = bytearray(file.read_bytes())
    if harm == "removed":
        file.unlink()
    elif harm == "shortened":
        file.write_bytes(held[:-1])
    else:
        held[0 if harm == "digests" else -1] ^= 1
        file.write_bytes(held)
    assert await node.objects.get("packs/a") == DATA
    assert (node.fetched_bytes, node.folder.corrupt_count) == (2 * len(DATA), 1)
    assert await node.objects.get("packs/a") == DATA
    assert node.fetched_bytes == 2 * len(DATA)


async def test_the_folder_never_holds_more_than_its_budget(root):
    node = Node(root, budget_bytes=3 * BLOCK_BYTES)
    for number in range(12):
        await node.objects.put(f"packs/{number:02}", DATA[: BLOCK_BYTES - 7 * number])
        await node.folder.written()
        assert on_disk_bytes(root) == node.folder.held_bytes <= 3 * BLOCK_BYTES
    await node.objects.put("packs/large", DATA)
    assert await node.objects.get("packs/large") == DATA
    assert node.fetched_bytes == len(DATA), "larger than the budget: not kept, and nothing else dropped for it"
    await node.objects.get("packs/11")
    assert node.fetched_bytes == len(DATA)


async def test_the_least_recently_used_goes_first(root):
    node = Node(root, budget_bytes=2 * BLOCK_BYTES + 100)
    block = DATA[:BLOCK_BYTES]
    await node.objects.put("packs/a", block)
    await node.objects.put("packs/b", block)
    await node.objects.get("packs/a")
    await node.objects.put("packs/c", block)
    await node.objects.get("packs/a")
    assert node.fetched_bytes == 0
    await node.objects.get("packs/b")
    assert node.fetched_bytes == BLOCK_BYTES


async def test_what_many_ask_for_at_once_is_fetched_once(root):
    node = Node(root)
    await node.memory.put("packs/a", DATA)
    node.distant.gate.clear()
    async with asyncio.TaskGroup() as group:
        wholes = [group.create_task(node.objects.get("packs/a")) for _ in range(5)]
        ranges = [group.create_task(node.objects.get_range("packs/a", offset=7, size=9)) for _ in range(5)]
        await node.distant.arrivals.acquire()
        node.distant.gate.set()
    assert {task.result() for task in wholes} == {DATA}
    assert {task.result() for task in ranges} == {DATA[7:16]}
    assert node.metered.meter.calls == {"get": 1}


async def test_ranges_that_overlap_wait_for_each_other_and_others_do_not(root):
    node = Node(root)
    await node.memory.put("packs/a", DATA)
    node.distant.gate.clear()
    async with asyncio.TaskGroup() as group:
        asked = [(0, 100), (50, 100), (1000, 10)]
        tasks = [group.create_task(node.objects.get_range("packs/a", offset=o, size=s)) for o, s in asked]
        for _ in range(2):
            await node.distant.arrivals.acquire()
        node.distant.gate.set()
    assert [task.result() for task in tasks] == [DATA[o : o + s] for o, s in asked]
    assert node.fetched_bytes == 160


async def test_one_who_gives_up_does_not_take_the_others_along(root):
    node = Node(root)
    await node.memory.put("packs/a", DATA)
    node.distant.gate.clear()
    async with asyncio.TaskGroup() as group:
        leader = group.create_task(node.objects.get("packs/a"))
        await node.distant.arrivals.acquire()
        follower = group.create_task(node.objects.get("packs/a"))
        impatient = group.create_task(node.objects.get("packs/a"))
        await asyncio.sleep(0)
        impatient.cancel()
        leader.cancel()
        node.distant.gate.set()
    assert leader.cancelled()
    assert impatient.cancelled()
    assert follower.result() == DATA


async def test_an_error_reaches_all_who_wait_and_the_next_call_asks_again(root):
    class Broken(MemoryObjects):
        asked = 0

        async def get(self, key):
            self.asked += 1
            await asyncio.sleep(0)
            if self.asked == 1:
                raise Unavailable("cannot reach it")
            return await super().get(key)

    broken = Broken()
    node = Node(root, memory=broken)
    await broken.put("packs/a", DATA)
    errors = await asyncio.gather(*(node.objects.get("packs/a") for _ in range(4)), return_exceptions=True)
    assert [type(error) for error in errors] == [Unavailable] * 4
    assert broken.asked == 1
    assert await node.objects.get("packs/a") == DATA


async def test_heads_are_always_those_of_the_store(root):
    node = Node(root)
    for number in range(3):
        await node.memory.put("head", b"%d" % number)
        assert await node.objects.get("head") == b"%d" % number
        assert await node.objects.get_range("head", offset=0, size=1) == b"%d" % number
    assert list(root.iterdir()) == []


async def test_what_was_deleted_is_gone_here_too(root):
    node = Node(root)
    await node.objects.put("packs/a", DATA)
    await node.objects.delete("packs/a")
    with pytest.raises(NotFound):
        await node.objects.get("packs/a")
    await node.folder.written()
    assert list(root.iterdir()) == []


async def test_a_folder_that_cannot_be_written_costs_no_read(root):
    node = Node(root)
    await node.objects.put("packs/a", DATA)
    shutil.rmtree(root)
    for _ in range(2):
        assert await node.objects.get("packs/a") == DATA
    await node.folder.written()
    assert node.folder.held_bytes == 0
    assert await node.objects.get("packs/a") == DATA
    root.write_text("in the way")
    with pytest.raises(Unavailable, match="cache"):
        CacheFolder(root, 1)


async def test_a_whole_copy_takes_the_place_of_pieces(root):
    node = Node(root)
    await node.memory.put("packs/a", DATA)
    for offset in (0, 10, 20):
        await node.objects.get_range("packs/a", offset=offset, size=5)
    await node.folder.written()
    assert len(list(root.iterdir())) == 3
    await node.objects.get("packs/a")
    await node.folder.written()
    assert [path.name.endswith("-whole") for path in root.iterdir()] == [True]
    assert on_disk_bytes(root) == node.folder.held_bytes


class SlowDisk:
    """Writes of the folder, held up until ``gate`` is set."""

    def __init__(self, monkeypatch):
        self.gate = threading.Event()
        self.waiting = threading.Semaphore(0)
        self._write = cache_folder._write
        monkeypatch.setattr(cache_folder, "_write", self)

    def __call__(self, path, data):
        self.waiting.release()
        self.gate.wait()
        return self._write(path, data)


async def test_nobody_who_fetched_a_little_waits_for_the_disk(root, monkeypatch):
    disk, node = SlowDisk(monkeypatch), Node(root)
    await node.memory.put("packs/a", DATA)
    for _ in range(2):
        assert await node.objects.get_range("packs/a", offset=5, size=100) == DATA[5:105]
    assert await node.objects.get_range("packs/a", offset=50, size=10) == DATA[50:60]
    assert (node.fetched_bytes, list(root.iterdir())) == (100, [])
    disk.gate.set()
    await node.folder.written()
    assert await node.objects.get_range("packs/a", offset=5, size=100) == DATA[5:105]
    assert node.fetched_bytes == 100
    assert on_disk_bytes(root) == node.folder.held_bytes


async def test_much_waits_for_the_disk_so_that_memory_is_bounded(root, monkeypatch):
    monkeypatch.setattr(cache_folder, "UNWRITTEN_BYTES_MAX", len(DATA))
    disk, node = SlowDisk(monkeypatch), Node(root)
    for key in ("packs/a", "packs/b"):
        await node.memory.put(key, DATA)
    assert await node.objects.get("packs/a") == DATA
    second = asyncio.ensure_future(node.objects.get("packs/b"))
    await asyncio.to_thread(disk.waiting.acquire)
    await asyncio.to_thread(disk.waiting.acquire)
    assert not second.done()
    disk.gate.set()
    assert await second == DATA


@pytest.mark.parametrize("is_put_again", [False, True])
async def test_what_is_deleted_while_it_is_written_is_never_read_again(root, monkeypatch, is_put_again):
    disk, node = SlowDisk(monkeypatch), Node(root)
    await node.objects.put("packs/a", DATA)
    await node.objects.delete("packs/a")
    if is_put_again:
        await node.objects.put("packs/a", DATA[::-1])
    disk.gate.set()
    await node.folder.written()
    assert len(list(root.iterdir())) == is_put_again
    assert on_disk_bytes(root) == node.folder.held_bytes
    if is_put_again:
        assert await node.objects.get("packs/a") == DATA[::-1]
        assert node.fetched_bytes == 0
