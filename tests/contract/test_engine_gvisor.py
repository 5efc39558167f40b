"""The gVisor engine keeps the engines' contract on a real runsc; and its caps, walls and repairs hold."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor import GVisorConfig, GVisorEngine, self_test
from torpor.adapters.engines.gvisor.cgroup import hierarchies_of
from torpor.adapters.engines.gvisor.record import Pause, read_record, with_pause, write_record
from torpor.domain.errors import EngineError, Unsupported
from torpor.ports.engine import InstanceShape, InstanceStatus
from torpor.testing.contracts.engine import EngineContract
from torpor.testing.programs import LEDGER_ARGV

MIB = 1 << 20
ENV = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root")
serial = itertools.count(1)


pytestmark = pytest.mark.engine


def config(name, runsc, on_event=lambda _event: None):
    return GVisorConfig(
        runsc=runsc,
        runtime_dir=Path("/run/torpor-tests") / name,
        cgroup_parent=f"/torpor-tests-{name}",
        on_event=on_event,
    )


async def appears(file):
    """Return once ``file`` exists: the memory part is being written."""
    while not file.exists():  # noqa: ASYNC110 - files raise no event
        await asyncio.sleep(0)


HIERARCHIES = hierarchies_of(Path("/proc/self/mountinfo").read_text())
MEMORY_CAP = ("memory.max",) if HIERARCHIES.unified else ("memory.limit_in_bytes",)
CPU_CAP = ("cpu.max",) if HIERARCHIES.unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")


# What a program sees of its network: interfaces with address, mask, MAC and MTU, the routes, and what offload shows.
NETWORK_SEEN = """
import fcntl, socket, struct
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def ask(request, name):
    try: return fcntl.ioctl(asker, request, struct.pack('256s', name.encode()))[16:32].hex()
    except OSError as error: return error.errno
result = [[name] + [ask(request, name) for request in (0x8915, 0x891b, 0x8927, 0x8921, 0x8913)]
          for _, name in socket.if_nameindex()]
result += [open('/proc/net/route').read(), open('/proc/net/if_inet6').read()]
asker.connect(('169.254.17.1', 9)); result += [asker.getsockname()[0]]
"""


def cgroup_places(path):
    mounts = [HIERARCHIES.unified] if HIERARCHIES.unified else set(HIERARCHIES.controllers.values())
    return [mount / path.lstrip("/") for mount in mounts]


def cgroup_values(engine, instance, controller, names):
    """The numbers in the host's cgroup files of an instance, of either cgroup version."""
    mount = HIERARCHIES.unified or HIERARCHIES.controllers[controller]
    place = mount / f"{engine._config.cgroup_parent}/{instance}".lstrip("/")
    return [int(number) for name in names for number in (place / name).read_text().split()]


def command(*argv):
    """The output of a command that must succeed."""
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


class RealEngine(EngineContract):
    """The fixtures and hooks."""

    @pytest.fixture
    async def engine(self, runsc_path, engine_counter):
        engine = GVisorEngine(config(f"{os.getpid()}-{next(serial)}", runsc_path, engine_counter), SystemClock())
        yield engine
        for instance in await engine.instances():
            await engine.destroy(instance)
        await engine.retire()

    @pytest.fixture
    def shape(self, rootfs_path):
        return InstanceShape(rootfs=rootfs_path, argv=LEDGER_ARGV, env=ENV, memory_bytes=256 * MIB, disk_bytes=64 * MIB)

    @pytest.fixture
    def folder(self):
        place = Path(tempfile.mkdtemp(prefix="torpor-test-", dir="/dev/shm"))
        yield place
        for mount in place.iterdir():
            if mount.is_mount():
                command("umount", mount)
        shutil.rmtree(place)

    async def reopened(self, engine):
        return GVisorEngine(engine._config, SystemClock())

    async def kill(self, engine, instance):
        record = read_record(engine._layout.bundle(instance))
        sandbox = record.processes[0][0]
        handle = os.pidfd_open(sandbox)
        os.kill(sandbox, signal.SIGKILL)
        loop, dead = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, dead.set)
        await dead.wait()
        loop.remove_reader(handle)
        os.close(handle)

    async def full_folder(self, _engine, folder):
        (folder / "full").mkdir()
        command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder / "full")
        return folder / "full"

    async def leftovers(self, engine, instance):
        left = [f"file {path}" for path in engine._config.runtime_dir.rglob(f"*{instance}*")]
        left += [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if instance in line]
        left += [
            f"cgroup {place}" for place in cgroup_places(f"{engine._config.cgroup_parent}/{instance}") if place.exists()
        ]
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if instance.encode() in (process / "cmdline").read_bytes():
                    left.append(f"process {process.name}")
        children = {
            child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()
        }
        for child in children:
            with contextlib.suppress(OSError):
                name, state = (Path("/proc") / child / "stat").read_text().split(")")[:2]
                if state.split()[0] == "Z" and name.endswith("(exe"):
                    left.append(f"zombie {child}")
        return left


class TestGVisorEngine(RealEngine):
    async def test_both_parts_are_of_one_instant(self, engine, shape, folder):
        async with self.running(engine, shape) as (instance, client):
            await client.python(
                "import threading, time, os\n"
                "def count():\n"
                "    global n\n"
                "    n = 0\n"
                "    while True:\n"
                "        n += 1\n"
                "        os.pwrite(f, b'%012d' % n, 0)\n"
                "f = os.open('/root/count', os.O_RDWR | os.O_CREAT)\n"
                "threading.Thread(target=count, daemon=True).start()\n"
                "time.sleep(0.2)\n"
            )
            checkpoint = await self.capture(engine, instance, folder)
        part = checkpoint.directory / checkpoint.filesystem_file
        async with self.running(engine, shape, filesystem=part) as (_, client):
            on_disk = int(await client.read("/root/count"))
        # The image holds the overlay too: its page of that file must say the same as the tar.
        assert on_disk > 0
        assert (b"%012d" % on_disk) in (checkpoint.directory / "pages.img").read_bytes()

    async def test_open_files_and_threads_survive(self, engine, shape, folder):
        async with self.running(engine, shape) as (instance, client):
            await client.python(
                "import threading, queue\n"
                "q, r = queue.Queue(), queue.Queue()\n"
                "threading.Thread(target=lambda: [r.put(q.get() * 2) for _ in range(9)], daemon=True).start()\n"
                "f = open('/root/removed', 'w+'); f.write('still here'); f.flush()\n"
                "import os; os.unlink('/root/removed')\n"
            )
            checkpoint = await self.capture(engine, instance, folder)
        async with self.restored(engine, shape, checkpoint) as (_, client):
            assert await client.python("q.put(21); result = r.get(timeout=5)") == 42
            assert await client.python("f.seek(0); result = f.read()") == "still here"

    async def test_what_was_not_read_at_the_checkpoint_reaches_every_clone(self, engine, shape, folder):
        async with self.running(engine, shape) as (instance, client):
            await client.python("import threading, time; threading.Timer(0, lambda: None).start()")
            channel = await engine.attach(instance)
            await engine.freeze(instance)
            await channel.write(b'{"id": 1, "do": "add", "value": 10}\n')
            await channel.close()
            record = read_record(engine._layout.bundle(instance))
            await engine.thaw(instance)
            checkpoint = await self.capture(engine, instance, folder)
            assert record.pause is Pause.NO
        totals = []
        for _ in range(2):
            async with self.restored(engine, shape, checkpoint) as (_, client):
                totals.append(await client.total())
        assert totals == [10, 10]

    async def test_memory_is_capped_and_the_host_stays_whole(self, engine, shape):
        async with self.running(engine, shape) as (instance, client):
            await client.add(1)
            with pytest.raises((AssertionError, EngineError)):
                await client.python("x = []\nwhile True: x.append(bytearray(b'x' * (1 << 24)))")
            usage = await engine.usage(instance)
            assert usage["memory_bytes"] <= shape.memory_bytes + shape.disk_bytes + 64 * MIB
            assert cgroup_values(engine, instance, "memory", MEMORY_CAP) == [384 * MIB]

    async def test_processes_are_capped_and_the_sandbox_survives_it(self, engine, shape):
        small = replace(shape, memory_bytes=512 * MIB, pids_max=40)
        async with self.running(engine, small) as (instance, client):
            spawned = await client.python(
                "import os, signal, time\n"
                "children = []\n"
                "try:\n"
                "    while len(children) < 200:\n"
                "        pid = os.fork()\n"
                "        if pid == 0:\n"
                "            time.sleep(1000)\n"
                "        children.append(pid)\n"
                "except BlockingIOError as error:\n"
                "    result = [len(children), error.errno]\n"
            )
            assert spawned == [39, 11]  # PID 1 is the fortieth; EAGAIN
            await client.python("for pid in children: os.kill(pid, 9); os.waitpid(pid, 0)\nresult = None")
            assert await client.add(1) == 1
            assert await engine.inspect(instance) is InstanceStatus.RUNNING

    async def test_the_process_cap_travels_with_the_image(self, engine, shape, folder):
        small = replace(shape, pids_max=30)
        async with self.running(engine, small) as (instance, client):
            await client.total()
            checkpoint = await self.capture(engine, instance, folder)
        async with self.restored(engine, small, checkpoint) as (_, client):
            assert (
                await client.python(
                    "import os, time\n"
                    "count = 0\n"
                    "try:\n"
                    "    while count < 200:\n"
                    "        if os.fork() == 0:\n"
                    "            time.sleep(1000)\n"
                    "        count += 1\n"
                    "except BlockingIOError:\n"
                    "    result = count\n"
                )
                == 29
            )

    async def test_the_disk_is_capped_and_says_so(self, engine, shape):
        async with self.running(engine, shape) as (instance, client):
            said = await client.python(
                "import os\n"
                "try:\n"
                "    with open('/root/big', 'wb') as file:\n"
                "        for _ in range(200): file.write(bytes(1 << 20))\n"
                "except OSError as error:\n"
                "    result = error.errno\n"
            )
            assert said == 28  # ENOSPC
            await client.remove("/root/big")
            await client.write("/root/small", "room again")
            assert await engine.inspect(instance) is InstanceStatus.RUNNING

    async def test_the_cpu_quota_is_set(self, engine, shape):
        half = replace(shape, cpus=0.5)
        async with self.running(engine, half) as (instance, client):
            quota, period = cgroup_values(engine, instance, "cpu", CPU_CAP)
            assert quota / period == 0.5
            burned = await client.python(
                "import time\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass\nresult = True"
            )
            assert burned
            mount = HIERARCHIES.unified or HIERARCHIES.controllers["cpu"]
            stat = (mount / f"{engine._config.cgroup_parent}/{instance}".lstrip("/") / "cpu.stat").read_text()
            assert int(dict(line.split() for line in stat.splitlines())["nr_throttled"]) > 0

    async def test_loopback_works_and_nothing_leaves(self, engine, shape, folder):
        async with self.running(engine, shape) as (instance, client):
            assert (
                await client.python(
                    "import socket\n"
                    "listener = socket.create_server(('127.0.0.1', 0))\n"
                    "near = socket.create_connection(listener.getsockname()); far, _ = listener.accept()\n"
                    "near.sendall(b'ping'); result = far.recv(9).decode()"
                )
                == "ping"
            )
            links = await client.python("result = sorted(name for _, name in socket.if_nameindex())")
            assert links == ["eth0", "lo"]
            refused = await client.python(
                "result = []\n"
                "for address in ('169.254.17.1', '10.0.0.1', '8.8.8.8'):\n"
                "    s = socket.socket(); s.settimeout(0.3)\n"
                "    try: s.connect((address, 80)); result.append('open')\n"
                "    except OSError: result.append('shut')\n"
            )
            assert refused == ["shut", "shut", "shut"]
            pin = engine._layout.netns(instance)
            links = command("nsenter", f"--net={pin}", "ip", "-o", "link").splitlines()
            assert len(links) == 3  # lo and both ends of the pair: no end is elsewhere
            assert any("up0" in link and "state DOWN" in link for link in links)
            checkpoint = await self.capture(engine, instance, folder)
        async with self.restored(engine, shape, checkpoint) as (_, client):
            assert await client.python("near.sendall(b'pong'); result = far.recv(9).decode()") == "pong"
            inner = await client.python(
                "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
                "s.connect(('169.254.17.1', 9)); result = s.getsockname()[0]"
            )
            assert inner == "169.254.17.2"

    async def test_a_restore_by_socket_sets_up_the_network_that_the_command_finds_by_itself(
        self, engine, shape, folder, monkeypatch
    ):
        async with self.running(engine, shape) as (instance, client):
            started = await client.python(NETWORK_SEEN)
            checkpoint = await self.capture(engine, instance, folder)
        async with self.restored(engine, shape, checkpoint) as (instance, client):
            by_socket = await client.python(NETWORK_SEEN)
            assert "169.254.17.2" not in command("nsenter", f"--net={engine._layout.netns(instance)}", "ip", "addr")
        monkeypatch.setattr("torpor.adapters.engines.gvisor.engine.BUILDS", frozenset())
        async with self.restored(engine, shape, checkpoint) as (instance, client):
            by_command = await client.python(NETWORK_SEEN)
            assert "169.254.17.2" not in command("nsenter", f"--net={engine._layout.netns(instance)}", "ip", "addr")
        assert by_socket == by_command == started

    async def test_an_instance_that_a_dead_server_created_is_restored_into(self, engine, shape, folder):
        async with self.running(engine, shape) as (instance, client):
            await client.total()
            checkpoint = await self.capture(engine, instance, folder)
        async with self.created(engine, shape) as instance:
            successor = await self.reopened(engine)
            await successor.restore(instance, checkpoint.directory, requirements=checkpoint.requirements)
            async with self.talking(successor, instance, first_id=1000) as client:
                assert "169.254.17.2" in str(await client.python(NETWORK_SEEN))

    async def test_a_capture_that_a_dead_server_left_half_done_is_repaired(self, engine, shape, folder):
        async with self.running(engine, shape) as (instance, client):
            await client.add(1)
            bundle = engine._layout.bundle(instance)
            running = read_record(bundle)
            for phase in (Pause.PAUSING, Pause.RESUMING):
                write_record(bundle, with_pause(running, phase))
                assert await engine.inspect(instance) is InstanceStatus.FROZEN
                await engine.thaw(instance)
                assert await engine.inspect(instance) is InstanceStatus.RUNNING
            assert await client.add(1) == 2
            await self.capture(engine, instance, folder)
            write_record(bundle, with_pause(running, Pause.PAUSING))
            second = await self.reopened(engine)
            await second.thaw(instance)
            assert await client.add(1) == 3

    async def test_a_sandbox_that_dies_in_a_capture_is_stopped(self, engine, shape, folder):
        async with self.running(engine, shape) as (instance, client):
            await client.python("import os; x = os.urandom(150 << 20)")
            into = folder / "image"
            into.mkdir()
            capture = asyncio.ensure_future(engine.checkpoint(instance, into))
            await appears(into / "pages.img")
            await self.kill(engine, instance)
            with pytest.raises(EngineError):
                await capture
            assert list(into.iterdir()) == []
            assert await engine.inspect(instance) is InstanceStatus.STOPPED

    async def test_a_capture_that_is_given_up_lets_the_instance_run_on(self, engine, shape, folder):
        async with self.running(engine, shape) as (instance, client):
            await client.python("import os; x = os.urandom(100 << 20); result = None")
            into = folder / "image"
            into.mkdir()
            capture = asyncio.ensure_future(engine.checkpoint(instance, into))
            await appears(into / "pages.img")
            capture.cancel()
            with pytest.raises(asyncio.CancelledError):
                await capture
            assert list(into.iterdir()) == []
            assert await client.add(1) == 1
            await self.capture(engine, instance, folder, "second")

    async def test_a_binary_that_disappeared_is_named_with_the_remedy(self, engine, shape, tmp_path):
        lost = GVisorEngine(config(f"{os.getpid()}-{next(serial)}", tmp_path / "runsc"), SystemClock())
        with pytest.raises(Unsupported, match="engine install"):
            await lost.create(self.new_id(), shape)
        async with self.running(engine, shape) as (instance, client):
            await client.add(1)
            orphan = GVisorEngine(replace(engine._config, runsc=tmp_path / "runsc"), SystemClock())
            await orphan.destroy(instance)
            assert await self.leftovers(engine, instance) == []

    async def test_a_failed_create_leaves_nothing(self, engine):
        nowhere = InstanceShape(rootfs=Path("/nowhere-at-all"), argv=LEDGER_ARGV)
        instance = self.new_id()
        with pytest.raises(EngineError):
            await engine.create(instance, nowhere)
        assert await engine.inspect(instance) is InstanceStatus.ABSENT
        assert await self.leftovers(engine, instance) == []

    async def test_a_read_that_waits_ends_when_its_channel_is_closed(self, engine, shape):
        async with self.running(engine, shape) as (instance, client):
            await client.total()
            channel = await engine.attach(instance)
            waiting = asyncio.ensure_future(channel.read(10))
            await asyncio.sleep(0)
            await channel.close()
            assert await waiting == b""
            assert await client.add(1) == 1

    async def test_more_than_a_pipe_holds_goes_both_ways(self, engine, shape):
        async with self.running(engine, shape) as (_, client):
            text = "torpor" * 500_000
            assert await client.python(f"result = len({text!r})") == len(text)
            assert await client.python("result = 'torpor' * 500_000") == text

    async def test_the_self_test_proves_the_build_and_leaves_nothing(self, runsc_path):
        tested = await self_test(runsc_path, SystemClock())
        assert (tested.passed, tested.failure) == (True, "")
        assert tested.capabilities.filesystem_part
        assert list(tested.steps_ms) == ["create", "start", "checkpoint", "restore"]
        assert list(Path("/run/torpor").glob("self-test-*")) == []
        assert not any(place.exists() for place in cgroup_places(f"/torpor-self-test-{os.getpid()}"))

    async def test_privileges_are_what_the_spec_says(self, engine, shape):
        async with self.running(engine, shape) as (_, client):
            status = await client.python("result = open('/proc/self/status').read()")
            fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
            bounding = int(fields["CapBnd"], 16)
            assert bounding >> 21 & 1  # SYS_ADMIN, for identity
            assert not bounding >> 12 & 1  # NET_ADMIN
            assert not bounding >> 13 & 1  # NET_RAW
            mounts = await client.python("result = [line.split()[1] for line in open('/proc/mounts')]")
            assert {"/run/torpor", "/mnt/torpor", "/etc/torpor/resolv.conf", "/etc/torpor/ca-bundle.pem"} <= set(mounts)
            assert "/tmp" not in mounts
            assert await client.python("import socket; result = socket.gethostname()") == "torpor"


class TestGVisorEngineByCommandLine(RealEngine):
    """The same by command line, as for a build whose control socket we do not know."""

    @pytest.fixture(autouse=True)
    def unknown_build(self, monkeypatch):
        monkeypatch.setattr("torpor.adapters.engines.gvisor.engine.BUILDS", frozenset())
