"""Frames to bytes and back. Never raises on what was received, never holds more than one frame.

Rule 1: the delimiter occurs at the start of a frame and nowhere else, so resynchronisation is finding the next one.
Rule 2: the events depend on the bytes alone, not on how they were cut into pieces.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum

from torpor_wire.frames import GREETINGS, PAYLOAD_BYTES_MAX, VERSION, DataChannel, Frame, FrameType

DELIMITER = b"\xfe"
ESCAPE = b"\xfd"
ESCAPED_ESCAPE = b"\xfd\x01"
ESCAPED_DELIMITER = b"\xfd\x02"
MAGIC = DELIMITER + b"TPW"
MORE = 1
FEW_ESCAPES = 32  # one in so many bytes, and fewer
SEQUENCE_COUNT = 1 << 32

_FIELDS = struct.Struct(">4sBBBBQIII")
_CRC = struct.Struct(">I")
_TYPES = frozenset(FrameType)
_CHANNELS = frozenset(DataChannel)
HEADER_BYTES = _FIELDS.size + _CRC.size
assert HEADER_BYTES == 32


class SkipReason(StrEnum):
    """Why bytes were not taken for a frame."""

    NOISE = "noise"
    TRUNCATED = "truncated"
    HEADER = "header"
    VERSION = "version"
    PAYLOAD = "payload"


@dataclass(frozen=True, slots=True)
class Skipped:
    """``count`` unstuffed bytes before the next delimiter were no frame; ``reason`` is the first one met."""

    count: int
    reason: SkipReason


@dataclass(frozen=True, slots=True)
class Gap:
    """Frames are missing before the next event: ``expected`` was due and ``received`` came."""

    expected: int
    received: int


@dataclass(frozen=True, slots=True)
class Foreign:
    """A whole frame of a kind that this version does not know. It is no damage, and means nothing here."""


Event = Frame | Skipped | Gap


@dataclass(frozen=True, slots=True)
class _Header:
    type: FrameType | None  # None: a frame of a kind that is not known
    channel: DataChannel
    more: bool
    id: int
    sequence: int
    length: int
    payload_crc: int


def encode(frame: Frame, sequence: int) -> bytes:
    """The frame as it travels, delimiter and stuffing included.

    Raises: nothing; a payload that is too long or an id out of range is a programming error and asserts.
    """
    assert len(frame.payload) <= PAYLOAD_BYTES_MAX
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        frame.type,
        frame.channel,
        MORE if frame.more else 0,
        frame.id,
        sequence,
        len(frame.payload),
        zlib.crc32(frame.payload),
    )
    plain = b"".join((fields[1:], _CRC.pack(zlib.crc32(fields)), frame.payload))
    return DELIMITER + plain.replace(ESCAPE, ESCAPED_ESCAPE).replace(DELIMITER, ESCAPED_DELIMITER)


def _parse_header(plain: bytes) -> _Header | SkipReason:
    """``plain``: the 31 unstuffed bytes after the delimiter."""
    fields = DELIMITER + plain[:-4]
    magic, version, kind, channel, flags, frame_id, sequence, length, payload_crc = _FIELDS.unpack(fields)
    if magic != MAGIC or _CRC.unpack(plain[-4:])[0] != zlib.crc32(fields):
        return SkipReason.HEADER
    if version != VERSION:
        return SkipReason.VERSION
    if length > PAYLOAD_BYTES_MAX:
        return SkipReason.HEADER
    known = not flags & ~MORE and kind in _TYPES and channel in _CHANNELS
    return _Header(
        FrameType(kind) if known else None,
        DataChannel(channel) if known else DataChannel.BODY,
        bool(flags & MORE),
        frame_id,
        sequence,
        length,
        payload_crc,
    )


def _unstuffed(part: bytes) -> bytes:
    """``part`` without stuffing. An escape with any other partner than the two stays as it is."""
    count = part.count(ESCAPE)
    if count == 0:
        return part
    if count * FEW_ESCAPES > len(part):
        return part.replace(ESCAPED_DELIMITER, DELIMITER).replace(ESCAPED_ESCAPE, ESCAPE)
    # Searching for one byte is several times as fast as for two; most of a random payload's time went there.
    first, *rest = part.split(ESCAPE)
    pieces = [first]
    for piece in rest:
        partner = piece[:1]
        if partner == b"\x02":
            pieces += (DELIMITER, piece[1:])
        elif partner == b"\x01":
            pieces += (ESCAPE, piece[1:])
        else:
            pieces += (ESCAPE, piece)
    return b"".join(pieces)


class Decoder:
    """Bytes in, frames and skips out, with each frame's sequence number."""

    def __init__(self) -> None:
        self._plain: bytearray | None = None  # unstuffed bytes after the delimiter; None: not in a frame
        self._escape = False  # the last byte was ESCAPE, its partner has not come yet
        self._header: _Header | None = None
        self._skipped_count = 0
        self._reason: SkipReason | None = None

    def receive_data(self, data: bytes) -> list[tuple[Frame | Foreign, int] | Skipped]:
        """All that ``data`` completes, in order. Any bytes are accepted."""
        events: list[tuple[Frame | Foreign, int] | Skipped] = []
        first, *rest = bytes(data).split(DELIMITER)
        self._take(first, events)
        for part in rest:
            self._start(events)
            self._take(part, events)
        return events

    def _start(self, events: list[tuple[Frame | Foreign, int] | Skipped]) -> None:
        if self._escape:
            self._escape = False
            self._append(ESCAPE)
        if self._plain is not None:
            self._abandon(SkipReason.TRUNCATED)
        if self._skipped_count:
            events.append(Skipped(self._skipped_count, self._reason or SkipReason.NOISE))
        self._skipped_count, self._reason = 0, None
        self._plain, self._header = bytearray(), None

    def _take(self, part: bytes, events: list[tuple[Frame | Foreign, int] | Skipped]) -> None:
        if self._escape:
            part = ESCAPE + part
        self._escape = part.endswith(ESCAPE)
        if self._escape:
            part = part[:-1]
        self._append(_unstuffed(part))
        self._complete(events)

    def _append(self, plain: bytes) -> None:
        if self._plain is None:
            self._skipped_count += len(plain)
        else:
            self._plain += plain

    def _abandon(self, reason: SkipReason) -> None:
        assert self._plain is not None
        self._skipped_count += len(self._plain) + 1  # the delimiter is part of what is thrown away
        self._reason = self._reason or reason
        self._plain = None

    def _complete(self, events: list[tuple[Frame | Foreign, int] | Skipped]) -> None:
        if self._plain is None or len(self._plain) < HEADER_BYTES - 1:
            return
        if self._header is None:
            parsed = _parse_header(bytes(self._plain[: HEADER_BYTES - 1]))
            if isinstance(parsed, SkipReason):
                self._abandon(parsed)
                return
            self._header = parsed
        header, end = self._header, HEADER_BYTES - 1 + self._header.length
        if len(self._plain) < end:
            return
        with memoryview(self._plain) as plain:
            payload = bytes(plain[HEADER_BYTES - 1 : end])
        if zlib.crc32(payload) != header.payload_crc:
            self._abandon(SkipReason.PAYLOAD)
            return
        self._skipped_count = len(self._plain) - end
        self._plain = None
        if header.type is None:
            events.append((Foreign(), header.sequence))
        else:
            events.append((Frame(header.type, header.id, payload, header.channel, header.more), header.sequence))


class Connection:
    """Both directions of one channel, with their sequence numbers. Not thread-safe."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._next_sent = 0
        self._next_received: int | None = None  # None: no greeting seen yet, so any number may come

    def send(self, frame: Frame) -> bytes:
        """The bytes to write. A greeting restarts this direction's sequence."""
        if frame.type in GREETINGS:
            self._next_sent = 0
        sequence = self._next_sent
        self._next_sent = (sequence + 1) % SEQUENCE_COUNT
        return encode(frame, sequence)

    def receive_data(self, data: bytes) -> list[Event]:
        """All events that ``data`` completes, in order. Never raises."""
        events: list[Event] = []
        for item in self._decoder.receive_data(data):
            if isinstance(item, Skipped):
                events.append(item)
                continue
            frame, sequence = item
            if isinstance(frame, Frame) and frame.type in GREETINGS:
                self._next_received = sequence
            if self._next_received is not None:
                if sequence != self._next_received:
                    events.append(Gap(self._next_received, sequence))
                self._next_received = (sequence + 1) % SEQUENCE_COUNT
            if isinstance(frame, Frame):
                events.append(frame)
        return events
