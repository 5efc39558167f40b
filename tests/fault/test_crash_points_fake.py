"""A server is killed with SIGKILL at every numbered point, and its node with it: what was acknowledged holds."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torpor.domain.errors import Conflict
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.session import Status
from torpor.ports.crash_points import CrashPoint
from torpor.services.requests import Outcome

PROGRAM = Path(__file__).with_name("dying_servers.py")
_spec = importlib.util.spec_from_file_location("dying_servers", PROGRAM)
dying_servers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(dying_servers)

# The second time that a point is reached another operation is under way, or another object has gone.
LATER = ("UPLOAD_PACK:2", "COMMIT_HEAD:2", "COMMIT_RECORD:3", "RESUME_RECORDED:4", "DELETE_OBJECT:2", "GC_OBJECT:2")
# One of each way: a pause, its commit, a resume, a fork, a removal, a collection of garbage, a birth.
QUICK = frozenset(
    {
        *("CAPTURE_CHECKPOINTED", "UPLOAD_PACK", "COMMIT_HEAD", "COMMIT_RECORD", "RESUME_RESTORED"),
        *("FORK_STORED", "DELETE_KEY_DESTROYED", "GC_OBJECT", "CREATE_KEY_MADE"),
    }
)
CRASHES = [
    crash if crash in QUICK else pytest.param(crash, marks=pytest.mark.slow)
    for crash in (*(point.name for point in CrashPoint), *LATER)
]


class Dying:
    """The program, and one folder that every server begins with."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.first = folder / "first"
        self.first.mkdir()
        assert self.run(self.first, "begin") == 0, (self.first / "log").read_text()

    def run(self, folder: Path, crash: str) -> int:
        """How the server ended, as ``os.waitpid`` says it."""
        print(folder, crash, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def dying(tmp_path_factory):
    one = Dying(tmp_path_factory.mktemp("dying"))
    yield one
    one.process.stdin.close()
    one.process.wait()
    one.process.stdout.close()


def number(crash):
    name, _, nth = crash.partition(":")
    return f"{CrashPoint[name].value}:{nth or 1}"


@pytest.mark.parametrize("crash", CRASHES)
async def test_what_was_acknowledged_outlives_a_server_and_its_node_that_die_at(dying, tmp_path, crash):
    folder = tmp_path / "home"
    shutil.copytree(dying.first, folder)
    ended = dying.run(folder, number(crash))
    assert ended == signal.SIGKILL, (folder / "log").read_text()
    diary = (folder / "diary").read_text().splitlines()
    async with dying_servers.served(folder) as (node, maintenance):
        report = await node.store.check()
        assert report.clean, report.problems
        await assert_acknowledged(node, diary)
        await assert_others_are_whole(node, diary)
        await maintenance.collect_garbage(grace_s=0)
        await maintenance.collect_garbage(grace_s=0)  # packs wait for the names that went
        await assert_no_orphan(node, maintenance)
        assert (await node.store.check()).clean


async def assert_acknowledged(node, diary):
    """``day`` is at its last acknowledged snapshot, or at one that was committed and not acknowledged any more."""
    paused = max(int(line.split()[1]) for line in diary if line.startswith("paused"))
    said = max([int(line.split()[1]) for line in diary if line.startswith("said")], default=1)
    session = await node.sessions.get(TENANT, "day")
    assert session.status in {Status.PAUSED_LOCAL, Status.LOST}
    is_lost = session.status is Status.LOST
    if is_lost:
        with pytest.raises(Conflict) as refused:
            await node.sessions.resume(TENANT, "day")
        assert refused.value.details["reason"] == "cannot_resume_lost_session_unless_older_state_is_allowed"
    _, told = await node.sessions.resume(TENANT, "day", allow_older=is_lost)
    assert told.outcome is (Outcome.RESTORED_OLDER if is_lost else Outcome.RESUMED)
    assert paused <= int(await dying_servers.value(node, "day", "get x")) <= max(paused, said)
    await node.sessions.pause(TENANT, "day")


async def assert_others_are_whole(node, diary):
    """What was deleted is gone; what was made is there, and each that has a snapshot resumes from it."""
    page = await node.sessions.page(TENANT)
    others = {session.name: session for session in page.sessions if session.name != "day"}
    assert ("night" in others) <= ("deleting night" not in diary)
    assert ("night" in others) >= ("forked night" in diary and "deleting night" not in diary)
    assert ("noon" in others) >= ("created noon" in diary)
    for session in others.values():
        assert session.status in {Status.PAUSED_LOCAL, Status.LOST}
        if session.snapshot is not None:
            await node.sessions.resume(TENANT, session.id, allow_older=True)
            await node.sessions.pause(TENANT, session.id)
        assert (session.snapshot is None) == (session.name == "noon")


async def assert_no_orphan(node, maintenance):
    plan = (await maintenance.collect_garbage(grace_s=0, dry_run=True)).plan
    assert (plan.remove, plan.wait, plan.headless, plan.blocked) == ((), (), (), ())
    sessions = {session.id for session in (await node.sessions.page(TENANT)).sessions}
    stored = {found.owner.subject async for found in node.store.subjects() if found.owner.tenant == TENANT}
    assert stored <= sessions
    assert (await node.store.check()).unreferenced == ()
