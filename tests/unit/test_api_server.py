"""The server as a process: who owns a home, how it stops, and what clients that leave do to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time

import httpx
import pytest
from forked_server import ServerProcess

from torpor.apps.api.ownership import Stopped, owned, running, start_ticks, stop
from torpor.apps.client import Client
from torpor.apps.config import Config
from torpor.domain.errors import Conflict, InvalidArgument, Unauthenticated, Unavailable

KEY = "a-key-of-more-than-20-characters"


@pytest.fixture
def config(tmp_path):
    return Config(home=tmp_path / "home", api_url="http://127.0.0.1:7780")


@pytest.fixture
def server(config):
    process = ServerProcess(config.home)
    yield process
    process.kill()
    process.end()


def test_a_server_answers_says_where_it_is_and_stops_when_asked(config, server):
    record = running(config)
    assert (record.pid, record.url) == (server.pid, server.said["url"])
    with Client.of(Config.read({}, home=str(config.home))) as client:
        assert client.health()["status"] == "ok"
        assert list(client.sessions()) == []
    assert stop(config) == (Stopped.STOPPED, server.pid)
    assert server.end() == b"closed\n"
    assert server.exit_code == 0
    assert not config.server_file.exists()
    assert stop(config) == (Stopped.ABSENT, None)


def test_a_second_server_on_one_home_is_told_of_the_first(config, server):
    second = ServerProcess(config.home)
    second.end()
    assert (second.said["code"], second.said["details"]["reason"]) == ("conflict", "home_in_use")
    assert second.said["details"]["pid"] == server.pid
    assert server.said["url"] in second.said["message"]
    assert httpx.get(f"{server.said['url']}/v1/health").status_code == 200


def test_a_killed_server_leaves_a_home_that_the_next_one_takes_over(config, server):
    server.kill()
    server.end()
    assert running(config) is None
    assert config.server_file.exists()
    port = httpx.URL(server.said["url"]).port
    successor = ServerProcess(config.home, port=port)
    assert successor.said == {"url": server.said["url"]}
    successor.send_signal(signal.SIGINT)
    assert successor.end() == b"closed\n"


def test_stopping_a_server_that_died_says_so_and_cleans_up(config, server):
    server.kill()
    server.end()
    assert stop(config) == (Stopped.DEAD, server.pid)
    assert not config.server_file.exists()


def test_a_process_that_only_has_the_pid_of_the_server_is_not_stopped(config):
    config.home.mkdir()
    bystander = subprocess.Popen(["sleep", "600"])
    record = {"pid": bystander.pid, "start_ticks": start_ticks(bystander.pid) - 1, "url": "http://x", "started_at": ""}
    config.server_file.write_text(json.dumps(record))
    try:
        assert stop(config) == (Stopped.DEAD, bystander.pid)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_port_that_is_taken_is_named(config, server):
    port = httpx.URL(server.said["url"]).port
    second = ServerProcess(config.home.parent / "other", port=port)
    second.end()
    assert (second.said["code"], second.said["details"]) == ("conflict", {"reason": "port_in_use", "port": port})


def test_an_open_address_is_refused_on_a_first_start_and_taken_once_the_key_is_known(config):
    first = ServerProcess(config.home, host="0.0.0.0")
    first.end()
    assert (first.said["code"], first.said["details"]) == ("invalid_argument", {"field": "host"})
    second = ServerProcess(config.home, host="0.0.0.0")
    assert second.said["url"].startswith("http://127.0.0.1:")
    assert stop(config)[0] is Stopped.STOPPED
    second.end()


def test_a_home_has_one_owner_at_a_time(config):
    with owned(config):
        assert config.home.stat().st_mode & 0o777 == 0o700
        with pytest.raises(Conflict), owned(config):
            pass
    with owned(config):
        pass


def test_a_home_that_cannot_be_written_is_a_wrong_value(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="TORPOR_HOME"), owned(Config(tmp_path / "file", "http://localhost")):
        pass


def test_a_burst_in_flight_when_the_server_stops_is_told_so(config, server):
    def terminate(stream, piece):
        assert (stream, piece) == ("stdout", b"started\n")
        server.send_signal(signal.SIGTERM)

    with Client.of(Config.read({}, home=str(config.home))) as client:
        client.create(name="one")
        with pytest.raises(Unavailable, match="server is stopping"):
            client.execute("one", ["sh", "-c", "echo started; exec sleep 600"], on_piece=terminate)
    assert server.end() == b"closed\n"


# ---- clients that leave ---------------------------------------------------------------------------------------------


def test_a_client_that_leaves_a_stream_breaks_neither_server_nor_session(served):
    host, port = httpx.URL(served.url).host, httpx.URL(served.url).port
    headers = {"authorization": f"Bearer {KEY}"}
    httpx.post(f"{served.url}/v1/sessions", json={"name": "one"}, headers=headers)
    # far more than the sockets and the outlet hold, so that the burst can only end if it is let go
    body = json.dumps({"argv": ["head", "-c", "50000000", "/dev/zero"]}).encode()
    request = (
        f"POST /v1/sessions/one/exec?stream=true HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, port)) as connection:
        connection.sendall(request.encode() + body)
        assert connection.recv(64).startswith(b"HTTP/1.1 200")
    wait_until(lambda: "exec:0" in served.backend.finished)
    said = httpx.post(f"{served.url}/v1/sessions/one/code", json={"source": "1 + 1"}, headers=headers).json()
    assert said["result"] == {"text/plain": "2"}


def test_a_client_that_leaves_a_download_ends_the_read(served):
    headers = {"authorization": f"Bearer {KEY}"}
    httpx.post(f"{served.url}/v1/sessions", json={"name": "one"}, headers=headers)
    with httpx.stream("GET", f"{served.url}/v1/sessions/one/files?path=/endless", headers=headers) as answer:
        assert next(answer.iter_bytes())
    wait_until(lambda: served.backend.abandoned_reads == 1)


def test_an_upload_that_breaks_off_leaves_the_old_file(served):
    host, port = httpx.URL(served.url).host, httpx.URL(served.url).port
    with Client(served.url, KEY) as client:
        session = client.create()["id"]
        client.write_file(session, "/data", [b"old"])
        request = (
            f"PUT /v1/sessions/{session}/files?path=/data HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
            "content-length: 1000\r\n\r\nhalf"
        )
        with socket.create_connection((host, port)) as connection:
            connection.sendall(request.encode())
        wait_until(lambda: served.backend.broken_writes == 1)
        with client.reading(session, "/data") as (pieces, woken):
            assert (b"".join(pieces), woken) == (b"old", False)


# ---- the client -----------------------------------------------------------------------------------------------------


def test_the_client_raises_what_the_server_means(served):
    with Client(served.url, KEY) as client:
        for code, kind in (("conflict", Conflict), ("unavailable", Unavailable)):
            with pytest.raises(kind, match="cannot do it") as raised:
                client.get(f"raise-{code}")
            assert raised.value.details["why"] == "asked for"
    with Client(served.url, KEY + "x") as stranger, pytest.raises(Unauthenticated):
        list(stranger.sessions())


def test_the_client_takes_streams_byte_for_byte(served):
    pieces = []
    data = "prefix é ".encode() + bytes(range(256)) * 2000
    with Client(served.url, KEY) as client:
        session = client.create()["id"]
        outcome = client.execute(
            session, ["cat"], stdin=data, on_piece=lambda stream, piece: pieces.append((stream, piece))
        )
    assert outcome["exit_code"] == 0
    assert {stream for stream, _ in pieces} == {"stdout"}
    assert b"".join(piece for _, piece in pieces) == data


def test_a_large_file_goes_both_ways(served):
    data = os.urandom(1 << 20) * 20
    with Client(served.url, KEY) as client:
        session = client.create()["id"]
        sliced = (data[start : start + 100_000] for start in range(0, len(data), 100_000))
        assert client.write_file(session, "/big", sliced)["size_bytes"] == len(data)
        with client.reading(session, "/big") as (pieces, _):
            assert b"".join(pieces) == data


def test_a_request_that_is_too_large_is_not_sent(served):
    with Client(served.url, KEY) as client:
        session = client.create()["id"]
        with pytest.raises(InvalidArgument, match="torpor cp"):
            client.code(session, "x" * (64 << 20), on_piece=lambda *_: None)


def test_a_server_that_is_not_there_says_how_to_start_it():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with Client(url, KEY) as client, pytest.raises(Unavailable, match="torpor up --detach"):
            client.health()


def wait_until(holds, *, deadline_s: float = 20.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end_s, "it does not become so"
        threading.Event().wait(0.01)
