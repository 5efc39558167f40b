"""Processes, terminals, ports, logs and changes through both clients, against a guest that is this machine."""

from __future__ import annotations

import socket
import threading
from contextlib import aclosing

import pytest

import torpor
from torpor.apps.sdk import FileChange, ProcessExited, ProcessOutput
from torpor.domain.errors import Conflict, NotFound

KEY = "a-key-of-more-than-20-characters"
READER = ["sh", "-c", "stty -echo; echo ready; read line; echo got $line; exit 7"]


@pytest.fixture
def session(served):
    with torpor.Client(served.url, KEY) as client:
        yield client.session("one")


@pytest.fixture
def shouting():
    """A server on this machine that answers in capitals."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(4096):
                    connection.sendall(data.upper())

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def test_a_process_is_started_fed_watched_and_listed(session):
    process = session.start(READER, terminal=(91, 33), env={"A": "b"}, user="root")
    assert (process.info.terminal, process.info.running, process.info.argv) == (True, True, tuple(READER))
    events = process.attach()
    assert next(events) == ProcessOutput(0, "stdout", b"ready\r\n")
    assert process.send_input("this\n") == 5
    *shown, last = events
    assert b"".join(one.data for one in shown) == b"got this\r\n"
    assert last == ProcessExited(17, 7)
    assert process.wait() == 7
    assert [(one.pid, one.info.exit_code) for one in session.processes()] == [(process.pid, 7)]


def test_a_process_is_signalled_and_its_terminal_resized(session, served):
    process = session.start(["sleep", "600"], terminal=(80, 24))
    process.resize(50, 20)
    assert (served.backend.host.size.columns, served.backend.host.size.rows) == (50, 20)
    process.signal(9)
    assert process.wait() == -9


def test_attaching_again_after_a_pause_goes_on_where_it_was(session, served):
    process = session.start(READER)
    events = process.attach()
    first = next(events)
    served.backend.host.pause()
    with pytest.raises(Conflict):
        next(events)
    process.send_input("on\n")
    again = list(process.attach(from_sequence=first.sequence + len(first.data)))
    assert (b"got on" in again[0].data, again[-1].exit_code) == (True, 7)


def test_a_terminal_is_typed_into_and_says_where_it_stands(session):
    with session.terminal(argv=READER, columns=91, rows=33) as terminal:
        shown = iter(terminal)
        assert next(shown) == b"ready\r\n"
        assert terminal.state.sequence == 7
        terminal.resize(50, 20)
        terminal.type("x\n")
        assert b"".join(shown) == b"got x\r\n"
        assert terminal.state.exit_code == 7


def test_a_port_is_spoken_to(session, shouting):
    with session.port(shouting) as port:
        port.send(b"hello")
        assert port.receive() == b"HELLO"
        port.close_write()
        assert (port.receive(), port.receive()) == (b"", b"")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with session.port(free.getsockname()[1]) as port, pytest.raises(NotFound):
            port.receive()


def test_logs_and_changes_are_values(session):
    first, second = session.logs()
    assert (first.source, first.text, second.data, second.lost_bytes) == ("agent", "started\n", b"\xff\n", 7)
    assert list(session.files.watch("/data", recursive=True)) == [
        FileChange("created", "/data/new", 0),
        FileChange("written", "/data/new", 1),
    ]


async def test_the_awaited_client_has_all_of_it(served, shouting):
    async with torpor.AsyncClient(served.url, KEY) as client:
        session = await client.session("one")
        process = await session.start(READER, terminal=(80, 24))
        async with aclosing(process.attach()) as events:
            assert (await anext(events)).data == b"ready\r\n"
            assert await process.send_input(b"it\n") == 3
            assert [one async for one in events][-1].exit_code == 7
        assert await process.wait() == 7
        assert [one.pid for one in await session.processes()] == [process.pid]
        async with session.terminal(argv=READER) as terminal:
            await terminal.resize(50, 20)
            await terminal.type("y\n")
            assert b"".join([one async for one in terminal]).endswith(b"got y\r\n")
            assert terminal.state.exit_code == 7
        async with session.port(shouting) as port:
            await port.send(b"abc")
            assert await port.receive() == b"ABC"
            await port.close_write()
            assert await port.receive() == b""
        assert [one.text async for one in session.logs()][:1] == ["started\n"]
        assert [one.change async for one in session.files.watch("/data")] == ["created", "written"]
        with pytest.raises(NotFound):
            async with client_port(session) as port:
                await port.receive()


def client_port(session):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return session.port(free.getsockname()[1])
