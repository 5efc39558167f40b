"""What is carried into a session and out of it: terminals, ports, logs, folders, and bursts over sockets."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading

import pytest
from websockets.sync.client import connect

import torpor
from torpor.apps.api.folders import file_json
from torpor.apps.sdk.access import Access
from torpor.apps.sdk.frames import FrameDecoder, Kind
from torpor.apps.sdk.sockets import Socket
from torpor.domain.errors import Conflict, NotFound, Unauthenticated
from torpor.ports.guest import FileInfo, FileKind

KEY = "a-key-of-more-than-20-characters"


@pytest.fixture
def client(served):
    with torpor.Client(served.url, KEY) as one:
        one.session("one")
        yield one


@pytest.fixture
def access(client):
    return client._transport._access


@pytest.fixture
def echo():
    """A server on this machine that answers in capitals, and ends when its peer has sent all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(4096):
                    connection.sendall(data.upper())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]


def ask(far: Socket, said: dict) -> list[dict]:
    """Send one message of a conversation about bursts; what comes until the burst's end."""
    far.send(said)
    heard = []
    for message in far:
        heard.append(message)
        if message["event"] != "output":
            break
    return heard


def test_bursts_go_over_one_socket_one_after_the_other(access):
    with Socket.open(access, "one/bursts") as far:
        output, result = ask(far, {"kind": "code", "source": "print('hi'); 41 + 1"})
        assert (output, result["result"]) == (
            {"event": "output", "stream": "stdout", "text": "hi\n"},
            {"text/plain": "42"},
        )
        assert ask(far, {"kind": "shell", "command": "exit 3"})[-1]["exit_code"] == 3
        assert ask(far, {"kind": "exec", "argv": ["cat"], "stdin_base64": "aGk="})[0]["text"] == "hi"
        assert ask(far, {"kind": "code"})[-1]["details"]["field"] == "code.source"
        assert ask(far, {"kind": "nonsense"})[-1]["code"] == "invalid_argument"


def test_a_burst_on_a_socket_is_interrupted_there_and_runs_alone(access, served):
    with Socket.open(access, "one/bursts") as far:
        far.send({"kind": "code", "source": "hang"})
        while not served.backend.hangs.is_set():
            threading.Event().wait(0.01)
        assert ask(far, {"kind": "code", "source": "1"})[-1]["details"]["reason"] == "burst_running"
        assert ask(far, {"kind": "interrupt"})[-1]["error"]["name"] == "KeyboardInterrupt"


def test_a_socket_gives_frames_if_asked(access):
    decoder, kinds = FrameDecoder(), []
    with Socket.open(access, "one/bursts", {"frames": "true"}) as far:
        far.send({"kind": "code", "source": r"emit [('stdout', b'\xff')]"})
        for message in far:
            kinds += [frame.kind for frame in decoder.feed(message)]
            if Kind.RESULT in kinds:
                break
    assert [kind for kind in kinds if kind is not Kind.KEEP_ALIVE] == [Kind.STDOUT, Kind.RESULT]


def test_a_socket_wants_a_key_and_takes_it_as_a_protocol_too(access):
    with pytest.raises(Unauthenticated), Socket.open(Access(access.url, "x"), "one/bursts"):
        pass
    url = access.url.replace("http", "ws") + "/v1/sessions/one/bursts"
    with connect(url, subprotocols=["torpor.v1", f"torpor.key.{KEY}"], proxy=None) as browser:
        assert browser.subprotocol == "torpor.v1"
        browser.send(json.dumps({"kind": "code", "source": "1"}))
        heard = json.loads(browser.recv())
        assert heard["event"] == "result"


def test_a_port_is_carried_both_ways_and_half_closed(access, echo):
    with Socket.open(access, f"one/ports/{echo}") as far:
        messages = iter(far)
        far.send(b"hello")
        assert next(messages) == b"HELLO"
        far.send(b"")
        assert next(messages) == b""


def test_a_port_where_nobody_listens_is_not_found(access):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with Socket.open(access, f"one/ports/{free.getsockname()[1]}") as far, pytest.raises(NotFound):
            list(far)


def test_a_terminal_is_attached_to_again_where_it_was(access, served):
    query = {"argv": ["sh", "-c", "stty size; read line; echo got $line; exit 7"], "columns": 91, "rows": 33}
    with Socket.open(access, "one/terminal", query) as far:
        messages = iter(far)
        began = next(messages)
        assert (began["process"]["terminal"], began["resumed"]) == (True, None)
        shown = next(messages)
        assert shown == b"33 91\r\n"
        far.send({"columns": 50, "rows": 20})
        served.backend.host.pause()
        with pytest.raises(Conflict):
            next(messages)
    again = {"pid": began["process"]["pid"], "from_sequence": len(shown), "columns": 50, "rows": 20}
    with Socket.open(access, "one/terminal", again) as far:
        far.send(b"this\n")
        *heard, last = list(far)
    assert b"".join(one for one in heard if isinstance(one, bytes)) == b"this\r\ngot this\r\n"
    assert last["exit_code"] == 7


def test_folders_are_listed_made_moved_and_removed(client, tmp_path):
    files = client.attach("one").files
    folder = f"{tmp_path}/a/b"
    assert (files.make_directory(folder), files.make_directory(folder)) == (True, False)
    (tmp_path / "a/x").write_text("12345")
    found = {info.path.rpartition("/")[2]: info for info in files.list(f"{tmp_path}/a")}
    assert [(name, info.kind, info.size_bytes) for name, info in found.items() if name == "x"] == [("x", "file", 5)]
    assert found["b"].kind == "directory"
    files.move(f"{tmp_path}/a/x", f"{tmp_path}/a/y")
    assert files.stat(f"{tmp_path}/a/y").size_bytes == 5
    files.remove(f"{tmp_path}/a/y")
    with pytest.raises(NotFound):
        files.stat(f"{tmp_path}/a/y")


# ---- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("client")
def test_logs_are_shown_with_what_is_missing(torpor):
    said = torpor("logs", "one")
    lines = said.stdout.decode().splitlines()
    assert lines == ["2026-09-21T14:13:20.000Z  agent started", "2026-09-21T14:13:20.000Z  agent \ufffd"]
    assert b"7 B of agent are not kept any more" in said.stderr


@pytest.mark.usefixtures("client")
def test_a_port_is_offered_here(echo, environment):
    argv = [sys.executable, "-m", "torpor.apps.cli", "port", "one", str(echo), "--local", "0", "--json"]
    offering = subprocess.Popen(argv, env={**os.environ, **environment}, stdout=subprocess.PIPE)
    try:
        lines = [offering.stdout.readline() for _ in range(6)]
        with socket.create_connection(("127.0.0.1", json.loads(b"".join(lines))["port"])) as connection:
            connection.sendall(b"abc")
            connection.shutdown(socket.SHUT_WR)
            heard = b""
            while data := connection.recv(100):
                heard += data
        assert heard == b"ABC"
    finally:
        offering.send_signal(signal.SIGKILL)
        offering.wait()
        offering.stdout.close()


@pytest.mark.usefixtures("client")
def test_a_shell_is_typed_into_and_ends_with_its_exit_code(environment):
    near, far = pty.openpty()
    argv = [sys.executable, "-m", "torpor.apps.cli", "shell", "one"]
    shell = subprocess.Popen(argv, env={**os.environ, **environment}, stdin=far, stdout=far, stderr=far)
    os.close(far)
    os.write(near, b"echo $((40 + 2)); exit 5\n")
    heard = b""
    try:
        while select.select([near], [], [], 30)[0]:
            heard += os.read(near, 4096)
    except OSError:
        pass  # the far side was closed: it has ended
    os.close(near)
    assert shell.wait(30) == 5
    assert b"\r42\r\n" in heard


@pytest.mark.usefixtures("client")
def test_a_shell_wants_a_terminal(torpor):
    said = torpor("shell", "one")
    assert (said.returncode, b"torpor exec" in said.stderr) == (2, True)


@pytest.mark.parametrize(("date_s", "said"), [(1e12, "9999-12-31T23:59:59.000Z"), (-1e12, "0001-01-01T00:00:00.000Z")])
def test_a_file_of_a_date_that_no_calendar_has_is_still_listed(date_s, said):
    info = FileInfo("/x", FileKind.FILE, 1, 0o644, "root", "root", modified_at_s=date_s, target=None)
    assert file_json(info)["modified_at"] == said
