"""A two-way connection into a session: a terminal or a port. What both clients need of it, and the one that waits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from torpor.apps.sdk import answers
from torpor.apps.sdk.access import CONNECT_TIMEOUT_S, Access
from torpor.domain.errors import TorporError, Unavailable

JSON = dict[str, Any]
FAILURES = (InvalidHandshake, OSError)


def address(access: Access, path: str, query: Mapping[str, Any] | None = None) -> str:
    """Where ``path``, below ``/v1/sessions/``, is connected to."""
    base = access.url.replace("http", "ws", 1)
    return f"{base}/v1/sessions/{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")


def options(access: Access) -> dict[str, Any]:
    """Of every connection."""
    return {
        "additional_headers": access.headers(),
        "open_timeout": CONNECT_TIMEOUT_S,
        "compression": None,
        "max_size": None,
        "proxy": None,  # as for HTTP: a proxy must not see this machine's traffic
    }


def refusal(access: Access, error: Exception) -> TorporError:
    """What a connection that could not be made means."""
    if isinstance(error, InvalidStatus):
        try:
            answers.json_of(access.url, error.response.status_code, bytes(error.response.body or b""))
        except TorporError as said:
            return said
    if isinstance(error, InvalidHandshake):
        return answers.broken(access.url, error)
    return answers.unreachable(access.url, error, home=access.home)


def heard(message: str | bytes) -> bytes | JSON:
    """A message: bytes, or JSON. Raises: the error that it tells of."""
    if isinstance(message, bytes):
        return message
    said: JSON = json.loads(message)
    if "event" not in said and "error" in said:
        raise answers.error_of(said["error"])
    return said


def written(said: bytes | JSON) -> str | bytes:
    """As a message."""
    return json.dumps(said) if isinstance(said, dict) else said


def lost(url: str, error: Exception) -> Unavailable:
    """What the end of a connection that the server did not close means."""
    return Unavailable(f"the connection to {url} broke: {error}; connect again", url=url)


class Socket:
    """Binary messages as bytes, texts as JSON. Sending and receiving may go on in two threads."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    @classmethod
    @contextmanager
    def open(cls, access: Access, path: str, query: Mapping[str, Any] | None = None) -> Iterator[Self]:
        """``path``: below ``/v1/sessions/``. Raises: what the server answers instead; Unavailable."""
        try:
            connection = connect(address(access, path, query), **options(access))
        except FAILURES as error:
            raise refusal(access, error) from error
        with connection:
            yield cls(connection, access.url)

    def send(self, said: bytes | JSON) -> None:
        """Raises: Unavailable if the connection is gone."""
        try:
            self._connection.send(written(said))
        except ConnectionClosed as error:
            raise lost(self._url, error) from error

    def close(self) -> None:
        """End it; whoever receives sees its end. Idempotent."""
        self._connection.close()

    def __iter__(self) -> Iterator[bytes | JSON]:
        """What comes, until the server closes. Raises: the error that it tells of; Unavailable for a broken one."""
        try:
            for message in self._connection:
                yield heard(message)
        except ConnectionClosed as error:
            raise lost(self._url, error) from error
