"""The waiting client's HTTP, against servers that say what the test wants, over real sockets."""

import socket
import threading
from contextlib import contextmanager

import pytest

from torpor.apps.sdk.connections import Broken, Connections, Unreached
from torpor.domain.errors import InvalidArgument

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@contextmanager
def serving(*conversations):
    """A server that holds one conversation with each connection: functions of the accepted socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run():
            for converse in conversations:
                accepted, _ = listener.accept()
                with accepted:
                    converse(accepted)

        thread = threading.Thread(target=run)
        thread.start()
        connections = Connections(f"http://127.0.0.1:{listener.getsockname()[1]}/base", {"x-key": "k"})
        yield connections
        connections.close()
        thread.join(30)
        assert not thread.is_alive()


def request_of(accepted):
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        data += accepted.recv(65536)
    return data


def asked(connections, body=None, method="GET"):
    with connections.request(method, "/it?a=b", {"y": "z"}, body) as answer:
        return answer.status, answer.read()


def test_a_connection_is_kept_for_the_next_request_and_one_that_has_ended_is_not_used():
    requests = []

    def twice(accepted):
        for _ in range(2):
            requests.append(request_of(accepted))
            accepted.sendall(OK)

    def once(accepted):
        requests.append(request_of(accepted))
        accepted.sendall(OK)

    ended = threading.Event()

    def twice_then_end(accepted):
        twice(accepted)
        accepted.shutdown(socket.SHUT_RDWR)
        ended.set()

    with serving(twice_then_end, once) as connections:
        assert asked(connections) == (200, b"ok")
        assert asked(connections) == (200, b"ok")
        assert ended.wait(30)
        assert asked(connections) == (200, b"ok")
    assert len(requests) == 3
    assert requests[0].startswith(b"GET /base/it?a=b HTTP/1.1\r\n")
    assert b"x-key: k\r\n" in requests[0]
    assert b"y: z\r\n" in requests[0]


def test_output_comes_before_the_answer_is_whole():
    heard = threading.Event()

    def drip(accepted):
        request_of(accepted)
        accepted.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        assert heard.wait(30)
        accepted.sendall(b"6\r\nsecond\r\n0\r\n\r\n")

    with serving(drip) as connections, connections.request("GET", "/", {}, None) as answer:
        pieces = answer.pieces()
        assert next(pieces) == b"first"
        heard.set()
        assert b"".join(pieces) == b"second"


def test_a_body_goes_out_in_chunks_of_any_size():
    large, received = bytes(range(256)) * 20_000, bytearray()

    def take(accepted):
        while not received.endswith(b"0\r\n\r\n"):
            received.extend(accepted.recv(1 << 20))
        accepted.sendall(OK)

    with serving(take) as connections:
        assert asked(connections, iter((b"one", b"", large)), "PUT") == (200, b"ok")
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert body == b"3\r\none\r\n%x\r\n" % len(large) + large + b"\r\n0\r\n\r\n"


def test_a_server_that_answers_in_the_middle_of_a_body_is_heard():
    def refuse(accepted):
        request_of(accepted)
        accepted.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\nconnection: close\r\n\r\ngone")
        accepted.shutdown(socket.SHUT_WR)
        while accepted.recv(1 << 20):
            pass

    with serving(refuse) as connections:
        assert asked(connections, (bytes(100_000) for _ in range(20)), "PUT") == (404, b"gone")


def test_an_error_of_the_body_or_of_the_caller_stays_what_it_is():
    def hear(accepted):
        while accepted.recv(65536):
            pass

    def answer(accepted):
        request_of(accepted)
        accepted.sendall(OK)

    def body():
        yield b"x"
        raise OSError("the disk")

    with serving(hear, answer) as connections:
        with pytest.raises(OSError, match="the disk"):
            asked(connections, body(), "PUT")
        with pytest.raises(BrokenPipeError, match="of the caller"), connections.request("GET", "/", {}, None):
            raise BrokenPipeError("of the caller")


def test_what_breaks_and_what_was_never_there_are_told_apart():
    def cut(accepted):
        request_of(accepted)
        accepted.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfi")

    def nonsense(accepted):
        request_of(accepted)
        accepted.sendall(b"220 smtp.example\r\n")

    with serving(cut, nonsense) as connections:
        with pytest.raises(Broken):
            asked(connections)
        with pytest.raises(Broken):
            asked(connections)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreached):
        asked(Connections(f"http://127.0.0.1:{port}", {}))
    with pytest.raises(InvalidArgument, match="HOST"):
        Connections("ftp://here", {})
