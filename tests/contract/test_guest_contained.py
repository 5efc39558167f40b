"""The real agent keeps the guests' contract as an ordinary process, over pipes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.guest import FramedDialer
from torpor.adapters.guest.pipe import PipeChannel
from torpor.domain.errors import GuestError
from torpor.domain.ids import InstanceId
from torpor.testing.contracts.guest import Collected, GuestContract, notice

AGENT = Path(__file__).resolve().parents[2] / "src" / "torpor_guest"
INSTANCE = InstanceId("0" * 20)


class ContainedAgent:
    """An agent that is a child of this process; its pipes outlive each connection, as FIFOs of an instance do."""

    def __init__(self, root, prefix=()):
        self.root = root
        inner_read, self.write_fd = os.pipe()
        self.read_fd, inner_write = os.pipe()
        argv = (*prefix, sys.executable, "-I", "-S", "-B", str(AGENT), "--contained", str(root), "0.5")
        self.process = subprocess.Popen(argv, stdin=inner_read, stdout=inner_write)
        os.close(inner_read)
        os.close(inner_write)
        self.guest = None

    async def connect(self):
        if self.guest is not None:
            await self.guest.close()
        channel = PipeChannel(read_fd=os.dup(self.read_fd), write_fd=os.dup(self.write_fd))
        self.guest = FramedDialer(SystemClock()).connect(INSTANCE, channel)
        return self.guest

    async def kill(self):
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        children = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
        self.process.kill()
        await asyncio.to_thread(self.process.wait)
        for pid in children:  # nobody is left to end them
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def leave(self):
        if self.guest is not None:
            await self.guest.close()
        self.guest = None

    def release(self):
        os.close(self.write_fd)
        os.close(self.read_fd)
        self.process.wait(10)

    async def end(self):
        await self.leave()
        await asyncio.to_thread(self.release)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Starting an agent with its context is most of what a test costs: one serves all that leave it usable."""
    living = []

    def get():
        if living and living[0].process.poll() is not None:
            living.pop().release()
        if not living:
            living.append(ContainedAgent(tmp_path_factory.mktemp("shared")))
        return living[0]

    yield get
    for agent in living:
        agent.release()


@pytest.fixture
async def agent(tmp_path):
    agent = ContainedAgent(tmp_path)
    yield agent
    await agent.end()


class TestContainedAgent(GuestContract):
    may_change_user = os.geteuid() == 0

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.FOLDER = str(tmp_path / "work")

    @pytest.fixture
    async def station(self, shared):
        agent = shared()
        yield agent
        await agent.leave()


async def test_what_the_agent_starts_can_be_interrupted_whatever_its_own_parent_ignores(tmp_path):
    agent = ContainedAgent(
        tmp_path, prefix=("env", "--ignore-signal=INT", "--ignore-signal=QUIT", "--block-signal=TERM")
    )
    guest = await agent.connect()
    collected = Collected()
    await guest.shell("grep -E '^Sig(Ign|Blk)' /proc/self/status", on_output=collected)
    await agent.end()
    ignored_and_blocked = [int(line.split()[1], 16) for line in collected.stdout.splitlines()]
    asked = sum(1 << number - 1 for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM))
    assert [mask & asked for mask in ignored_and_blocked] == [0, 0]


async def test_the_contract_leaves_its_files(agent):
    guest = await agent.connect()
    await guest.quiesce()
    await guest.proceed(notice(12, name="clone-12"))
    assert (agent.root / "run/torpor/generation").read_text() == "12\n"
    assert (agent.root / "run/torpor/contract").read_text() == "1\n"
    assert '"generation": 12' in (agent.root / "run/torpor/restore.json").read_text()
    assert (agent.root / "etc/hostname").read_text() == "clone-12\n"
    assert (agent.root / "etc/machine-id").read_text() == notice(12, name="clone-12").machine_id + "\n"


async def test_a_step_that_fails_leaves_user_code_stopped(agent):
    guest = await agent.connect()
    collected = Collected()
    await guest.shell("echo $$", on_output=collected)
    await guest.quiesce()
    (agent.root / "run").write_text("in the way of the folder /run/torpor")
    with pytest.raises(GuestError, match="user code stays stopped"):
        await guest.proceed(notice(2))
    assert Path(f"/proc/{int(collected.stdout)}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    with pytest.raises(GuestError, match="user code stays stopped"):
        await guest.proceed(notice(2))


async def test_a_warm_up_runs_before_the_first_greeting_and_its_failure_is_told(tmp_path):
    (tmp_path / "warmup.py").write_text("warmed = 1 / 0")
    agent = ContainedAgent(tmp_path)
    with pytest.raises(GuestError, match="ZeroDivisionError"):
        await (await agent.connect()).hello()
    await agent.end()
    (tmp_path / "warmup.py").write_text("warmed = 1")
    agent = ContainedAgent(tmp_path)
    result = await (await agent.connect()).code("warmed")
    assert (result.result, result.execution_count) == ({"text/plain": "1"}, 1)
    await agent.end()


async def test_an_agent_refuses_to_be_an_ordinary_process_without_being_told(tmp_path):
    argv = (sys.executable, "-I", "-S", "-B", str(AGENT))
    done = await asyncio.to_thread(
        subprocess.run, argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, "must be PID 1" in done.stderr) == (2, True)
