"""What somebody who uses ``torpor port`` sees when the session's side of a connection ends."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest
from websockets.sync.server import serve

from torpor.apps.cli.inside import _serve
from torpor.apps.sdk.access import Access

ERROR = {"error": {"code": "guest", "message": "cannot forward: nothing answers", "details": {}}}


class Connected:
    """All that ``_serve`` asks of a client."""

    def __init__(self, access: Access) -> None:
        self.access = access


@pytest.mark.parametrize("asks_first", [True, False])
def test_a_connection_that_the_session_refuses_ends_here_too(asks_first):
    def refuse(far):
        if asks_first:
            far.recv()
        far.send(json.dumps(ERROR))

    near, served = socket.socketpair()
    with serve(refuse, "127.0.0.1", 0) as server, near, _running(server.serve_forever, server.shutdown):
        host = server.socket.getsockname()
        client = Connected(Access(f"http://{host[0]}:{host[1]}", "k", ""))
        with _running(lambda: _serve(client, "s", 80, served), lambda: None):
            if asks_first:
                near.sendall(b"GET / HTTP/1.1\r\n\r\n")
            near.settimeout(10)
            assert near.recv(1) == b""


@contextlib.contextmanager
def _running(work, end):
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        end()
        thread.join()
