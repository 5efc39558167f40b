"""The server of real sandboxes is killed with SIGKILL at numbered points; the next one finds what was acknowledged.

Every point with the fake engine, where the node dies as well: tests/fault/test_crash_points_fake.py.
"""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from e2e_home import Server, home_at, run, server_of, traces

from torpor.apps.crashing import VARIABLE
from torpor.apps.sdk import calls
from torpor.domain.errors import TorporError
from torpor.ports.crash_points import CrashPoint

pytestmark = pytest.mark.engine

COUNTER = """
import subprocess, sys, os, time
counter = subprocess.Popen([sys.executable, "-c", '''
import itertools, os, time
for number in itertools.count(1):
    open("/workspace/new", "w").write(str(number))
    os.replace("/workspace/new", "/workspace/count")
    time.sleep(0.05)
'''])
while not os.path.exists("/workspace/count"):
    time.sleep(0.01)
x = 0
"""
EMPTY = {"processes": [], "mounts": [], "cgroups": []}


def wake(client, day):
    day.said = int(run(client, day.ref, "x += 1; x"))


def pause(client, day):
    """One burst that is not acknowledged by a snapshot yet, and a pause."""
    wake(client, day)
    assert client.pause(day.ref)["status"] == "paused"
    day.kept = day.said


def fork(client, day):
    client.send(calls.fork(day.ref, {"names": ["night"]}))


def delete(client, _day):
    client.delete(client.create(name="gone")["id"])


def gone_after_a_pause(client, _day):
    ref = client.create(name="gone")["id"]
    client.pause(ref)
    client.delete(ref)


def collect(client, day):
    """Three pauses leave a snapshot that nobody needs; it goes at once."""
    for _ in range(3):
        pause(client, day)
    client.send(calls.collect_garbage(grace_s=0))


def create(client, _day):
    client.create(name="gone")


CRASHES = (
    (CrashPoint.CAPTURE_CHECKPOINTED, pause),
    (CrashPoint.SEAL_FIRST_CHUNKS, pause),
    (CrashPoint.UPLOAD_PACK, pause),
    (CrashPoint.COMMIT_HEAD, pause),
    (CrashPoint.COMMIT_RECORD, pause),
    (CrashPoint.RESUME_RESTORED, wake),
    (CrashPoint.RESUME_READY, wake),
    (CrashPoint.FORK_STORED, fork),
    (CrashPoint.CREATE_INSERTED, create),
    (CrashPoint.DELETE_KEY_DESTROYED, delete),
    (CrashPoint.DELETE_OBJECT, gone_after_a_pause),
    (CrashPoint.GC_OBJECT, collect),
)


@dataclass
class Day:
    """The session that goes through it all. ``kept``: x in its last acknowledged snapshot; ``said``: ever answered."""

    home: Path
    ref: str = ""
    kept: int = 0
    said: int = 0
    count: int = 0
    generations: list[int] = field(default_factory=list)

    def server(self, **variables: str) -> Server:
        return Server(self.home, **variables)


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """One home for all of them, with a paused session in it whose process counts in the background."""
    with home_at(tmp_path_factory.mktemp("crashes") / "home") as home:
        one = Day(home)
        with server_of(home) as server:
            client = server.start()
            one.ref = client.create(name="day")["id"]
            run(client, one.ref, COUNTER)
            pause(client, one)
            server.stop()
            yield one


@contextlib.contextmanager
def serving(server):
    """Its client; in the end the server stops in order, and nothing of it is left."""
    client = server.start()
    try:
        yield client
    finally:
        server.stop()
        close(server)


def close(server):
    for client in server.clients:
        client.close()


@pytest.mark.parametrize(("point", "act"), CRASHES, ids=[point.name for point, _ in CRASHES])
def test_the_next_server_finds_what_was_acknowledged_before_the_death_at(day, point, act):
    dying = day.server(**{VARIABLE: str(point.value)})
    client = dying.start()
    try:
        with pytest.raises(TorporError):
            act(client, day)
        assert dying.process.wait(30) == -signal.SIGKILL
    finally:
        dying.stop()
        close(dying)
    next_one = day.server()
    with serving(next_one) as client:
        assert client.store_check()["clean"]
        assert_acknowledged(client, day)
        assert_nothing_is_left_over(client)
        pause(client, day)
    assert traces(day.home) == EMPTY


def assert_acknowledged(client, day):
    """``day`` runs, or resumes without being allowed an older state; its counters never went back."""
    session = client.get(day.ref)
    assert session["status"] in {"running", "paused"}
    assert day.kept <= int(run(client, day.ref, "x")) <= max(day.kept + 1, day.said + 1)
    assert run(client, day.ref, "counter.poll() is None") == "True"
    count = int(run(client, day.ref, "int(open('/workspace/count').read())"))
    assert count >= day.count
    day.count = count
    day.generations.append(client.get(day.ref)["generation"])
    assert day.generations == sorted(day.generations)


def assert_nothing_is_left_over(client):
    """What was half made or half deleted is gone, and a second collection finds nothing that the first left."""
    names = {session["name"]: session["status"] for session in client.sessions()}
    assert set(names) <= {"day", "gone"}
    if "gone" in names:  # it was made before the server died
        assert names["gone"] in {"running", "paused"}
        client.delete("gone")
    for _ in range(2):
        client.send(calls.collect_garbage(grace_s=0))
    again = client.send(calls.collect_garbage(dry_run=True, grace_s=0))
    assert (again["removed"]["count"], again["waiting"]["count"]) == (0, 0)


def test_sessions_run_on_through_two_deaths_of_the_server_without_being_placed_anew(day):
    servers = [day.server() for _ in range(3)]
    client = servers[0].start()
    refs = [client.create()["id"] for _ in range(2)]
    for ref in refs:
        run(client, ref, COUNTER)
        run(client, ref, "pid = counter.pid; x = 7")
    seen = dict.fromkeys(refs, 0)
    for server in servers[1:]:
        servers[servers.index(server) - 1].kill()
        client = server.start()
        for ref in refs:
            session = client.get(ref)
            assert (session["status"], session["generation"]) == ("running", 1)
            counted = "(counter.poll(), counter.pid == pid, x, int(open('/workspace/count').read()))"
            poll, same, x, count = eval(run(client, ref, counted))
            assert (poll, same, x) == (None, True, 7)
            assert count > seen[ref]
            seen[ref] = count
    for ref in refs:
        client.delete(ref)
    servers[-1].stop()
    for server in servers:
        close(server)
    assert traces(day.home) == EMPTY
