"""Reported faults of pause and resume, over the real engine: every cycle is quiesce, checkpoint, destroy, restore."""

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
from contextlib import aclosing
from pathlib import Path

import pytest

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor import GVisorConfig, GVisorEngine
from torpor.adapters.guest import FramedDialer
from torpor.domain.errors import GuestError
from torpor.domain.ids import InstanceId
from torpor.ports.engine import InstanceShape
from torpor.ports.guest import Cause, OutputLost, ProcessOutput, ProcessSpec, TerminalSize
from torpor.testing.contracts.guest import notice, pieces
from torpor_guest import ARGV, LIB_DIR

CHECKOUT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
CYCLES = 12
NUMPY = "usr/lib/python3/dist-packages/numpy"  # the template data
serial = itertools.count(1)


def newest(pattern, holds=""):
    """The newest path that fits and holds the file; templates of other tests may be half made."""
    found = [path for path in (CHECKOUT / ".cache").glob(pattern) if (path / holds).exists()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


RUNSC = Path(os.environ["TORPOR_TEST_RUNSC"]) if "TORPOR_TEST_RUNSC" in os.environ else newest("engines/*/runsc")
ROOTFS = (
    Path(os.environ["TORPOR_TEST_ROOTFS"])
    if "TORPOR_TEST_ROOTFS" in os.environ
    else newest("templates/*/rootfs", NUMPY)
)
LACKS = [name for name, there in (("root", os.geteuid() == 0), ("runsc", RUNSC), ("rootfs", ROOTFS)) if not there]

pytestmark = [pytest.mark.engine, pytest.mark.skipif(bool(LACKS), reason=f"needs {', '.join(LACKS)}")]


def count(event):
    """Append real checkpoints and restores to the counter file, if one is named."""
    file = os.environ.get("TORPOR_ENGINE_COUNTER")
    if file and event in {"checkpoint", "restore"}:
        with open(file, "a") as counter:
            counter.write(f"{event}\n")


class Session:
    """One guest that can be paused and resumed any number of times."""

    def __init__(self, engine, shape, folder):
        self.engine, self.shape, self.folder = engine, shape, folder
        self.generation = 0
        self.instance = self.guest = None

    async def start(self):
        await self._create()
        await self.engine.start(self.instance)
        await self._connect()
        await self.guest.hello()
        await self.cycle(Cause.CREATED)

    async def cycle(self, cause=Cause.RESUMED):
        """Pause, and resume into another instance."""
        self.generation += 1
        image = self.folder / f"image-{self.generation}"
        image.mkdir()
        await self.guest.quiesce()
        taken = await self.engine.checkpoint(self.instance, image)
        await self.guest.close()
        await self.engine.destroy(self.instance)
        await self._create()
        await self.engine.restore(self.instance, taken.directory, requirements=taken.requirements)
        await self._connect()
        await self.guest.proceed(notice(self.generation, cause))
        shutil.rmtree(image, ignore_errors=True)

    async def _create(self):
        self.instance = InstanceId(f"{next(serial):020d}")
        await self.engine.create(self.instance, self.shape)

    async def _connect(self):
        self.guest = FramedDialer(SystemClock()).connect(self.instance, await self.engine.attach(self.instance))


@pytest.fixture(scope="module")
def rootfs():
    """The template's tree by hard links, with the agent of this checkout in place of its own."""
    place = Path(tempfile.mkdtemp(prefix="torpor-cycles-test-", dir=CHECKOUT / ".cache"))
    root = place / "rootfs"
    subprocess.run(("cp", "-al", ROOTFS, root), check=True)
    shutil.rmtree(root / LIB_DIR.strip("/").split("/")[0] / "torpor", ignore_errors=True)
    for package in ("torpor_wire", "torpor_guest"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECKOUT / "src" / package, root / LIB_DIR.lstrip("/") / package, ignore=ignore)
    yield root
    shutil.rmtree(place)


@pytest.fixture
async def session(rootfs):
    name = f"c{os.getpid()}-{next(serial)}"
    runtime = Path("/run/torpor-tests") / name
    config = GVisorConfig(runsc=RUNSC, runtime_dir=runtime, cgroup_parent=f"/torpor-tests-{name}", on_event=count)
    engine = GVisorEngine(config, SystemClock())
    folder = Path(tempfile.mkdtemp(prefix="torpor-cycles-test-", dir="/dev/shm"))
    session = Session(engine, InstanceShape(rootfs=rootfs, argv=ARGV, memory_bytes=512 * MIB), folder)
    try:
        await session.start()
        yield session
    finally:
        if session.guest is not None:
            await session.guest.close()
        for instance in await engine.instances():
            await engine.destroy(instance)
        await engine.retire()
        shutil.rmtree(folder)


# 10 MB/s of numbered lines of 100 bytes: whatever part is read, its numbers show holes.
PRODUCER = """
import os, time
line, due = 0, time.monotonic()
while True:
    rest = memoryview(b''.join(b'%099d\\n' % n for n in range(line, line + 1000)))
    while rest:
        rest = rest[os.write(1, rest):]  # a pause may cut a write short
    line += 1000; due += 0.01
    time.sleep(max(0, due - time.monotonic()))
"""


async def read_some(guest, pid, sequence, count_bytes):
    """Output from ``sequence`` on: checks that only what is said to be lost is missing; where it ends."""
    start = sequence
    async with aclosing(guest.attach(pid, from_sequence=sequence)) as events:
        async for event in events:
            assert event.sequence == sequence
            if isinstance(event, OutputLost):
                sequence += event.count_bytes
                start = sequence
                continue
            assert isinstance(event, ProcessOutput)
            begin = -event.sequence % 100
            lines = [int(event.data[at : at + 100]) for at in range(begin, len(event.data) - 99, 100)]
            first = (event.sequence + begin) // 100
            assert lines == list(range(first, first + len(lines)))
            sequence += len(event.data)
            if sequence - start >= count_bytes:
                return sequence
    raise AssertionError("the producer has ended")


async def test_a_producer_outlives_twelve_cycles_with_an_abandoned_reader_and_loses_only_what_it_says(session):
    info = await session.guest.start(ProcessSpec(argv=("/usr/bin/python3", "-c", PRODUCER)))
    sequence = 0
    for _ in range(CYCLES):
        abandoned = session.guest.attach(info.pid, from_sequence=None)
        await anext(abandoned)
        reached = await read_some(session.guest, info.pid, sequence, 2 * MIB)
        assert reached > sequence
        sequence = reached
        await session.cycle()
        with pytest.raises(GuestError):
            await _exhaust(abandoned)
        sequence = await read_some(session.guest, info.pid, sequence, 1 * MIB)
    (row,) = await session.guest.processes()
    assert row.running
    assert row.sequence >= sequence


async def test_blocked_readers_and_writers_of_forwards_end_at_each_of_three_cycles(session):
    source = "import socket\nserver = socket.create_server(('127.0.0.1', 0)); kept = []\nserver.getsockname()[1]"
    port = int((await session.guest.code(source)).result["text/plain"])
    for cycle in range(3):
        forward = await session.guest.forward(port)
        await session.guest.code("kept.append(server.accept()[0])")
        blocked = [asyncio.ensure_future(forward.read()), asyncio.ensure_future(_write_for_ever(forward))]
        await session.guest.activity()
        await session.cycle()
        for task in blocked:
            with pytest.raises(GuestError):
                await task
        dropped = await session.guest.code("while kept[-1].recv(1 << 20): pass")
        assert dropped.error is None or dropped.error.name == "ConnectionResetError"
        fresh = await session.guest.forward(port)
        await session.guest.code(f"peer = server.accept()[0]; peer.sendall(b'hello {cycle}'); peer.close()")
        assert await fresh.read() == b"hello %d" % cycle
        await fresh.close()


ODD_FILES = """
import mmap, os, tempfile
gone = open('/tmp/gone', 'w+b'); gone.write(b'deleted'); gone.flush(); os.unlink('/tmp/gone')
mapped_file = open('/tmp/mapped', 'w+b'); mapped_file.write(b'm' * 8192); mapped_file.flush()
mapped = mmap.mmap(mapped_file.fileno(), 8192); os.unlink('/tmp/mapped'); mapped[:5] = b'first'
nameless = tempfile.TemporaryFile(buffering=0); nameless.write(b'nameless')  # O_TMPFILE or, as in gVisor, a fallback
memory = os.memfd_create('memory'); os.write(memory, b'in memory')
"""
LOOK = """
gone.seek(0)
[gone.read(), mapped[:6], os.pread(nameless.fileno(), 20, 0), os.pread(memory, 20, 0)]
"""


async def test_deleted_and_nameless_files_live_through_a_checkpoint_with_a_live_process(session):
    assert (await session.guest.code(ODD_FILES)).error is None
    waiting = (
        "import signal; signal.signal(signal.SIGUSR1, lambda *_: exit(7)); print('up', flush=True); signal.pause()"
    )
    running = asyncio.ensure_future(session.guest.execute(ProcessSpec(argv=("/usr/bin/python3", "-c", waiting))))
    kept = await session.guest.start(ProcessSpec(argv=("/usr/bin/python3", "-c", waiting)))
    await anext(session.guest.attach(kept.pid))
    await session.cycle()
    with pytest.raises(GuestError):
        await running
    found = await session.guest.code(LOOK)
    assert found.error is None, found.error.traceback
    assert found.result["text/plain"] == "[b'deleted', b'firstm', b'nameless', b'in memory']"
    await session.guest.signal(kept.pid, 10)
    events = [event async for event in session.guest.attach(kept.pid)]
    assert (events[0].data, events[-1].exit_code) == (b"up\n", 7)


async def test_a_terminal_goes_on_where_it_was_after_a_pause(session):
    shell = await session.guest.start(ProcessSpec(argv=("bash", "--norc"), env={"PS1": "$ "}), terminal=TerminalSize())
    await session.guest.send_input(shell.pid, pieces(b"x=4; cd /usr; echo re'ady'\n"))
    sequence = await _until(session.guest, shell.pid, 0, b"ready\r\n")
    await session.cycle()
    await session.guest.resize(shell.pid, TerminalSize(columns=132, rows=50))
    await session.guest.send_input(shell.pid, pieces(b"echo $x$PWD; stty size\n"))
    await _until(session.guest, shell.pid, sequence, b"4/usr\r\n50 132\r\n")


async def test_the_log_survives_and_tells_of_the_resume(session):
    await session.cycle()
    said = b"".join([entry.data async for entry in session.guest.logs(source="agent")]).decode()
    assert "started as pid 1" in said
    assert "went on at generation 2: resumed" in said


async def _until(guest, pid, sequence, text):
    got = b""
    async with aclosing(guest.attach(pid, from_sequence=sequence)) as events:
        async for event in events:
            got += event.data
            if text in got:
                return event.sequence + len(event.data)
    raise AssertionError(f"{text!r} is not in {got!r}")


async def _exhaust(stream):
    async for _ in stream:
        pass


async def _write_for_ever(forward):
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await forward.write(b"x" * 100_000)
