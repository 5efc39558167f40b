"""Messages: JSON objects in control frames, cut into frames and put together again.

What comes from a guest is hostile: every field is read through an accessor that checks its type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torpor_wire.frames import PAYLOAD_BYTES_MAX, DataChannel, Frame, FrameType

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
UNFINISHED_BYTES_MAX = 2 * MESSAGE_BYTES_MAX

_JSON = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False)


class BadMessage(ValueError):
    """A control message that is not what its type promises."""


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message: a frame, or several joined. ``payload`` is None if it was too long and dropped."""

    type: FrameType
    id: int
    channel: DataChannel
    payload: bytes | None


def pack(fields: Mapping[str, Any]) -> bytes:
    """A control payload, UTF-8 whatever the strings hold."""
    return _JSON.encode(fields).encode("ascii")


def unpack(payload: bytes | None) -> dict[str, Any]:
    """The object in a control payload; an empty payload is an empty object. Raises: BadMessage."""
    if not payload:
        if payload is None:
            raise BadMessage(f"message longer than {MESSAGE_BYTES_MAX} bytes")
        return {}
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"payload is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadMessage(f"payload is a JSON {type(fields).__name__}, not an object")
    return fields


def cut(
    frame_type: FrameType, frame_id: int, payload: bytes, channel: DataChannel = DataChannel.BODY
) -> Iterator[Frame]:
    """The frames of one message, at least one; all but the last say that more follows."""
    assert len(payload) <= MESSAGE_BYTES_MAX
    last = max(0, len(payload) - 1) // PAYLOAD_BYTES_MAX
    for index in range(last + 1):
        piece = payload[index * PAYLOAD_BYTES_MAX : (index + 1) * PAYLOAD_BYTES_MAX]
        yield Frame(frame_type, frame_id, piece, channel, index < last)


class Assembler:
    """Joins the pieces of messages. Bounded: a message that is too long yields ``payload=None`` at its end."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[FrameType, int, DataChannel], bytearray | None] = {}
        self._held_bytes = 0

    def add(self, frame: Frame) -> Message | None:
        """The message that ``frame`` completes, if it does."""
        key = (frame.type, frame.id, frame.channel)
        if not frame.more and key not in self._pieces:
            return Message(frame.type, frame.id, frame.channel, frame.payload)
        held = self._pieces.get(key, bytearray()) if len(self._pieces) < PAYLOAD_BYTES_MAX else None
        if held is not None and self._fits(len(held), len(frame.payload)):
            held += frame.payload
            self._held_bytes += len(frame.payload)
        elif held is not None:
            self._held_bytes -= len(held)
            held = None
        if frame.more:
            if key in self._pieces or len(self._pieces) < PAYLOAD_BYTES_MAX:
                self._pieces[key] = held
            return None
        self._pieces.pop(key, None)
        self._held_bytes -= len(held or b"")
        return Message(frame.type, frame.id, frame.channel, None if held is None else bytes(held))

    def clear(self) -> None:
        """Forget all unfinished messages."""
        self._pieces.clear()
        self._held_bytes = 0

    def _fits(self, held_count: int, count: int) -> bool:
        return held_count + count <= MESSAGE_BYTES_MAX and self._held_bytes + count <= UNFINISHED_BYTES_MAX


def _field(fields: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - the accessors below give it its type
    if name not in fields:
        raise BadMessage(f"field {name!r} is missing")
    return fields[name]


def text(fields: Mapping[str, Any], name: str) -> str:
    """A string field. Raises: BadMessage."""
    value = _field(fields, name)
    if not isinstance(value, str):
        raise BadMessage(f"field {name!r} is not a string")
    return value


def optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    """A string field that may be null or absent. Raises: BadMessage."""
    return None if fields.get(name) is None else text(fields, name)


def integer(fields: Mapping[str, Any], name: str) -> int:
    """An integer field of at most 64 bits. Raises: BadMessage."""
    value = _field(fields, name)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**64:
        raise BadMessage(f"field {name!r} is not a 64-bit integer")
    return value


def number(fields: Mapping[str, Any], name: str) -> float:
    """A finite number field. Raises: BadMessage."""
    value = _field(fields, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e18:
        raise BadMessage(f"field {name!r} is not a number")
    return float(value)


def optional_number(fields: Mapping[str, Any], name: str) -> float | None:
    """A number field that may be null or absent. Raises: BadMessage."""
    return None if fields.get(name) is None else number(fields, name)


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """A boolean field, False if absent. Raises: BadMessage."""
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise BadMessage(f"field {name!r} is not true or false")
    return value


def mapping(fields: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """An object field, None if null or absent. Raises: BadMessage."""
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        raise BadMessage(f"field {name!r} is not an object")
    return value


def text_mapping(fields: Mapping[str, Any], name: str) -> dict[str, str]:
    """An object field of strings, empty if absent. Raises: BadMessage."""
    value = mapping(fields, name) or {}
    if not all(isinstance(item, str) for item in value.values()):
        raise BadMessage(f"field {name!r} is not an object of strings")
    return value


def texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """An array of strings. Raises: BadMessage."""
    value = _field(fields, name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadMessage(f"field {name!r} is not an array of strings")
    return tuple(value)
