"""A two-way connection into a session: a terminal or a port. For the command line; synchronous."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from torpor.apps.sdk import answers
from torpor.apps.sdk.access import CONNECT_TIMEOUT_S, Access
from torpor.domain.errors import Unavailable

JSON = dict[str, Any]


class Socket:
    """Binary messages as bytes, texts as JSON. Sending and receiving may go on in two threads."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    @classmethod
    @contextmanager
    def open(cls, access: Access, path: str, query: dict[str, Any] | None = None) -> Iterator[Self]:
        """``path``: below ``/v1/sessions/``. Raises: what the server answers instead; Unavailable."""
        base = access.url.replace("http", "ws", 1)
        asked = f"{base}/v1/sessions/{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")
        try:
            connection = connect(
                asked,
                additional_headers=access.headers(),
                open_timeout=CONNECT_TIMEOUT_S,
                compression=None,
                max_size=None,
                proxy=None,  # as for HTTP: a proxy must not see this machine's traffic
            )
        except InvalidStatus as error:
            answers.json_of(access.url, error.response.status_code, bytes(error.response.body or b""))
            raise answers.broken(access.url, error) from error
        except InvalidHandshake as error:
            raise answers.broken(access.url, error) from error
        except OSError as error:
            raise answers.unreachable(access.url, error, home=access.home) from error
        with connection:
            yield cls(connection, access.url)

    def send(self, said: bytes | JSON) -> None:
        """Raises: Unavailable if the connection is gone."""
        try:
            self._connection.send(json.dumps(said) if isinstance(said, dict) else said)
        except ConnectionClosed as error:
            raise answers.broken(self._url, error) from error

    def close(self) -> None:
        """End it; whoever receives sees its end. Idempotent."""
        self._connection.close()

    def __iter__(self) -> Iterator[bytes | JSON]:
        """What comes, until the server closes. Raises: the error that it tells of; Unavailable for a broken one."""
        try:
            for message in self._connection:
                if isinstance(message, bytes):
                    yield message
                    continue
                said = json.loads(message)
                if "event" not in said and "error" in said:
                    raise answers.error_of(said["error"])
                yield said
        except ConnectionClosed as error:
            raise Unavailable(f"the connection to {self._url} broke: {error}; connect again", url=self._url) from error
