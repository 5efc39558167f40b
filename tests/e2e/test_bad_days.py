"""Bad input and bad days: a typed error that names the remedy, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from e2e_home import run, sh

from torpor.apps.config import Config
from torpor.domain.errors import NotFound, StorageFull, Unsupported

pytestmark = pytest.mark.engine

CANARY = "canary-5b1f0c7e9d"


ROOM_BYTES = 40 << 20  # less than the session of the test is about to store


@pytest.fixture
def small_store(home):
    """The home's store on a disk of its own that is nearly full."""
    store, kept = home / "store", home / "kept"
    store.rename(kept)
    store.mkdir(mode=0o700)
    used_bytes = sum(path.stat().st_blocks * 512 for path in kept.rglob("*"))
    size = f"size={used_bytes + ROOM_BYTES},mode=0700"
    subprocess.run(("mount", "-t", "tmpfs", "-o", size, "torpor-test", str(store)), check=True)
    shutil.copytree(kept, store, dirs_exist_ok=True)
    yield store
    subprocess.run(("umount", "-l", str(store)), check=True)


def test_a_full_disk_refuses_the_pause_and_the_session_goes_on(small_store, server):
    client = server.start()
    ref = client.create()["id"]
    run(client, ref, "import os; x = os.urandom(80 << 20); total = x[:1000]")
    with pytest.raises(StorageFull) as caught:
        client.pause(ref)
    assert "nothing of it was lost" in caught.value.message
    assert client.get(ref)["status"] == "running"
    assert run(client, ref, "x[:1000] == total") == "True"
    subprocess.run(("mount", "-o", "remount,size=3g", str(small_store)), check=True)
    assert client.pause(ref)["status"] == "paused"
    assert run(client, ref, "x[:1000] == total") == "True"


def test_an_engine_that_disappeared_is_named_and_the_snapshot_waits_for_it(server, home):
    engines = home / "engines"
    target = engines.resolve()
    engines.unlink()
    shutil.copytree(target, engines, symlinks=True)
    client = server.start()
    ref = client.create()["id"]
    run(client, ref, "x = 7")
    client.pause(ref)
    builds = [path for path in engines.iterdir() if not path.name.startswith(".")]
    for build in builds:
        (build / "runsc").rename(build / "hidden")
    server.process.kill()
    server.process.wait()
    refused = server.command("up", "--port", "0")
    assert refused.returncode != 0
    assert b"engine install gvisor" in refused.stderr
    for build in builds:
        (build / "hidden").rename(build / "runsc")
    client = server.start()
    assert run(client, ref, "x") == "7"


def test_a_second_server_on_one_home_is_refused_by_name(server):
    server.start()
    second = server.command("up", "--port", "0", "--json")
    assert second.returncode == 4
    said = json.loads(second.stderr.splitlines()[-1])
    assert said["code"] == "conflict"
    assert str(server.process.pid) in said["message"]


def test_unknown_things_are_not_found_and_say_where_to_look(server):
    client = server.start()
    with pytest.raises(NotFound, match="torpor ls"):
        client.get("nobody")
    with pytest.raises(NotFound) as caught:
        client.create(template="no-such")
    assert "data" in caught.value.message
    ref = client.create()["id"]
    with pytest.raises(Unsupported):
        client.pause(ref, wait="object")
    assert client.get(ref)["status"] == "running"


def test_ten_megabytes_of_code_and_binary_output_arrive_whole(server):
    client = server.start()
    ref = client.create()["id"]
    big = "text = '" + "x" * (10 << 20) + "'\nlen(text)"
    assert run(client, ref, big) == str(10 << 20)
    done = server.command("exec", ref, "--", "head", "-c", "300000", "/bin/bash")
    local = server.command("cp", f"{ref}:/bin/bash", str(server.home / "bash"))
    assert local.returncode == 0, local.stderr
    assert done.stdout == (server.home / "bash").read_bytes()[:300000]


def test_files_go_in_and_out_unchanged_and_wake_a_paused_session(server, tmp_path):
    client = server.start()
    ref = client.create()["id"]
    client.pause(ref)
    content = os.urandom(3 << 20)
    (tmp_path / "in").write_bytes(content)
    put = server.command("cp", str(tmp_path / "in"), f"{ref}:/workspace/deep/file")
    assert put.returncode == 0, put.stderr
    assert b"paused" in put.stderr
    back = server.command("cp", f"{ref}:/workspace/deep/file", str(tmp_path / "out"))
    assert back.returncode == 0, back.stderr
    assert (tmp_path / "out").read_bytes() == content


def test_no_secret_of_a_session_lies_readable_in_the_home(server, home):
    client = server.start()
    ref = client.create(env={"SECRET": CANARY})["id"]
    run(client, ref, f"secret = '{CANARY}' * 10; open('/workspace/secret', 'w').write(secret)")
    client.pause(ref)
    stored = [path for path in (home / "store").rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if CANARY.encode() in path.read_bytes()]
    assert run(client, ref, "secret[:17]") == f"'{CANARY[:17]}'"
    assert sh(client, ref, "echo $SECRET") == CANARY


def test_nothing_can_leave_a_sandbox(server):
    client = server.start()
    ref = client.create()["id"]
    attempt = (
        "import socket\n"
        "def reach(address):\n"
        "    try:\n"
        "        socket.create_connection(address, timeout=1).close()\n"
        "        return 'reached'\n"
        "    except OSError:\n"
        "        return 'refused'\n"
        "[reach(('127.0.0.2', 1)), reach(('169.254.17.1', 22))]"
    )
    assert run(client, ref, attempt) == "['refused', 'refused']"


def test_a_guest_that_eats_its_memory_is_a_typed_loss_and_its_neighbour_lives(server):
    client = server.start()
    victim, neighbour = client.create()["id"], client.create()["id"]
    run(client, victim, "x = 1")
    client.pause(victim)
    run(client, neighbour, "y = 2")
    said = server.command("code", victim, "hog = [b'x' * (64 << 20) for _ in range(64)]", "--json")
    assert said.returncode != 0
    assert run(client, neighbour, "y") == "2"
    if client.get(victim)["status"] == "running":  # the kernel took the context's process alone
        assert json.loads(said.stdout)["error"]["name"] == "ContextLost"
    else:  # it took the whole sandbox: the last snapshot is still there, for those who ask for it
        assert client.get(victim)["status"] == "lost"
        client.resume(victim, allow_older=True)
        assert run(client, victim, "x") == "1"
    assert run(client, victim, "1 + 1") == "2"


def test_a_graceful_stop_pauses_what_runs_and_the_next_server_finds_it(server, home):
    client = server.start()
    ref = client.create()["id"]
    run(client, ref, "x = 5")
    server.stop()
    assert server.process.returncode == 0
    runtime = Config.read({"TORPOR_HOME": str(home)}).runtime_dir
    assert str(runtime) not in Path("/proc/self/mounts").read_text()
    assert not runtime.joinpath("s").exists()
    client = server.start()
    assert client.get(ref)["status"] == "paused"
    assert run(client, ref, "x") == "5"
