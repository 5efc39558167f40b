"""Export, import, garbage, a rebuilt catalog and the shelf of templates: over HTTP and the command line."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys

import httpx
import pytest
import uvicorn
from fake_backend import FakeBackend
from server_thread import in_a_thread

from torpor.adapters.clock.system import SystemClock
from torpor.apps.api.app import create_app
from torpor.testing.node import FakeMachine, open_fake

KEY = "a-key-of-more-than-20-characters"
PASSPHRASE = "fünf zufällige Wörter"


async def serve(listener, started):
    machine = FakeMachine()
    async with open_fake(machine) as node:
        app = create_app(FakeBackend(node, machine), KEY, clock=SystemClock())
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=1))
        started.append(server)
        await server.serve(sockets=[listener])


@pytest.fixture(scope="module")
def url():
    """A whole node over fakes, on a socket."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        started: list[uvicorn.Server] = []
        with in_a_thread(lambda: serve(listener, started), started):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def ask(url):
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
        yield client


@pytest.fixture
def say(torpor, url):
    """The command line against the fake node."""

    def run(*arguments, **options):
        return torpor(*arguments, TORPOR_API_URL=url, **options)

    return run


@pytest.fixture
def paused(ask):
    """A session with a snapshot; its name."""
    ask.post("/v1/sessions", json={"name": "one", "get_or_create": True})
    ask.post("/v1/sessions/one/pause")
    return "one"


def test_a_session_is_exported_and_imported_as_another(say, ask, paused, tmp_path):
    file = tmp_path / "one.torpor"
    done = say("export", paused, str(tmp_path), "--json", TORPOR_PASSPHRASE=PASSPHRASE)
    assert json.loads(done.stdout) == {"path": str(file), "size_bytes": file.stat().st_size}
    (tmp_path / "pass").write_text(f"{PASSPHRASE}\nnot this line")
    imported = say("import", str(file), "--name", "two", "--passphrase-file", str(tmp_path / "pass"))
    assert imported.returncode == 0
    session = ask.get("/v1/sessions/two").json()
    assert (session["id"], session["status"], session["generation"]) == (imported.stdout.decode().strip(), "paused", 0)
    assert session["id"] != ask.get("/v1/sessions/one").json()["id"]
    assert ask.post("/v1/sessions/two/resume").json()["resumed"]["cause"] == "resumed"
    taken = say("import", str(file), "--name", "two", TORPOR_PASSPHRASE=PASSPHRASE)
    assert (taken.returncode, b"remove it with `torpor rm two`" in taken.stderr) == (4, True)


def test_what_cannot_be_exported_or_imported_says_why(say, ask, paused, tmp_path):
    file = tmp_path / "x.torpor"
    assert say("export", "nobody", str(file), TORPOR_PASSPHRASE=PASSPHRASE).returncode == 3
    short = say("export", paused, str(file), TORPOR_PASSPHRASE="short")
    assert (short.returncode, b"use at least" in short.stderr, file.exists()) == (2, True, False)
    ask.post("/v1/sessions", json={"name": "new", "get_or_create": True})
    without = say("export", paused, str(file))
    assert (without.returncode, b"TORPOR_PASSPHRASE" in without.stderr) == (2, True)
    lost = say("export", paused, str(file), "--passphrase-file", str(tmp_path / "none"))
    assert (lost.returncode, b"no file" in lost.stderr) == (3, True)
    assert say("export", paused, str(file), TORPOR_PASSPHRASE=PASSPHRASE).returncode == 0
    wrong = say("import", str(file), TORPOR_PASSPHRASE="not the one")
    assert (wrong.returncode, b"passphrase" in wrong.stderr) == (2, True)
    file.write_bytes(file.read_bytes()[:-10])
    cut = say("import", str(file), TORPOR_PASSPHRASE=PASSPHRASE)
    assert (cut.returncode, b"export it again" in cut.stderr) == (2, True)
    assert say("import", str(tmp_path / "none"), TORPOR_PASSPHRASE=PASSPHRASE).returncode == 3


def test_a_passphrase_is_sent_as_base64_and_a_body_may_not_be_anything(ask, paused):
    told = ask.get(f"/v1/sessions/{paused}/export", headers={"torpor-passphrase-base64": "%"}).json()
    assert (told["code"], told["details"]["field"]) == ("invalid_argument", "torpor-passphrase-base64")
    sealed = {"torpor-passphrase-base64": "bG9uZyBlbm91Z2g="}
    for body in (b"", b"x" * 1000):
        assert ask.post("/v1/sessions/import", content=body, headers=sealed).status_code == 422


def test_a_passphrase_is_asked_for_without_echo(url, paused, environment, tmp_path):
    near, far = pty.openpty()
    argv = [sys.executable, "-m", "torpor.apps.cli", "export", paused, str(tmp_path / "x.torpor")]
    asking = subprocess.Popen(
        argv,
        env={**os.environ, **environment, "TORPOR_API_URL": url},
        stdin=far,
        stdout=far,
        stderr=far,
        start_new_session=True,
    )
    os.close(far)
    heard = b""
    for prompt in (b"Passphrase: ", b"Again: "):
        while prompt not in heard:
            heard += os.read(near, 4096)
        os.write(near, PASSPHRASE.encode() + b"\n")
    assert asking.wait(60) == 0
    heard += os.read(near, 4096)
    os.close(near)
    assert PASSPHRASE.encode() not in heard
    assert (tmp_path / "x.torpor").stat().st_size > 0


def test_garbage_is_told_before_it_is_removed(say, ask, paused):
    for _ in range(3):
        ask.post(f"/v1/sessions/{paused}/resume")
        ask.post(f"/v1/sessions/{paused}/pause")
    told = json.loads(say("store", "gc", "--dry-run", "--grace", "0s", "--keep", "1", "--json").stdout)
    assert told["dry_run"] is True
    assert set(told["removed"]["reasons"]) <= {"shredded", "superseded", "unacknowledged", "unreferenced"}
    gone = say("store", "gc", "--grace", "0s", "--keep", "1")
    assert (gone.returncode, gone.stdout.startswith(f"removed {told['removed']['count']} ".encode())) == (0, True)
    left = json.loads(say("store", "gc", "--grace", "0s", "--keep", "1", "--json").stdout)["removed"]
    assert set(left["reasons"]) <= {"unreferenced"}  # packs whose last manifest went just before
    assert say("store", "gc", "--dry-run", "--grace", "0s", "--keep", "1").stdout == b"would remove 0 objects, 0 B\n"
    assert say("store", "gc", "--grace", "soon").returncode == 2
    assert ask.post("/v1/store/gc", json={"grace_s": -1}).json()["details"]["field"] == "grace_s"


def test_a_catalog_that_is_whole_stays_as_it_is(say, paused):
    told = json.loads(say("store", "rebuild-catalog", "--json").stdout)
    assert (told["sessions"], told["templates"], told["known_count"] >= 1) == ([], [], True)
    assert say("store", "rebuild-catalog").stdout.startswith(b"inserted 0 sessions and 0 templates; ")
    del paused


def test_a_template_is_looked_at_and_not_removed_while_sessions_need_it(ask, paused):
    found = ask.get("/v1/templates/data").json()
    assert (found["name"], found["newest"], found["sessions_count"] >= 1) == ("data", True, True)
    assert ask.get(f"/v1/templates/{found['digest']}").json() == found
    refused = ask.delete("/v1/templates/data")
    assert (refused.status_code, refused.json()["details"]["reason"]) == (409, "template_in_use")
    assert ask.delete("/v1/templates/none").status_code == 404
    del paused
