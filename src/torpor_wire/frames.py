"""What travels: one frame, its types and channels. Layout: docs/formats/wire-v0.md §1 and §3."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

VERSION = 0
BULK_VERSION = 1  # only DATA, and only to a peer that offered it
PAYLOAD_BYTES_MAX = 65_536  # one pipe buffer: a frame never needs more than one wake-up of its reader
BULK_PAYLOAD_BYTES_MAX = 262_144  # measured: larger writes are no faster through gVisor's pipes


class FrameType(IntEnum):
    """§3 of the format."""

    HELLO = 1
    WELCOME = 2
    REQUEST = 3
    DATA = 4
    END = 5
    ACK = 6
    RESULT = 7
    ERROR = 8
    CANCEL = 9
    QUIESCE = 10
    QUIESCED = 11
    RESUMED = 12
    READY = 13


GREETINGS = frozenset({FrameType.HELLO, FrameType.WELCOME})


class DataChannel(IntEnum):
    """What the bytes of a DATA frame are."""

    BODY = 0
    STDOUT = 1
    STDERR = 2
    DISPLAY = 3
    EVENT = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame without its framing. ``id`` < 2**64; ``payload`` of at most PAYLOAD_BYTES_MAX bytes.

    In bulk it may have BULK_PAYLOAD_BYTES_MAX.

    ``more``: the message goes on in the next frame of the same type, id and channel.
    """

    type: FrameType
    id: int = 0
    payload: bytes = b""
    channel: DataChannel = DataChannel.BODY
    more: bool = False
