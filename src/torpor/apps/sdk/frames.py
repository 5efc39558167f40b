"""The binary form of a burst's stream: what one byte of kind, four of length and the bytes themselves say. Pure.

Asked for with ``Accept: application/vnd.torpor.frames``. Output travels as it is: no base64, no JSON, no line to find.
docs/api.md has the table of kinds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from torpor.domain.errors import Corrupt

MEDIA_TYPE = "application/vnd.torpor.frames"
HEADER = struct.Struct(">BI")
PAYLOAD_BYTES_MAX = 64 * 1024 * 1024


class Kind(IntEnum):
    """What a frame holds."""

    KEEP_ALIVE = 0  # nothing; sent so that proxies do not close a silent stream
    STDOUT = 1
    STDERR = 2
    DISPLAY = 3  # JSON: mime type -> content
    RESULT = 4  # JSON: how the burst ended; the last frame
    ERROR = 5  # JSON: code, message, details; the last frame


KINDS = {kind.value: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame."""

    kind: Kind
    payload: bytes


def encode(kind: Kind, payload: bytes) -> bytes:
    """A frame's bytes."""
    return HEADER.pack(kind, len(payload)) + payload


FLOWING = frozenset({Kind.STDOUT, Kind.STDERR})  # mean as much in part, and need not be held until they are whole


class FrameDecoder:
    """Bytes in, in any pieces; frames out, in order. Output is handed on as it comes, in part if need be."""

    def __init__(self) -> None:
        self._held = bytearray()  # of a header, or of a frame that is wanted whole
        self._kind: Kind | None = None  # None: a header is due
        self._left_bytes = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes, and the output it brings. Raises: Corrupt for what cannot be a frame."""
        frames: list[Frame] = []
        at = 0
        while at < len(data):
            if self._kind is None:
                begun = data[at : at + HEADER.size - len(self._held)]
                self._held += begun
                at += len(begun)
                if len(self._held) == HEADER.size:
                    self._begin(frames)
                continue
            part = data[at : at + self._left_bytes]
            at += len(part)
            self._left_bytes -= len(part)
            self._take(self._kind, part, frames)
        return frames

    def _begin(self, frames: list[Frame]) -> None:
        number, length = HEADER.unpack(self._held)
        self._held.clear()
        self._kind, self._left_bytes = _kind(number, length), length
        if not length:
            self._take(self._kind, b"", frames)

    def _take(self, kind: Kind, part: bytes, frames: list[Frame]) -> None:
        if kind in FLOWING:
            frames.append(Frame(kind, part))
        else:
            self._held += part
            if not self._left_bytes:
                frames.append(Frame(kind, bytes(self._held)))
                self._held.clear()
        if not self._left_bytes:
            self._kind = None


def _kind(number: int, length: int) -> Kind:
    kind = KINDS.get(number)
    if kind is None or length > PAYLOAD_BYTES_MAX:
        raise Corrupt(f"cannot read the stream: a frame of kind {number} and {length} bytes is none of this version's")
    return kind
