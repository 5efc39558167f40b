"""A burst's output on its way to a client: collected whole, or handed on piece by piece. Both are bounded."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from typing import Any

from torpor.ports.guest import Output, StreamKind

COLLECTED_BYTES_MAX = 16 * 1024 * 1024  # of an unstreamed answer: it is held in memory, and JSON doubles it
WAITING_BYTES_MAX = 1024 * 1024  # of a stream that its client reads too slowly; then the guest is made to wait
EVENT_BYTES_MAX = 256 * 1024


class Collector:
    """Keeps stdout, stderr and displays up to ``COLLECTED_BYTES_MAX``; counts what it drops."""

    def __init__(self) -> None:
        self._streams = {StreamKind.STDOUT: bytearray(), StreamKind.STDERR: bytearray()}
        self._kept_bytes = 0
        self.display: list[Any] = []
        self.dropped_bytes = 0

    async def __call__(self, output: Output) -> None:
        """Keep a piece, or what fits of it; a display is kept whole or not at all."""
        room_bytes = COLLECTED_BYTES_MAX - self._kept_bytes
        if output.stream is StreamKind.DISPLAY:
            kept_bytes = len(output.data) if len(output.data) <= room_bytes else 0
            if kept_bytes:
                self.display.append(json.loads(output.data))
        else:
            kept_bytes = min(len(output.data), room_bytes)
            self._streams[output.stream] += output.data[:kept_bytes]
        self._kept_bytes += kept_bytes
        self.dropped_bytes += len(output.data) - kept_bytes

    @property
    def stdout(self) -> bytes:
        """What was kept of it."""
        return bytes(self._streams[StreamKind.STDOUT])

    @property
    def stderr(self) -> bytes:
        """What was kept of it."""
        return bytes(self._streams[StreamKind.STDERR])


class Outlet:
    """Pieces between a burst and one reader. Makes the burst wait while the reader is slow, never once it is gone."""

    def __init__(self) -> None:
        self._pieces: deque[Output] = deque()
        self._waiting_bytes = 0
        self._ended = False
        self._left = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def __call__(self, output: Output) -> None:
        """Hand a piece to the reader, or drop it if there is none any more."""
        await self._room.wait()
        if self._left:
            return
        self._pieces.append(output)
        self._waiting_bytes += len(output.data)
        if self._waiting_bytes >= WAITING_BYTES_MAX:
            self._room.clear()
        self._news.set()

    def end(self) -> None:
        """No piece will follow."""
        self._ended = True
        self._news.set()

    def leave(self) -> None:
        """The reader is gone: what waits and what follows is dropped."""
        self._left = True
        self._pieces.clear()
        self._room.set()

    async def read(self) -> tuple[Output, ...]:
        """The pieces that wait; empty once the burst has ended."""
        while not self._pieces and not self._ended:
            self._news.clear()
            await self._news.wait()
        pieces = tuple(self._pieces)
        self._pieces.clear()
        self._waiting_bytes = 0
        self._room.set()
        return pieces

    @property
    def drained(self) -> bool:
        """True if the burst has ended and nothing waits."""
        return self._ended and not self._pieces


def joined(pieces: tuple[Output, ...]) -> tuple[Output, ...]:
    """Fewer, larger pieces of the same bytes in the same order; displays stay apart."""
    groups: list[tuple[StreamKind, bytearray]] = []
    for piece in pieces:
        fits = bool(groups) and groups[-1][0] is piece.stream is not StreamKind.DISPLAY
        if fits and len(groups[-1][1]) + len(piece.data) <= EVENT_BYTES_MAX:
            groups[-1][1].extend(piece.data)
        else:
            groups.append((piece.stream, bytearray(piece.data)))
    return tuple(Output(stream, bytes(data)) for stream, data in groups)


def text_or_none(data: bytes) -> str | None:
    """``data`` as text if it is valid UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def output_json(output: Output) -> dict[str, Any]:
    """``{stream, text}``, ``{stream, base64}`` where the bytes are not UTF-8, or ``{stream, data}`` for a display.

    A character cut in two by a piece's edge makes both pieces base64: the bytes always come through as they were.
    """
    if output.stream is StreamKind.DISPLAY:
        return {"stream": "display", "data": json.loads(output.data)}
    text = text_or_none(output.data)
    if text is None:
        return {"stream": output.stream.value, "base64": base64.b64encode(output.data).decode()}
    return {"stream": output.stream.value, "text": text}
