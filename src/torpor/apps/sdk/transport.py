"""How the client that waits talks HTTP."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torpor.apps.sdk import answers, calls
from torpor.apps.sdk.access import Access
from torpor.apps.sdk.calls import BYTES, EVENTS
from torpor.apps.sdk.connections import PIECE_BYTES, Answer, Body, Broken, Connections, Unreached
from torpor.apps.sdk.frames import MEDIA_TYPE

JSON = dict[str, Any]


class Transport:
    """Calls over one pool of connections. May be used by several threads. Answers are JSON; failures are our errors."""

    def __init__(self, access: Access) -> None:
        self.access = self._access = access
        self._http = Connections(access.url, access.headers())

    def close(self) -> None:
        """Idempotent."""
        self._http.close()

    def json(self, call: calls.Call, data: Iterable[bytes] | None = None) -> JSON:
        """The answer. ``data``: the body, streamed, instead of the call's own."""
        with self._asked(call, call.content() if data is None else data) as said:
            return answers.json_of(self._access.url, said.status, said.read())

    def burst(self, call: calls.Call, on_piece: Callable[[str, bytes | JSON], object]) -> JSON:
        """How it ended; its output goes to ``on_piece`` while it comes."""
        reader = answers.BurstReader(self._access.url)
        with self._streamed(call, MEDIA_TYPE) as said:
            for data in said.pieces():
                for stream, piece in reader.feed(data):
                    on_piece(stream, piece)
        return reader.outcome()

    def events(self, call: calls.Call) -> Iterator[tuple[str, JSON]]:
        """Server-sent events, by name. Raises: the error that one of them tells of."""
        reader = answers.EventReader()
        with self._streamed(call, EVENTS) as said:
            for data in said.pieces():
                yield from reader.feed(data)

    @contextmanager
    def read(self, call: calls.Call) -> Iterator[tuple[Iterator[bytes], bool]]:
        """A body, streamed, and whether the session had to be woken for it."""
        with self._streamed(call, BYTES) as said:
            yield said.pieces(), said.header("torpor-woken") == "true"

    @contextmanager
    def _streamed(self, call: calls.Call, wanted: str) -> Iterator[Answer]:
        with self._asked(call, call.content()) as said:
            if not said.is_success:
                answers.json_of(self._access.url, said.status, said.read())
            answers.check_streamed(self._access.url, said.status, said.header("content-type") or "", wanted)
            yield said

    @contextmanager
    def _asked(self, call: calls.Call, body: Body) -> Iterator[Answer]:
        try:
            with self._http.request(call.method, call.target(), call.sent_headers(), body) as said:
                yield said
        except Unreached as error:
            raise answers.unreachable(self._access.url, error, home=self._access.home) from error
        except Broken as error:
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


def gathered(pieces: Iterable[bytes]) -> bytes:
    """All of them, held once: a list of pieces and their sum would touch twice the memory for the first time."""
    whole = io.BytesIO()
    for piece in pieces:
        whole.write(piece)
    return whole.getvalue()
