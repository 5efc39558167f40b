"""Reported faults of such systems whose place is a real engine (docs/cases.md lists all). One server for nearly all."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from e2e_home import eventually, home_at, run, server_of, sh

from torpor.apps.config import Config
from torpor.apps.sdk.sockets import Socket
from torpor.domain.errors import Conflict, Corrupt, GuestError, NotFound, TorporError

pytestmark = pytest.mark.engine

COUNTER = """
import subprocess, sys, os, time
counter = subprocess.Popen([sys.executable, "-c", '''
import itertools, os, time
for number in itertools.count(1):
    open("/workspace/new", "w").write(str(number))
    os.replace("/workspace/new", "/workspace/count")
    time.sleep(0.02)
'''])
while not os.path.exists("/workspace/count"):
    time.sleep(0.01)
"""
IDENTITY = """
import random, secrets, socket, uuid
[open("/etc/machine-id").read(), socket.gethostname(), open("/run/torpor/generation").read(),
 random.random(), secrets.token_hex(8), uuid.uuid4().hex]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with home_at(tmp_path_factory.mktemp("cases") / "home") as home, server_of(home) as one:
        one.start()
        yield one


@pytest.fixture
def client(server):
    """A client of the one server; sessions of the test before are removed."""
    client = server.clients[-1]
    for session in list(client.sessions()):
        client.delete(session["id"])
    return client


def count(client, ref):
    return int(run(client, ref, "int(open('/workspace/count').read())"))


def is_paused(client, ref):
    return client.get(ref)["status"] == "paused"


def start(client, ref, source):
    """A detached Python process."""
    client.execute(ref, ["/usr/bin/python3", "-c", source], on_piece=lambda *_: None, detach=True)


def sandboxes(home, instance=""):
    """Process ids of runsc of this home, or of one instance."""
    runtime = Config.read({"TORPOR_HOME": str(home)}).runtime_dir
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
            if b"--root=" in line and f"{runtime}/".encode() in line and instance.encode() in line:
                found.append(int(folder.name))
    return found


def kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def own_packs(server, ref):
    packs = [path for path in (server.home / "store").rglob("*") if path.is_file() and f"/{ref}/packs/" in str(path)]
    assert packs
    return packs


# ---- what is acknowledged is kept ------------------------------------------------------------------------------------


def test_twenty_cycles_keep_every_marker_and_the_id_and_a_counter_never_goes_back(client):
    ref = client.create()["id"]
    run(client, ref, COUNTER)
    last = 0
    for cycle in range(1, 21):
        sh(client, ref, f"echo {cycle} >> /workspace/markers")
        client.pause(ref)
        assert client.resume(ref)["id"] == ref
        assert sh(client, ref, "cat /workspace/markers").split() == [str(each) for each in range(1, cycle + 1)]
        now = count(client, ref)
        assert now >= last
        last = now
    assert (client.get(ref)["generation"], client.get(ref)["resumes_count"]) == (21, 20)


def test_an_idle_pause_keeps_the_last_acknowledged_write(client):
    ref = client.create(idle_s=1)["id"]
    for number in range(1, 4):
        sh(client, ref, f"echo {number} >> /workspace/log")
    eventually(lambda: is_paused(client, ref), "it is paused for being idle")
    assert [one["reason"] for one in client.get(ref)["timeline"] if one["event"] == "pause"] == ["idle"]
    assert sh(client, ref, "cat /workspace/log").split() == ["1", "2", "3"]


def test_a_deadline_under_a_writer_loses_no_acknowledged_write(client):
    ref = client.create(idle_s=None, timeout_s=2)["id"]
    acknowledged = 0
    run(client, ref, "log = open('/workspace/log', 'a')")

    def has_paused():
        return any(one["reason"] == "run deadline" for one in client.get(ref)["timeline"])

    while not has_paused():
        with contextlib.suppress(Conflict, GuestError):
            run(client, ref, f"print({acknowledged + 1}, file=log)")
            acknowledged += 1
    client.set_clocks(ref, timeout_s=None)
    run(client, ref, "log.flush()")
    written = [int(line) for line in sh(client, ref, "cat /workspace/log").split()]
    assert set(range(1, acknowledged + 1)) <= set(written) <= set(range(1, acknowledged + 2))


def test_an_altered_store_is_a_typed_loss_and_never_an_empty_disk(client, server):
    ref = client.create()["id"]
    sh(client, ref, "head -c 3000000 /dev/urandom > /workspace/data")
    digest = sh(client, ref, "sha256sum /workspace/data")
    client.pause(ref)
    kept = {path: path.read_bytes() for path in own_packs(server, ref)}
    for path, whole in kept.items():
        path.write_bytes(bytes(len(whole)))
    with pytest.raises(Corrupt):
        client.resume(ref)
    assert is_paused(client, ref)
    for path, whole in kept.items():
        path.write_bytes(whole)
    assert sh(client, ref, "sha256sum /workspace/data") == digest


def test_images_larger_than_the_limits_do_not_kill_what_is_captured(client):
    ref = client.create()["id"]
    run(client, ref, "x = 41")
    sh(client, ref, "truncate -s 2G /workspace/sparse")  # the disk's part holds it whole
    assert client.pause(ref)["status"] == "paused"
    assert run(client, ref, "x + 1") == "42"
    assert sh(client, ref, "stat -c %s /workspace/sparse") == str(2 << 30)
    sh(client, ref, "rm /workspace/sparse")


# ---- races -----------------------------------------------------------------------------------------------------------


def test_a_hundred_concurrent_pauses_resumes_and_bursts_end_well_or_in_a_typed_conflict(client):
    refs = [client.create()["id"] for _ in range(3)]
    for ref in refs:
        run(client, ref, "x = 0")
    counted: dict[str, list[int]] = {ref: [] for ref in refs}
    odd: list[object] = []

    def act(number):
        ref = refs[number % 3]
        try:
            match number // 3 % 3:
                case 0:
                    odd.append(client.pause(ref)["status"] == "paused" or number)
                case 1:
                    odd.append(client.resume(ref)["status"] == "running" or number)
                case _:
                    counted[ref].append(int(run(client, ref, "x += 1\nx")))
        except (Conflict, GuestError) as error:
            odd.append(error.details.get("reason") in {"pause_given_up", "paused_during_burst"} or error)

    with ThreadPoolExecutor(100) as pool:
        list(pool.map(act, random.Random(3).sample(range(100), 100)))
    assert [one for one in odd if one is not True] == []
    for ref in refs:
        assert len(set(counted[ref])) == len(counted[ref]), "no increment was done twice or lost"
        assert int(run(client, ref, "x")) >= max(counted[ref], default=0)


@pytest.mark.parametrize("delay_ms", [0, 60, 160, 300])
def test_a_delete_during_a_resume_ends_both_and_leaves_nothing(client, server, delay_ms):
    session = client.create()
    ref = session["id"]
    client.pause(ref)
    with ThreadPoolExecutor(1) as pool:
        resuming = pool.submit(run, client, ref, "1")
        time.sleep(delay_ms / 1000)  # noqa: TID251 - to be somewhere in the resume
        client.delete(ref)
        with contextlib.suppress(Conflict, GuestError, NotFound):
            assert resuming.result() == "1"
    with pytest.raises(NotFound):
        client.get(ref)
    assert not list((server.home / "store").rglob(f"*{ref}*"))


def test_delete_succeeds_wherever_a_session_stands(client, server):
    running, paused, dead, altered = (client.create()["id"] for _ in range(4))
    client.pause(paused)
    client.pause(altered)
    for path in own_packs(server, altered):
        path.write_bytes(b"not what was written")
    kill(sandboxes(server.home, client.get(dead)["instance"]))
    for ref in (running, paused, dead, altered):
        assert client.delete(ref)["status"] == "deleted"
    assert list(client.sessions()) == []


def test_a_sandbox_killed_in_every_try_of_a_resume_fails_typed_and_the_snapshot_stays(client, server):
    ref = client.create()["id"]
    run(client, ref, "x = 41")
    before = client.pause(ref)
    over = threading.Event()

    def massacre():
        while not over.is_set():
            kill(sandboxes(server.home))
            time.sleep(0.02)  # noqa: TID251 - as often as one may look

    killer = threading.Thread(target=massacre)
    killer.start()
    try:
        with pytest.raises(TorporError) as failed:
            client.resume(ref)
    finally:
        over.set()
        killer.join()
    assert failed.value.code in {"engine_error", "guest_error"}
    after = client.get(ref)
    assert (after["status"], after["snapshot"]) == ("paused", before["snapshot"])
    assert run(client, ref, "x + 1") == "42"


# ---- forks, live snapshots, persistence ------------------------------------------------------------------------------


def test_forks_have_the_state_of_now_and_neither_identity_nor_randomness_of_the_original_which_goes_on(client):
    ref = client.create(name="day")["id"]
    run(client, ref, COUNTER)
    run(client, ref, "x = 1")
    original = client.get(ref)
    before = count(client, ref)
    forks = client.fork(ref, names=["left", "right"], count=2)
    assert [one["forked_from"] for one in forks] == [ref, ref]
    after = client.get(ref)
    assert (after["status"], after["generation"], after["instance"]) == ("running", 1, original["instance"])
    for name in ("left", "right"):
        assert run(client, name, "x += 1\nx") == "2"
        assert count(client, name) >= before
    assert run(client, ref, "x") == "1"
    seen = [eval(run(client, name, IDENTITY)) for name in ("day", "left", "right")]
    for place, values in enumerate(zip(*seen, strict=True)):
        assert len(set(values)) == 3 or place == 2, values  # generations are counted by each for itself
    now = count(client, ref)
    eventually(lambda: count(client, ref) > now, "the original's process goes on")


def test_a_live_snapshot_lets_everything_go_on_and_is_what_a_loss_goes_back_to(client, server):
    ref = client.create()["id"]
    run(client, ref, COUNTER)
    run(client, ref, "x = 1")
    before = count(client, ref)
    taken = client.snapshot(ref)
    assert (taken["status"], taken["generation"], taken["durability"]) == ("running", 1, "disk")
    assert run(client, ref, "x += 1\nx") == "2"
    eventually(lambda: count(client, ref) > before, "its process goes on")
    kill(sandboxes(server.home, client.get(ref)["instance"]))

    def is_lost():
        with contextlib.suppress(GuestError, Conflict):
            run(client, ref, "x")
        return client.get(ref)["status"] == "lost"

    eventually(is_lost, "its loss is noticed by who uses it")
    with pytest.raises(Conflict, match="allow_older"):
        run(client, ref, "x")
    client.resume(ref, allow_older=True)
    assert run(client, ref, "x") == "1"
    assert count(client, ref) >= before


def test_a_disk_comes_back_with_processes_started_anew_also_without_the_build_that_captured_it(tmp_path):
    with home_at(tmp_path / "home") as home, server_of(home) as server:
        client = server.start()
        disk = client.create(persistence="filesystem")["id"]
        memory = client.create()["id"]
        for ref in (disk, memory):
            run(client, ref, "x = 1")
            sh(
                client,
                ref,
                "mkdir /workspace/a && head -c 2000000 /dev/urandom > /workspace/a/b && rm /etc/debian_version",
            )
        digests = {ref: sh(client, ref, "sha256sum /workspace/a/b") for ref in (disk, memory)}
        client.pause(disk)
        assert_came_back_as_its_disk(client, disk, digests[disk])
        build = client.engine()["build"]
        client.pause(disk)
        client.pause(memory)
        server.kill()
        with another_build_instead(home, build):
            client = server.start()
            assert client.engine()["builds"] != [build]
            assert_came_back_as_its_disk(client, disk, digests[disk])
            stepped_down = assert_came_back_as_its_disk(client, memory, digests[memory])
            assert build in stepped_down[0]
            for ref in (disk, memory):
                client.delete(ref)
            server.kill()


def assert_came_back_as_its_disk(client, ref, digest):
    """What it stepped down over."""
    said = client.code(ref, "'x' in globals()", on_piece=lambda *_: None)
    assert said["resumed"]["outcome"] == "restored_filesystem"
    assert said["result"]["text/plain"] == "False"
    assert sh(client, ref, "sha256sum /workspace/a/b; ls /etc/debian_version 2>/dev/null || :") == digest
    return said["resumed"]["stepped_down"]


@contextlib.contextmanager
def another_build_instead(home, build):
    """The same program with a byte behind its end is another build for all that anybody can know."""
    engines = home / "engines"
    target = engines.resolve()
    engines.unlink()
    shutil.copytree(target / build, engines / "another")
    with (engines / "another/runsc").open("ab") as program:
        program.write(b"\0")
    record = engines / "another/build.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "sha256": "f" * 64}))
    try:
        yield
    finally:
        shutil.rmtree(engines)
        engines.symlink_to(target)


# ---- what keeps a session awake --------------------------------------------------------------------------------------

BUSY = "while True: pass"
TICKER = """
import time
while True:
    ends = time.process_time() + 0.002
    while time.process_time() < ends: pass
    time.sleep(0.198)
"""
SLEEPERS = """
import os, time
for _ in range(9):
    if not os.fork(): break
while True: time.sleep(0.1)
"""


def test_work_keeps_awake_and_attachment_does_not(client):
    ticker, sleepers = resting = [client.create(idle_s=2)["id"] for _ in range(2)]
    for ref, source in ((ticker, TICKER), (sleepers, SLEEPERS)):
        start(client, ref, source)
    # Before there is work beside them: they are not to pay for a machine that has too much to do.
    for ref in resting:
        eventually(lambda ref=ref: is_paused(client, ref), f"{resting.index(ref)} is paused")

    busy, terminal, download = (client.create(idle_s=2)["id"] for _ in range(3))
    over = threading.Event()

    def drip():
        with client.reading(download, "/workspace/large") as (pieces, _):
            for _ in pieces:
                if over.wait(0.02):
                    return

    with ThreadPoolExecutor(1) as pool, Socket.open(client.access, f"{terminal}/terminal") as socket:
        sh(client, download, "truncate -s 400M /workspace/large")
        reading = pool.submit(drip)
        start(client, busy, BUSY)
        began = next(iter(socket))
        assert began["process"]["running"]
        try:
            eventually(lambda: is_paused(client, terminal), "the one with a silent terminal is paused")
            reasons = {ref: " ".join(client.get(ref)["awake_because"]) for ref in (busy, download)}
            assert "processes use" in reasons[busy], reasons
            assert "python3" in reasons[busy], "it is named"
            assert "bytes moved on streams" in reasons[download], reasons
        finally:
            over.set()
        reading.result()
    eventually(lambda: is_paused(client, download), "it is paused once the download is over")
    assert client.get(busy)["status"] == "running"
