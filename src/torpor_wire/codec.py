"""Frames to bytes and back. Never raises on what was received, never holds more than one frame.

Rule 1: the magic occurs at the start of a frame and nowhere else, so resynchronisation is finding the next one.
Rule 2: the events depend on the bytes alone, not on how they were cut into pieces.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum

from torpor_wire.frames import (
    BULK_PAYLOAD_BYTES_MAX,
    BULK_VERSION,
    GREETINGS,
    PAYLOAD_BYTES_MAX,
    VERSION,
    DataChannel,
    Frame,
    FrameType,
)

DELIMITER = b"\xfe"
ESCAPE = b"\xfd"
ESCAPED_ESCAPE = b"\xfd\x01"
ESCAPED_DELIMITER = b"\xfd\x02"
MAGIC = DELIMITER + b"TPW"
PREFIX, LAST = MAGIC[:3], MAGIC[3:]
STOP = b"\0"  # in bulk frames: ends a part, and stands after each PREFIX in one
MORE = 1
FEW_ESCAPES = 32  # one in so many bytes, and fewer
SEQUENCE_COUNT = 1 << 32
BULK_FROM_BYTES = 4096  # less is not worth two stops

_FIELDS = struct.Struct(">4sBBBBQIII")
_CRC = struct.Struct(">I")
_BULK = bytes([BULK_VERSION])
_TYPES = {int(kind): kind for kind in FrameType}
_CHANNELS = {int(channel): channel for channel in DataChannel}
HEADER_BYTES = _FIELDS.size + _CRC.size
assert HEADER_BYTES == 32
HEAD_BYTES = HEADER_BYTES - len(MAGIC)


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


def encode(frame: Frame, sequence: int, *, bulk: bool = False) -> bytes:
    """The frame as it travels, magic and stuffing included; ``bulk`` as in §1.1.

    Raises: nothing; a payload that is too long or an id out of range is a programming error and asserts.
    """
    assert len(frame.payload) <= (BULK_PAYLOAD_BYTES_MAX if bulk else PAYLOAD_BYTES_MAX)
    fields = _FIELDS.pack(
        MAGIC,
        BULK_VERSION if bulk else VERSION,
        frame.type,
        frame.channel,
        MORE if frame.more else 0,
        frame.id,
        sequence,
        len(frame.payload),
        zlib.crc32(frame.payload),
    )
    head = fields[len(MAGIC) :] + _CRC.pack(zlib.crc32(fields))
    if bulk:
        return b"".join((MAGIC, _guarded(head), STOP, _guarded(frame.payload), STOP))
    plain = head + frame.payload
    return MAGIC + plain.replace(ESCAPE, ESCAPED_ESCAPE).replace(DELIMITER, ESCAPED_DELIMITER)


def _guarded(part: bytes) -> bytes:
    """``part`` in a form in which the magic does not occur."""
    return part.replace(PREFIX, PREFIX + STOP)


def _parse_header(head: bytes, payload_bytes_max: int) -> _Header | SkipReason:
    """``head``: the 28 unstuffed bytes after the magic."""
    fields = MAGIC + head[:-4]
    _, version, kind, channel, flags, frame_id, sequence, length, payload_crc = _FIELDS.unpack(fields)
    if _CRC.unpack(head[-4:])[0] != zlib.crc32(fields):
        return SkipReason.HEADER
    if version not in {VERSION, BULK_VERSION}:
        return SkipReason.VERSION
    if length > payload_bytes_max:
        return SkipReason.HEADER
    known = not flags & ~MORE and kind in _TYPES and channel in _CHANNELS
    return _Header(
        _TYPES[kind] if known else None,
        _CHANNELS[channel] if known else DataChannel.BODY,
        bool(flags & MORE),
        frame_id,
        sequence,
        length,
        payload_crc,
    )


def _edge_bytes(data: bytes) -> int:
    """How many bytes at the end of ``data`` may be the beginning of a magic."""
    at = data.rfind(DELIMITER, max(0, len(data) - len(PREFIX)))
    return len(data) - at if at >= 0 and MAGIC.startswith(data[at:]) else 0


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


Decoded = tuple[Frame | Foreign, int] | Skipped


class Decoder:
    """Bytes in, frames and skips out, with each frame's sequence number."""

    def __init__(self) -> None:
        self._edge = b""  # what may be the beginning of a magic
        self._plain: bytearray | None = None  # unstuffed bytes after the magic; None: not in such a frame
        self._bulk: _Bulk | None = None
        self._escape = False  # the last byte was ESCAPE, its partner has not come yet
        self._header: _Header | None = None
        self._skipped_count = 0
        self._reason: SkipReason | None = None

    @property
    def held_bytes(self) -> int:
        """How much of an unfinished frame is kept."""
        return len(self._edge) + len(self._plain or b"") + (self._bulk.count if self._bulk else 0)

    def receive_data(self, data: bytes) -> list[Decoded]:
        """All that ``data`` completes, in order. Any bytes are accepted."""
        events: list[Decoded] = []
        data = self._edge + data if self._edge else bytes(data)
        edge = _edge_bytes(data)
        self._edge = data[len(data) - edge :]
        first, *rest = data[: len(data) - edge].split(PREFIX)
        self._take(first, events)
        for index, part in enumerate(rest):
            if part.startswith(LAST):
                self._start(events)
                self._take(part[1:], events)
            elif self._bulk is not None and part.startswith(STOP):
                self._bulk.guarded.append(part)
                if not (index + 1 < len(rest) and rest[index + 1].startswith(STOP)):
                    self._take_guarded(events)
            else:
                self._take(PREFIX + part, events)
        return events

    def _start(self, events: list[Decoded]) -> None:
        if self._escape:
            self._escape = False
            self._append(ESCAPE)
        if self._plain is not None or self._bulk is not None:
            self._abandon(SkipReason.TRUNCATED)
        if self._skipped_count:
            events.append(Skipped(self._skipped_count, self._reason or SkipReason.NOISE))
        self._skipped_count, self._reason = 0, None
        self._plain, self._header = bytearray(), None

    def _take_guarded(self, events: list[Decoded]) -> None:
        """A run of parts before which a PREFIX was guarded: at once, unless the frame ends within them."""
        assert self._bulk is not None
        parts, self._bulk.guarded = self._bulk.guarded, []
        run = b"".join(PREFIX + part[1:] for part in parts)
        if len(run) <= self._bulk.missing_count:
            self._take(run, events)
            return
        for part in parts:
            self._take(PREFIX + (part[1:] if self._bulk is not None else part), events)

    def _take(self, part: bytes, events: list[Decoded]) -> None:
        if self._plain is not None and not self._plain and not self._escape and part[:1] == _BULK:
            self._plain, self._bulk = None, _Bulk()
        while self._bulk is not None and part:
            count = self._bulk.missing_count
            self._bulk.add(part[:count])
            part = part[count:]
            if not self._bulk.missing_count:
                self._complete_bulk(events)
        if self._bulk is not None or not part:
            return
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
        count = self._bulk.all_count if self._bulk is not None else len(self._plain or b"")
        self._skipped_count += count + len(MAGIC)  # the magic is part of what is thrown away
        self._reason = self._reason or reason
        self._plain = self._bulk = None

    def _complete(self, events: list[Decoded]) -> None:
        if self._plain is None or len(self._plain) < HEAD_BYTES:
            return
        if self._header is None:
            parsed = _parse_header(bytes(self._plain[:HEAD_BYTES]), PAYLOAD_BYTES_MAX)
            if isinstance(parsed, SkipReason):
                self._abandon(parsed)
                return
            self._header = parsed
        header, end = self._header, HEAD_BYTES + self._header.length
        if len(self._plain) < end:
            return
        with memoryview(self._plain) as plain:
            payload = bytes(plain[HEAD_BYTES:end])
        if zlib.crc32(payload) != header.payload_crc:
            self._abandon(SkipReason.PAYLOAD)
            return
        self._skipped_count = len(self._plain) - end
        self._plain = None
        events.append(_decoded(header, payload))

    def _complete_bulk(self, events: list[Decoded]) -> None:
        """A part of a bulk frame is whole: its header, or its payload and with it the frame."""
        assert self._bulk is not None
        whole = self._bulk.whole()
        if self._header is None:
            parsed = _parse_header(whole[:-1], BULK_PAYLOAD_BYTES_MAX) if whole.endswith(STOP) else SkipReason.HEADER
            if isinstance(parsed, SkipReason):
                self._abandon(parsed)
                return
            self._header = parsed
            self._bulk.expect(parsed.length + len(STOP))
            return
        payload = whole[:-1]
        if not whole.endswith(STOP) or zlib.crc32(payload) != self._header.payload_crc:
            self._abandon(SkipReason.PAYLOAD)
            return
        self._bulk = None
        events.append(_decoded(self._header, payload))


class _Bulk:
    """What has come of a bulk frame, its guards taken out. Its two parts, header and payload, each end with a STOP."""

    def __init__(self) -> None:
        self.guarded: list[bytes] = []
        self.all_count = 0  # of both parts
        self.expect(HEAD_BYTES + len(STOP))

    def expect(self, wanted: int) -> None:
        """Begin a part."""
        self._pieces: list[bytes] = []
        self._wanted = wanted
        self.count = 0

    @property
    def missing_count(self) -> int:
        return self._wanted - self.count

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.count += len(piece)
        self.all_count += len(piece)

    def whole(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


def _decoded(header: _Header, payload: bytes) -> tuple[Frame | Foreign, int]:
    if header.type is None:
        return Foreign(), header.sequence
    return Frame(header.type, header.id, payload, header.channel, header.more), header.sequence


class Connection:
    """Both directions of one channel, with their sequence numbers. Not thread-safe."""

    def __init__(self) -> None:
        self.bulk = False  # the peer has offered to take bulk frames
        self._decoder = Decoder()
        self._next_sent = 0
        self._next_received: int | None = None  # None: no greeting seen yet, so any number may come

    def send(self, frame: Frame) -> bytes:
        """The bytes to write. A greeting restarts this direction's sequence."""
        if frame.type in GREETINGS:
            self._next_sent = 0
        sequence = self._next_sent
        self._next_sent = (sequence + 1) % SEQUENCE_COUNT
        bulk = self.bulk and frame.type is FrameType.DATA and len(frame.payload) >= BULK_FROM_BYTES
        return encode(frame, sequence, bulk=bulk)

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
