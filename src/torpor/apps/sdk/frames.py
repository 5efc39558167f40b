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


class FrameDecoder:
    """Bytes in, in any pieces; frames out, in order."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes. Raises: Corrupt for what cannot be a frame."""
        held = self._held
        held += data
        frames: list[Frame] = []
        at = 0
        with memoryview(held) as view:
            while len(view) - at >= HEADER.size:
                number, length = HEADER.unpack_from(view, at)
                kind = _kind(number, length)
                end = at + HEADER.size + length
                if end > len(view):
                    break
                frames.append(Frame(kind, bytes(view[at + HEADER.size : end])))
                at = end
        del held[:at]
        return frames


def _kind(number: int, length: int) -> Kind:
    kind = KINDS.get(number)
    if kind is None or length > PAYLOAD_BYTES_MAX:
        raise Corrupt(f"cannot read the stream: a frame of kind {number} and {length} bytes is none of this version's")
    return kind
