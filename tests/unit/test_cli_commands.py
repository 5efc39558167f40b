"""The command line against a server on a real socket; where it matters, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest


@pytest.fixture
def session(torpor):
    return torpor("create", "--name", "one", "--json")


def said(done: subprocess.CompletedProcess):
    assert done.stderr == b""
    return json.loads(done.stdout)


def test_a_session_is_created_listed_inspected_paused_resumed_and_removed(torpor):
    created = said(torpor("create", "--name", "one", "--metadata", "user=ann", "--env", "TZ=UTC", "--json"))
    assert created.keys() >= {"id", "name", "status"}
    assert (created["name"], created["status"], created["metadata"]) == ("one", "running", {"user": "ann"})
    plain = torpor("create")
    assert (plain.returncode, len(plain.stdout.strip()), plain.stderr) == (0, 20, b"")
    listed = said(torpor("ls", "--json"))
    assert [session["id"] for session in listed] == [plain.stdout.decode().strip(), created["id"]]
    paused = said(torpor("pause", "one", "--wait", "disk", "--json"))
    assert (paused["status"], paused["durability"]) == ("paused", "disk")
    inspected = said(torpor("inspect", created["id"], "--json"))
    wanted = ("id", "name", "status", "durability", "generation", "template", "persistence")
    assert [inspected[field] for field in wanted] == [created["id"], "one", "paused", "disk", 1, "data", "memory"]
    assert said(torpor("resume", "one", "--json"))["resumed"]["gap_s"] == 3600.0
    removed = torpor("rm", "one", plain.stdout.decode().strip())
    assert (removed.returncode, removed.stdout.decode().split()) == (0, ["one", plain.stdout.decode().strip()])
    assert said(torpor("ls", "--json")) == []


@pytest.mark.usefixtures("session")
def test_what_people_read_is_short_and_says_what_holds(torpor):
    assert torpor("pause", "one").stdout == b"one is paused, durable: disk; 1.2 MB new of 268 MB\n"
    heading, row = torpor("ls").stdout.decode().splitlines()
    assert heading.split() == ["ID", "NAME", "STATUS", "DURABILITY", "TEMPLATE", "GENERATION", "CREATED"]
    assert row.split()[1:6] == ["one", "paused", "disk", "data", "1"]
    lines = dict(line.split(maxsplit=1) for line in torpor("inspect", "one").stdout.decode().splitlines())
    assert lines["status"] == "paused (paused_durable)"
    assert "1.2 MB new of 268 MB" in lines["snapshot"]
    resumed = torpor("resume", "one")
    assert resumed.stdout == b"one is running, generation 2\n"
    assert b"one was paused for 1 h; resumed (local) in 120 ms" in resumed.stderr


@pytest.mark.usefixtures("session")
def test_code_prints_output_then_the_last_value(torpor):
    done = torpor("code", "one", "x = 41\nprint('hi')\nx + 1")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hi\n42\n", b"")
    assert torpor("code", "one", "-", stdin=b"x * 2").stdout == b"82\n"


@pytest.mark.usefixtures("session")
def test_code_that_raises_prints_its_traceback_and_exits_with_one(torpor):
    done = torpor("code", "one", "print('before')\n1 / 0")
    assert (done.returncode, done.stdout) == (1, b"before\n")
    assert done.stderr.decode().splitlines()[0] == "Traceback (most recent call last):"
    assert done.stderr.decode().splitlines()[-1] == "ZeroDivisionError: division by zero"
    as_json = torpor("code", "one", "1 / 0", "--json")
    assert (as_json.returncode, said(as_json)["error"]["name"]) == (1, "ZeroDivisionError")


@pytest.mark.usefixtures("session")
def test_a_burst_that_wakes_a_session_says_so_on_stderr(torpor):
    torpor("pause", "one")
    done = torpor("code", "one", "6 * 7")
    assert (done.returncode, done.stdout) == (0, b"42\n")
    assert done.stderr.decode().splitlines() == [
        "torpor: one was paused for 1 h; resumed (local) in 120 ms",
        "torpor: dropped: one open connection",
    ]
    torpor("pause", "one")
    assert said(torpor("sh", "one", "true", "--json"))["resumed"]["generation"] == 3


@pytest.mark.usefixtures("session")
def test_the_exit_code_of_a_command_is_ours(torpor):
    done = torpor("sh", "one", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert torpor("exec", "one", "--", "sh", "-c", "kill -9 $$").returncode == 137
    timed_out = torpor("sh", "one", "sleep 60", "--timeout", "0.1")
    assert (timed_out.returncode, timed_out.stderr) == (124, b"torpor: the time given ran out\n")


@pytest.mark.usefixtures("session")
def test_bytes_pass_a_process_untouched(torpor, process):
    data = bytes(range(256)) * 5000
    done = process("exec", "one", "--", "cat", stdin=data)
    assert (done.returncode, done.stdout == data, done.stderr) == (0, True, b"")
    assert torpor("exec", "one", "-n", "--", "wc", "-c", stdin=data).stdout.strip() == b"0"
    as_json = said(torpor("exec", "one", "--json", "--", "printf", r"\377"))
    assert (as_json["stdout"], as_json["stdout_base64"], as_json["exit_code"]) == ("�", "/w==", 0)


@pytest.mark.usefixtures("session")
def test_options_of_the_command_are_not_ours(torpor):
    assert torpor("exec", "one", "--env", "A=b c", "--", "sh", "-c", "echo $A --json").stdout == b"b c --json\n"
    done = torpor("exec", "one", "ls", "-la")
    assert (done.returncode, b"put `--` before the command" in done.stderr) == (2, True)


@pytest.mark.usefixtures("session")
def test_files_are_copied_both_ways_with_their_mode(torpor, tmp_path):
    (tmp_path / "there.bin").write_bytes(bytes(range(256)) * 3000)
    (tmp_path / "there.bin").chmod(0o640)
    up = torpor("cp", str(tmp_path / "there.bin"), "one:/data/")
    assert (up.returncode, up.stdout, up.stderr) == (0, b"one:/data/there.bin  768 kB\n", b"")
    (tmp_path / "back").mkdir()
    down = torpor("cp", "one:/data/there.bin", str(tmp_path / "back"))
    assert (down.returncode, down.stderr) == (0, b"")
    assert (tmp_path / "back/there.bin").read_bytes() == (tmp_path / "there.bin").read_bytes()
    assert torpor("cp", "one:/data/there.bin", "-").stdout == (tmp_path / "there.bin").read_bytes()
    assert said(torpor("cp", "-", "one:/x", "--json", stdin=b"abc"))["size_bytes"] == 3


@pytest.mark.usefixtures("session")
def test_a_copy_that_fails_leaves_what_was_there(torpor, tmp_path):
    (tmp_path / "kept").write_text("kept")
    done = torpor("cp", "one:/nothing", str(tmp_path / "kept"))
    assert (done.returncode, (tmp_path / "kept").read_text()) == (3, "kept")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["kept"]


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("arguments", "code", "remedy"),
    [
        (("cp", "one:/a", "two:/b"), 2, "exactly one side"),
        (("cp", "a", "b"), 2, "exactly one side"),
        (("cp", "/nowhere/file", "one:/a"), 3, "no such file here"),
        (("cp", "/tmp", "one:/a"), 2, "tar c /tmp"),
        (("cp", "one:", "x"), 2, "a path follows the colon"),
        (("cp", "one:/data/", "/tmp/x"), 2, "directory"),
        (("inspect", "nobody"), 3, "torpor ls"),
        (("inspect", "with/slash"), 3, "torpor ls"),
        (("create", "--template", "nonsense"), 3, "known: data"),
        (("create", "--name", "one"), 4, "exists"),
        (("create", "--metadata", "novalue"), 2, "NAME=VALUE"),
        (("create", "--persistence", "eternal"), 2, "--help"),
        (("pause", "one", "--wait", "object"), 6, "use --wait disk"),
        (("nonsense",), 2, "torpor --help"),
        (("code", "one"), 2, "torpor code --help"),
        (("code", "one", "emit ['unavailable']"), 5, "cannot go on"),
        (("code", "one", "emit ['bug']"), 6, "server's log"),
        (("engine", "test"), 3, "torpor engine install gvisor"),
        (("engine", "install", "qemu"), 3, "torpor engine install gvisor"),
    ],
)
def test_a_mistake_gets_its_exit_code_and_the_remedy_in_words_and_in_json(torpor, arguments, code, remedy):
    plain = torpor(*arguments)
    assert (plain.returncode, plain.stdout) == (code, b"")
    assert remedy in plain.stderr.decode()
    assert plain.stderr.startswith(b"torpor: ")
    as_json = torpor(*arguments, "--json")
    error = json.loads(as_json.stderr)
    assert (as_json.returncode, as_json.stdout) == (code, b"")
    assert error.keys() == {"code", "message", "details"}
    assert remedy in error["message"]


@pytest.mark.usefixtures("session")
def test_removing_goes_on_after_a_failure(torpor):
    done = torpor("rm", "nobody", "one", "--json")
    assert (done.returncode, [removed["name"] for removed in json.loads(done.stdout)]) == (3, ["one"])
    assert json.loads(done.stderr)["code"] == "not_found"


def test_without_a_server_the_remedy_is_to_start_it(torpor, tmp_path):
    done = torpor("ls", TORPOR_API_URL="http://127.0.0.1:9")
    assert (done.returncode, b"torpor up --detach" in done.stderr) == (5, True)
    keyless = torpor("ls", TORPOR_API_URL="", TORPOR_API_KEY="")
    assert (keyless.returncode, b"torpor up --detach" in keyless.stderr) == (6, True)
    down = torpor("down")
    assert (down.returncode, down.stdout) == (0, f"no server runs on {tmp_path / 'home'}\n".encode())


def test_a_server_that_cannot_start_says_why_also_when_detached(process, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "api.key").write_text("a-key-of-more-than-20-characters")
    (home / "api.key").chmod(0o644)
    for mode in ((), ("--detach",)):
        done = process("up", *mode, "--port", "0", "--json", TORPOR_API_KEY="")
        assert (done.returncode, json.loads(done.stderr)["details"]) == (2, {"field": "api_key"})
    assert stat.S_IMODE((home / "api.key").stat().st_mode) == 0o644


@pytest.mark.usefixtures("session")
def test_ctrl_c_interrupts_the_code(torpor, served, environment):
    with subprocess.Popen(
        [sys.executable, "-m", "torpor.apps.cli", "code", "one", "hang"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert wait_for(served.backend.hangs.is_set)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (130, b"Traceback\nKeyboardInterrupt\n")
    assert torpor("code", "one", "1").stdout == b"1\n"


@pytest.mark.usefixtures("session")
def test_a_bug_is_logged_once_and_not_told(torpor, served):
    done = torpor("code", "one", "emit ['bug']")
    assert (done.returncode, b"secret" in done.stderr) == (6, False)
    assert [(entry["event"], entry["log_level"]) for entry in served.logs] == [("a burst failed unexpectedly", "error")]


def test_templates_and_the_store(torpor, served):
    assert torpor("template", "list").stdout.decode().splitlines()[1].split()[:2] == ["data", "d" * 12]
    assert said(torpor("store", "check", "--json"))["clean"] is True
    served.backend.clean = False
    assert torpor("store", "check").returncode == 1


def wait_for(holds) -> bool:
    end_s = time.monotonic() + 20
    while not holds() and time.monotonic() < end_s:
        threading.Event().wait(0.01)
    return holds()
