"""How the client that waits talks HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from torpor.apps.sdk import answers, calls
from torpor.apps.sdk.access import CONNECT_TIMEOUT_S, Access
from torpor.apps.sdk.calls import BYTES, EVENTS
from torpor.apps.sdk.frames import MEDIA_TYPE

JSON = dict[str, Any]
PIECE_BYTES = 256 * 1024


class Transport:
    """Calls over one pool of connections. May be used by several threads. Answers are JSON; failures are our errors."""

    def __init__(self, access: Access) -> None:
        self.access = self._access = access
        # trust_env: a proxy from the environment must not see this machine's traffic, nor answer for our server.
        self._http = httpx.Client(
            base_url=access.url,
            headers=access.headers(),
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
            verify=access.trusted(),
        )

    def close(self) -> None:
        """Idempotent."""
        self._http.close()

    def json(self, call: calls.Call, data: Iterable[bytes] | None = None) -> JSON:
        """The answer. ``data``: the body, streamed, instead of the call's own."""
        with self._failures():
            said = self._http.request(
                call.method,
                call.path,
                params=call.query,
                headers=call.sent_headers(),
                content=call.content() if data is None else data,
            )
        return answers.json_of(self._access.url, said.status_code, said.content)

    def burst(self, call: calls.Call, on_piece: Callable[[str, bytes | JSON], object]) -> JSON:
        """How it ended; its output goes to ``on_piece`` while it comes."""
        reader = answers.BurstReader(self._access.url)
        with self._streamed(call, MEDIA_TYPE) as said:
            for data in said.iter_raw():
                for stream, piece in reader.feed(data):
                    on_piece(stream, piece)
        return reader.outcome()

    def events(self, call: calls.Call) -> Iterator[tuple[str, JSON]]:
        """Server-sent events, by name. Raises: the error that one of them tells of."""
        reader = answers.EventReader()
        with self._streamed(call, EVENTS) as said:
            for data in said.iter_raw():
                yield from reader.feed(data)

    @contextmanager
    def read(self, call: calls.Call) -> Iterator[tuple[Iterator[bytes], bool]]:
        """A body, streamed, and whether the session had to be woken for it."""
        with self._streamed(call, BYTES) as said:
            yield said.iter_raw(), said.headers.get("torpor-woken") == "true"

    @contextmanager
    def _streamed(self, call: calls.Call, wanted: str) -> Iterator[httpx.Response]:
        with (
            self._failures(),
            self._http.stream(
                call.method, call.path, params=call.query, headers=call.sent_headers(), content=call.content()
            ) as said,
        ):
            if not said.is_success:
                answers.json_of(self._access.url, said.status_code, said.read())
            answers.check_streamed(self._access.url, said.status_code, said.headers.get("content-type", ""), wanted)
            yield said

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise answers.unreachable(self._access.url, error, home=self._access.home) from error
        except httpx.TransportError as error:
            raise answers.broken(self._access.url, error) from error


def pieces_of(data: bytes | str | Iterable[bytes]) -> Iterator[bytes]:
    """As what is sent: pieces that fit into the sockets' buffers."""
    if isinstance(data, str):
        data = data.encode()
    if not isinstance(data, bytes | bytearray | memoryview):
        yield from data
        return
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes(data[start : start + PIECE_BYTES])
