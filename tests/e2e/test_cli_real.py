"""The command line as people run it, against real sandboxes: what wakes a session says so, Ctrl-C leaves in order."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import urllib.request

import pytest
from e2e_home import PATIENCE_S, TORPOR, eventually, home_at, run, server_of

pytestmark = pytest.mark.engine

WEB = ("python3", "-m", "http.server", "8000", "--directory", "/workspace")
PROMPT = b"# "
LEAVE = b"\x1d"  # Ctrl-]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One for all tests of this page, with a session named ``one`` that never pauses by itself."""
    with home_at(tmp_path_factory.mktemp("cli") / "home") as home, server_of(home) as started:
        client = started.start()
        client.create(name="one", idle_s=None)
        run(client, "one", "x = 41")
        yield started


@pytest.fixture
def client(server):
    return server.clients[-1]


@contextlib.contextmanager
def running(server, *arguments: str, **streams):
    """A command that goes on until it is told to end."""
    environment = {**os.environ, **server.variables}
    environment.pop("TORPOR_API_URL", None)
    with subprocess.Popen((*TORPOR, *arguments), env=environment, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupted(process) -> bytes:
    """Ctrl-C; what it said on stderr. Its exit code is that of Ctrl-C."""
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    return said


def test_the_bursts_and_copies_that_wake_a_session_say_so_on_stderr(server, client, tmp_path):
    (tmp_path / "file").write_bytes(b"carried")
    waking = [
        (("code", "one", "x + 1"), b"42\n", b"resumed (local)"),
        (("sh", "one", "echo out"), b"out\n", b"resumed (local)"),
        (("exec", "one", "--", "cat", "/etc/hostname"), b"one\n", b"resumed (local)"),
        (("cp", str(tmp_path / "file"), "one:/workspace/file"), b"one:/workspace/file  7 B\n", b"resumed for the copy"),
        (("cp", "one:/workspace/file", "-"), b"carried", b"resumed for the copy"),
    ]
    for arguments, result, how in waking:
        client.pause("one")
        woken = server.command(*arguments)
        assert (woken.returncode, woken.stdout) == (0, result), woken.stderr
        [line] = [line for line in woken.stderr.splitlines() if line.startswith(b"torpor: one was paused")]
        assert how in line
    first, second = (server.command("code", "one", "x + 1") for _ in range(2))
    assert b"resumed (local)" in first.stderr  # a copy's is told again by the first burst, which has the gap
    assert (second.stdout, second.stderr) == (b"42\n", b"")


def test_a_port_wakes_its_session_carries_bytes_and_ends_with_ctrl_c(server, client):
    assert server.command("cp", "-", "one:/workspace/page", input=b"served").returncode == 0
    assert server.command("exec", "one", "--detach", "--", *WEB).stdout.strip().isdigit()
    listens = ("exec", "one", "--", "bash", "-c", "echo >/dev/tcp/127.0.0.1/8000")
    eventually(lambda: server.command(*listens).returncode == 0, "the web server inside listens")
    client.pause("one")
    with running(
        server, "port", "one", "8000", "--local", "0", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as offering:
        told = json.loads(read_until(offering.stdout.fileno(), lambda data: data.endswith(b"}\n")))
        assert (told["host"], told["inside"], client.get("one")["status"]) == ("127.0.0.1", 8000, "running")

        def page():
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{told['port']}/page") as said:
                return said.read()

        assert eventually(page, "the web server inside answers") == b"served"
        client.pause("one")
        assert eventually(page, "it answers after a pause") == b"served"
        assert interrupted(offering) == b""


def test_logs_go_on_until_ctrl_c(server):
    with running(server, "logs", "one", "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        output = following.stdout.fileno()
        read_until(output, lambda data: b"started as pid 1\n" in data)
        server.command("exec", "one", "--detach", "--", "echo", "written later")
        read_until(output, lambda data: b"written later\n" in data)
        assert interrupted(following) == b""


def test_a_run_makes_a_session_for_one_command_and_keeps_it_only_if_told(server, client):
    before = {session["id"] for session in client.sessions()}
    done = server.command("run", "data", "--env", "STAGE=2", "--", "sh", "-c", "cat; echo $STAGE; exit 7", input=b"in ")
    assert (done.returncode, done.stdout) == (7, b"in 2\n")
    assert {session["id"] for session in client.sessions()} == before
    kept = server.command("run", "data", "--keep", "-n", "--", "true")
    [ref] = {session["id"] for session in client.sessions()} - before
    assert (kept.returncode, f"session {ref} is kept" in kept.stderr.decode()) == (0, True)
    assert server.command("rm", ref).returncode == 0


def test_a_snapshot_lets_the_session_go_on_and_forks_start_from_what_it_is_now(server, client):
    run(client, "one", "y = 'before'")
    taken = server.command("snapshot", "one")
    assert (taken.returncode, taken.stdout.startswith(b"one has snapshot ")) == (0, True)
    assert client.get("one")["status"] == "running"
    run(client, "one", "y = 'at the fork'")
    made = server.command("fork", "one", "-n", "2", "--metadata", "try=1")
    first, second = made.stdout.decode().split()
    run(client, "one", "y = 'after'")
    for ref in (first, second):
        assert run(client, ref, "y, x") == "('at the fork', 41)"
        assert client.get(ref)["metadata"] == {"try": "1"}
    assert server.command("rm", first, second).returncode == 0


def test_a_terminal_is_left_found_again_paused_and_ended(server, client):
    with terminal(server, "shell", "one") as (process, screen):
        typed(screen, b"cd /workspace && echo at $PWD\r", b"at /workspace\r\n")
        client.pause("one")
        read_until(screen, lambda data: b"type to wake it" in data)
        typed(screen, b"echo still $((40 + 2))\r", b"still 42\r\n")
        os.write(screen, LEAVE)
        said = read_until(screen, lambda data: b"attaches again" in data)
        assert process.wait(PATIENCE_S) == 0
    pid = said.split(b"--pid ")[1].split(b"`")[0].decode()
    with terminal(server, "shell", "one", "--pid", pid) as (process, screen):
        typed(screen, b"pwd\r", b"/workspace\r\n")
        os.write(screen, b"exit 5\r")
        assert process.wait(PATIENCE_S) == 5


@contextlib.contextmanager
def terminal(server, *arguments: str):
    """A command on a terminal of its own, and our end of it."""
    ours, theirs = pty.openpty()
    try:
        with running(server, *arguments, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            read_until(ours, lambda data: PROMPT in data)
            yield process, ours
    finally:
        os.close(theirs)
        os.close(ours)


def typed(screen: int, keys: bytes, answer: bytes) -> None:
    """Type; wait for the answer and for the next prompt."""
    os.write(screen, keys)
    read_until(screen, lambda data: PROMPT in data.partition(answer)[2])


def read_until(source: int, complete) -> bytes:
    """What comes until it is complete."""
    data = b""
    while not complete(data):
        assert select.select([source], [], [], PATIENCE_S)[0], data
        piece = os.read(source, 65536)
        assert piece, data
        data += piece
    return data


def test_a_session_may_be_larger_than_its_template_and_stays_so(server, client):
    made = server.command("create", "--name", "large", "--memory", "3G", "--cpus", "0.5")
    assert made.returncode == 0, made.stderr
    assert client.get("large")["limits"] | {"pids_max": 0} == {
        "cpus": 0.5,
        "memory_bytes": 3 << 30,
        "disk_bytes": 1 << 30,
        "pids_max": 0,
    }
    seen = "import os; os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')"
    plain, large = (int(run(client, name, seen)) for name in ("one", "large"))
    assert large - plain == 2 << 30
    client.pause("large")
    assert int(run(client, "large", seen)) == large
    refused = server.command("create", "--disk", "2G")
    assert (refused.returncode, refused.stdout) == (6, b"")
    assert b"leave it out" in refused.stderr
    client.delete("large")
