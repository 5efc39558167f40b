"""HTTP/1.1 of the client that waits: a few connections kept open, bodies in large pieces. Standard library only.

httpx reads 64 KiB at a time through three layers and took two thirds of a download's time, and as much processor time
for a small call as the server that answered it.
"""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from torpor.apps.sdk.access import CONNECT_TIMEOUT_S
from torpor.domain.errors import InvalidArgument

PIECE_BYTES = 256 * 1024
KEPT_MAX = 20
KEPT_S = 30.0  # below the server's own limit

Body = bytes | Iterable[bytes] | None


class Unreached(Exception):
    """No connection could be made; the request was not sent."""


class Broken(Exception):
    """A connection ended before its answer did."""


@contextmanager
def _breaking() -> Iterator[None]:
    """What goes wrong with the connection itself, and nothing of whoever uses it, becomes Broken."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise Broken(str(error) or type(error).__name__) from error


class Answer:
    """What a server said; its body is read once, by ``pieces`` or ``read``."""

    def __init__(self, said: http.client.HTTPResponse) -> None:
        self._said = said
        self.status = said.status

    @property
    def is_success(self) -> bool:
        """2xx."""
        return 200 <= self.status < 300

    def header(self, name: str) -> str | None:
        """One header's value."""
        return self._said.headers.get(name)

    def read(self) -> bytes:
        """The whole body. Raises: Broken."""
        with _breaking():
            return self._said.read()

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes, at most ``PIECE_BYTES`` at once. Raises: Broken."""
        # read1 gives what is there; of a body of known length it loses count (Python 3.11), and that one comes at once.
        read = self._said.read1 if self._said.chunked else self._said.read
        while True:
            with _breaking():
                piece = read(PIECE_BYTES)
            if not piece:
                return
            yield piece

    @property
    def is_over(self) -> bool:
        """The body was read to its end, and the connection is good for another request."""
        return self._said.isclosed() and not self._said.will_close


class Connections:
    """Requests to one address. May be used by several threads; each request has a connection to itself."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidArgument(f"cannot use {url!r} as a server's address: give http://HOST:PORT", field="url")
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {**headers, "accept-encoding": "identity"}
        self._lock = threading.Lock()
        self._idle: deque[tuple[float, http.client.HTTPConnection]] = deque()
        self._is_closed = False

    def close(self) -> None:
        """Close what is idle; what is in use closes at the end of its request. Idempotent."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, deque(), True
        for _, connection in idle:
            connection.close()

    @contextmanager
    def request(self, method: str, path: str, headers: Mapping[str, str], body: Body) -> Iterator[Answer]:
        """Send a request and open its answer. Raises: Unreached, Broken, also while the body is read."""
        connection = self._connection()
        answer = None
        try:
            answer = self._asked(connection, method, path, headers, body)
            yield answer
        finally:
            if answer is not None and answer.is_over:
                self._keep(connection)
            else:
                connection.close()

    def _asked(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body,
    ) -> Answer:
        length = {} if body is None else {"transfer-encoding": "chunked"}
        if isinstance(body, bytes):
            length = {"content-length": str(len(body))}
        with _breaking():
            connection.putrequest(method, self._prefix + path, skip_accept_encoding=True)
            for name, value in {**self._headers, **headers, **length}.items():
                connection.putheader(name, value)
            connection.endheaders(body if isinstance(body, bytes) else None)
        if body is not None and not isinstance(body, bytes):
            _send_chunks(connection.sock, body)
        with _breaking():
            return Answer(connection.getresponse())

    def _connection(self) -> http.client.HTTPConnection:
        """One that is kept and still open, else a new one. Raises: Unreached."""
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            if kept is None:
                return self._connected()
            since_s, connection = kept
            if time.monotonic() - since_s < KEPT_S and not _has_ended(connection):
                return connection
            connection.close()

    def _connected(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=CONNECT_TIMEOUT_S, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise Unreached(str(error)) from error
        assert isinstance(connection.sock, socket.socket)
        connection.sock.settimeout(None)  # a burst may be silent for hours
        return connection

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < KEPT_MAX:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()


def _send_chunks(connection: socket.socket, body: Iterable[bytes]) -> None:
    """A body in chunks. A server that takes no more of it closes, and its answer, which may be there, says why."""
    for piece in body:
        if piece and not _sent(connection, (b"%x\r\n" % len(piece), piece, b"\r\n")):
            return
    _sent(connection, (b"0\r\n\r\n",))


def _sent(connection: socket.socket, parts: tuple[bytes, ...]) -> bool:
    try:
        if isinstance(connection, ssl.SSLSocket):
            connection.sendall(b"".join(parts))
            return True
        rest = [memoryview(part) for part in parts]
        while rest:
            count = connection.sendmsg(rest)
            while rest and count >= len(rest[0]):
                count -= len(rest.pop(0))
            if rest:
                rest[0] = rest[0][count:]
    except (BrokenPipeError, ConnectionResetError):
        return False
    except OSError as error:
        raise Broken(str(error)) from error
    return True


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """The server has closed it meanwhile: nothing else can be there to read."""
    poller = select.poll()
    poller.register(connection.sock, select.POLLIN)
    return bool(poller.poll(0))
