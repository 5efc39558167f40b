"""TCP connections to ports in here, carried over the channel: no network of the host's is needed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from torpor_guest.bursts import Burst
from torpor_guest.settings import Refused
from torpor_wire import PAYLOAD_BYTES_MAX, DataChannel, integer, text

CONNECT_LIMIT_S = 10.0


def forward(burst: Burst) -> None:
    """The operation ``forward``; ends when both directions have. Raises: Refused, BadMessage."""
    host, port = text(burst.fields, "host"), integer(burst.fields, "port")
    if not 1 <= port <= 65535:
        raise Refused("invalid_argument", f"cannot forward to port {port}: give 1 to 65535", field="port")
    connection = _connect(host, port)
    with connection:
        burst.stream.on_gone(lambda: _shut(connection, socket.SHUT_RDWR))
        burst.stream.event({"state": "open"})
        sender = threading.Thread(target=_send, args=(burst, connection), name=f"forward-{burst.id}", daemon=True)
        sender.start()
        _receive(burst, connection)
        burst.stream.event({"state": "ended"})
        sender.join()
        if burst.stream.gone:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end


def _connect(host: str, port: int) -> socket.socket:
    try:
        connection = socket.create_connection((host, port), CONNECT_LIMIT_S)
    except (ConnectionRefusedError, TimeoutError, socket.gaierror) as error:
        why = f"nothing answers at {host}:{port} in the session ({error}); start the server first"
        raise Refused("not_found", f"cannot forward: {why}", field="port", reason="refused") from error
    except OSError as error:
        raise Refused("not_found", f"cannot forward to {host}:{port}: {error}", field="port") from error
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _receive(burst: Burst, connection: socket.socket) -> None:
    """From the port to the host until it sends no more. Raises: Refused (guest_error)."""
    while not burst.stream.gone:
        try:
            data = connection.recv(PAYLOAD_BYTES_MAX)
        except OSError as error:
            burst.body.fail(Refused("guest_error", "the connection was reset"))
            raise Refused(
                "guest_error", f"cannot go on with the forward: the port's side has dropped it: {error}"
            ) from error
        if not data:
            return
        burst.stream.put(DataChannel.BODY, data)


def _send(burst: Burst, connection: socket.socket) -> None:
    """From the host to the port. A caller who has gone drops the connection; one that ends its side half-closes it."""
    try:
        for piece in burst.body:
            connection.sendall(piece)
    except Refused:
        _shut(connection, socket.SHUT_RDWR)
    except OSError:
        return  # the receiving side sees the same end, and tells
    else:
        _shut(connection, socket.SHUT_WR)


def _shut(connection: socket.socket, how: int) -> None:
    with suppress(OSError):
        connection.shutdown(how)
