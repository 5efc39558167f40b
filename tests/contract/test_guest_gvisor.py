"""The real agent, PID 1 in real sandboxes: every one of them a clone of one golden checkpoint, as sessions are."""

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor import GVisorConfig, GVisorEngine
from torpor.adapters.guest import FramedDialer
from torpor.domain.errors import StorageFull
from torpor.domain.ids import InstanceId
from torpor.ports.engine import InstanceShape
from torpor.ports.guest import Cause, ProcessSpec
from torpor.testing.contracts.guest import Collected, GuestContract, notice, whole
from torpor_guest import ARGV, LIB_DIR, WARMUP_PATH

CHECKOUT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
serial = itertools.count(1)


def found(variable, pattern, holds=""):
    """A path named by the environment, else the newest below .cache that holds the file; None if there is none."""
    if named := os.environ.get(variable):
        return Path(named)
    candidates = [path for path in (CHECKOUT / ".cache").glob(pattern) if (path / holds).exists()]
    return max(candidates, key=lambda path: path.stat().st_mtime, default=None)


RUNSC = found("TORPOR_TEST_RUNSC", "engines/*/runsc")
ROOTFS = found("TORPOR_TEST_ROOTFS", "templates/*/rootfs", "usr/lib/python3/dist-packages/numpy")
LACKS = [name for name, there in (("root", os.geteuid() == 0), ("runsc", RUNSC), ("rootfs", ROOTFS)) if not there]

pytestmark = [pytest.mark.engine, pytest.mark.skipif(bool(LACKS), reason=f"needs {', '.join(LACKS)}")]


def count(event):
    """Append real checkpoints and restores to the counter file, if one is named."""
    file = os.environ.get("TORPOR_ENGINE_COUNTER")
    if file and event in {"checkpoint", "restore"}:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(handle, f"{event}\n".encode())
        os.close(handle)


def make_engine():
    name = f"g{os.getpid()}-{next(serial)}"
    return GVisorEngine(
        GVisorConfig(
            runsc=RUNSC,
            runtime_dir=Path("/run/torpor-tests") / name,
            cgroup_parent=f"/torpor-tests-{name}",
            on_event=count,
        ),
        SystemClock(),
    )


@contextlib.asynccontextmanager
async def engine_of_ours():
    engine = make_engine()
    try:
        yield engine
    finally:
        for instance in await engine.instances():
            await engine.destroy(instance)
        await engine.retire()


def new_id():
    return InstanceId(f"{next(serial):020d}")


async def checkpoint(engine, instance, guest, into):
    """Quiesce and capture; the instance is gone afterwards, as it is when a session pauses."""
    report = await guest.quiesce()
    taken = await engine.checkpoint(instance, into)
    await guest.close()
    await engine.destroy(instance)
    return report, taken


class Clone:
    """A restored instance that was told who it is. Also the station of the contract."""

    def __init__(self, engine, shape):
        self.engine, self.shape, self.instance = engine, shape, new_id()
        self.guest = self.ready = None

    async def restore(self, taken, told):
        await self.engine.create(self.instance, self.shape)
        await self.engine.restore(self.instance, taken.directory, requirements=taken.requirements)
        self.ready = await (await self.connect()).proceed(told)
        return self.guest

    async def connect(self):
        if self.guest is not None:
            await self.guest.close()
        self.guest = FramedDialer(SystemClock()).connect(self.instance, await self.engine.attach(self.instance))
        return self.guest

    async def kill(self):
        await self.engine.destroy(self.instance)


@pytest.fixture(scope="module")
def folder():
    place = Path(tempfile.mkdtemp(prefix="torpor-guest-test-", dir="/dev/shm"))
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def shape():
    """The template's tree by hard links, with the agent of this checkout in place of its own."""
    place = Path(tempfile.mkdtemp(prefix="torpor-guest-test-", dir=ROOTFS.parent))
    root = place / "rootfs"
    subprocess.run(("cp", "-al", ROOTFS, root), check=True)
    shutil.rmtree(root / LIB_DIR.strip("/").split("/")[0] / "torpor", ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for package in ("torpor_wire", "torpor_guest"):
        shutil.copytree(CHECKOUT / "src" / package, root / LIB_DIR.lstrip("/") / package, ignore=ignore)
    (root / WARMUP_PATH.lstrip("/")).write_text("import numpy\nwarmed = True\n")
    yield InstanceShape(rootfs=root, argv=ARGV, memory_bytes=768 * MIB, disk_bytes=256 * MIB)
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def golden(shape, folder):
    """The checkpoint of a warmed, quiesced agent."""

    async def take():
        async with engine_of_ours() as engine:
            instance = new_id()
            await engine.create(instance, shape)
            await engine.start(instance)
            guest = FramedDialer(SystemClock()).connect(instance, await engine.attach(instance))
            await guest.hello()
            (folder / "golden").mkdir()
            report, taken = await checkpoint(engine, instance, guest, folder / "golden")
            assert report.unparked == ()
            return taken

    return asyncio.run(take())


@pytest.fixture
async def engine():
    async with engine_of_ours() as engine:
        yield engine


@pytest.fixture
async def clone(engine, shape, golden):
    clone = Clone(engine, shape)
    await clone.restore(golden, notice(1))
    yield clone
    await clone.guest.close()


class TestAgentInGVisor(GuestContract):
    has_ipython = True

    @pytest.fixture
    def station(self, clone):
        return clone


async def value(guest, source):
    result = await guest.code(source)
    assert result.error is None, result.error.traceback
    return result.result and result.result["text/plain"]


async def said(guest, command):
    collected = Collected()
    await guest.shell(command, on_output=collected)
    return collected.stdout.decode()


WORKSPACE = """
import os, socket, threading, time
answer = {'n': 41}
lines = open('/tmp/lines'); first = lines.readline()
server = socket.create_server(('127.0.0.1', 0))
near = socket.create_connection(server.getsockname()); far, _ = server.accept()
ticks = [0]
def tick():
    while True:
        ticks[0] += 1; time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
"""


async def test_two_restores_of_one_checkpoint_find_everything_and_are_not_each_other(engine, clone, shape, folder):
    guest = clone.guest
    assert await value(guest, "warmed") == "True"
    await guest.shell("printf 'one\\ntwo\\n' > /tmp/lines; cd /usr/lib; export KEPT='a b'; f() { echo function; }")
    await guest.shell("i=0; while true; do i=$((i+1)); echo $i > /tmp/count; sleep 0.01; done &")
    await guest.code(WORKSPACE)
    while not await said(guest, "cat /tmp/count"):
        pass
    (folder / "two").mkdir()
    _, taken = await checkpoint(engine, clone.instance, guest, folder / "two")
    names = []
    for generation in (2, 3):
        copy = Clone(engine, shape)
        told = notice(generation, Cause.FORKED, entropy=bytes([generation]) * 32, name=f"clone-{generation}")
        await copy.restore(taken, told)
        guest = copy.guest
        assert copy.ready.reseeded == ("default",)
        assert (await guest.hello()).generation == generation
        assert await value(guest, "answer['n'] + 1") == "42"
        assert await value(guest, "lines.readline()") == r"'two\n'"
        assert await value(guest, "near.sendall(b'over'); far.recv(9)") == "b'over'"
        assert await value(guest, "n = ticks[0]\nwhile ticks[0] == n: time.sleep(0.001)\nticks[0] > n") == "True"
        assert await said(guest, "pwd; echo $KEPT; f") == "/usr/lib\na b\nfunction\n"
        assert (
            await said(guest, "n=$(cat /tmp/count); until test $(cat /tmp/count) != $n; do :; done; echo on") == "on\n"
        )
        names.append(await said(guest, "hostname; cat /etc/hostname /etc/machine-id; cat /run/torpor/generation"))
        assert names[-1].split() == [f"clone-{generation}"] * 2 + [told.machine_id, str(generation)]
        await guest.close()
    assert names[0] != names[1]


DRAWING = """
import os, random, secrets, ssl, threading, time, uuid
import numpy as np
random.seed(1); np.random.seed(1); random.gauss(0, 1); np.random.standard_normal(); ssl.RAND_bytes(8)
drawn, go_on = [[] for _ in range(4)], True
def draw(own):
    while go_on:
        own.append((os.urandom(8).hex(), random.random(), np.random.random(), ssl.RAND_bytes(8).hex()))
threads = [threading.Thread(target=draw, args=(own,), daemon=True) for own in drawn]
for thread in threads: thread.start()
"""
FIRST = "[random.gauss(0, 1), np.random.standard_normal(), random.random(), np.random.random(), ssl.RAND_bytes(8)]"
MORE = "[str(uuid.uuid4()), secrets.token_hex(8), str(uuid.uuid1())[-12:], __import__('tempfile').mktemp()]"
LOOKED_AT = """
start = [len(own) for own in drawn]
while any(len(own) < n + 200 for own, n in zip(drawn, start)): time.sleep(0.001)
go_on = False
for thread in threads: thread.join()
with open('/tmp/drawn', 'w') as file:
    for own in drawn:
        for row in own: print(*row, file=file)
        print(file=file)
"""


async def test_clones_share_no_draw_though_four_threads_draw_all_the_time(engine, clone, shape, folder):
    """A row starts with bytes from the kernel: where they differ, the rest of the row was drawn after the restore."""
    await clone.guest.code(DRAWING)
    await clone.guest.code("time.sleep(0.05)")
    (folder / "drawing").mkdir()
    report, taken = await checkpoint(engine, clone.instance, clone.guest, folder / "drawing")
    assert report.unparked == ()
    firsts, drawn = [], []
    for generation in (2, 3):
        copy = Clone(engine, shape)
        await copy.restore(taken, notice(generation, Cause.FORKED, entropy=bytes([generation]) * 32))
        firsts.append([await value(copy.guest, f"str({FIRST})"), await value(copy.guest, f"str({MORE})")])
        await copy.guest.code(LOOKED_AT)
        text = (await whole(copy.guest.read_file("/tmp/drawn"))).decode()
        drawn.append([[line.split() for line in part.splitlines()] for part in text.split("\n\n") if part])
        await copy.guest.close()
    assert firsts[0][0] != firsts[1][0]
    numbers = [set(first.strip("'\"[]").split(", ")) for pair in firsts for first in pair]
    assert not numbers[0] & numbers[2]
    assert not numbers[1] & numbers[3]
    assert [len(threads) for threads in drawn] == [4, 4]
    for mine, other in zip(*drawn, strict=True):
        after = sum(1 for a, b in zip(mine, other, strict=False) if a[0] == b[0])
        assert 0 < after < min(len(mine), len(other)) - 100
        for column in (1, 2, 3):
            ours = Counter(row[column] for row in mine[after:])
            assert not [row for row in other[after:] if row[column] in ours]


async def test_a_context_busy_in_native_code_is_listed_and_reseeded_before_it_goes_on(engine, clone, shape, folder):
    """One C call that never lets a handler run: it cannot park, and says so; its next byte code draws anew."""
    source = "import random, ctypes\nrandom.seed(1)\nctypes.CDLL(None).usleep(0)\n"
    await clone.guest.code(source)
    busy = "x = sum(map(int, b'1' * 40_000_000)); first = random.random()"
    async with asyncio.TaskGroup() as group:
        pending = group.create_task(_outcome(clone.guest.code(busy)))
        await clone.guest.shell("sleep 0.2")
        (folder / "busy").mkdir()
        report, taken = await checkpoint(engine, clone.instance, clone.guest, folder / "busy")
        await pending
    assert len(report.unparked) == 1
    firsts = []
    for generation in (2, 3):
        copy = Clone(engine, shape)
        await copy.restore(taken, notice(generation, entropy=bytes([generation]) * 32))
        assert copy.ready.reseeded == ()
        assert any("could not park" in sentence for sentence in copy.ready.dropped)
        firsts.append(await value(copy.guest, "first"))
        await copy.guest.close()
    assert firsts[0] != firsts[1]


async def _outcome(call):
    with contextlib.suppress(Exception):
        await call


async def test_children_have_no_power_over_the_identity(clone):
    outputs = [Collected(), Collected(), Collected()]
    await clone.guest.shell("hostname other", on_output=outputs[0])
    await clone.guest.execute(ProcessSpec(argv=("hostname", "other")), on_output=outputs[1])
    await clone.guest.code(
        "import subprocess; subprocess.run(['hostname', 'other'])",
    )
    assert await said(clone.guest, "hostname") == "torpor-test\n"
    mask = await said(clone.guest, "grep CapBnd /proc/self/status")
    assert not int(mask.split()[1], 16) & 1 << 21


async def test_ipython_gives_rich_results_magics_and_await(clone):
    guest = clone.guest
    result = await guest.code("import pandas as pd\npd.DataFrame({'a': [1]})")
    assert "text/html" in result.result
    assert await value(guest, "import asyncio\nawait asyncio.sleep(0.001)\n5") == "5"
    collected = Collected()
    await guest.code("!echo from a child", on_output=collected)
    assert collected.stdout == b"from a child\n"


async def test_a_full_disk_is_said_and_leaves_the_old_file(clone):
    async def endless():
        while True:
            yield b"x" * MIB

    async def once():
        yield b"old"

    await clone.guest.write_file("/srv/file", once())
    with pytest.raises(StorageFull):
        await clone.guest.write_file("/srv/file", endless())
    assert await whole(clone.guest.read_file("/srv/file")) == b"old"
    assert await said(clone.guest, "ls -A /srv") == "file\n"


async def test_ten_megabytes_of_statements_fail_with_a_type_and_cost_nothing_else(clone):
    await clone.guest.code("k = 1")
    result = await clone.guest.code("x = 1\n" * (10 * MIB // 6), timeout_s=200)
    assert result.error is None or result.error.name == "MemoryError"
    assert await value(clone.guest, "k") == "1"
