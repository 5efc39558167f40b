"""The guest protocol: values and sans-I/O framing. Standard library only.

Bytes in, events out; no socket, clock or thread anywhere. The layout is docs/formats/wire-v0.md.
"""

from torpor_wire.codec import Connection, Decoder, Event, Foreign, Gap, Skipped, SkipReason, encode
from torpor_wire.credit import WINDOW_BYTES, SendWindow
from torpor_wire.frames import BULK_PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX, VERSION, DataChannel, Frame, FrameType
from torpor_wire.limits import BULK, PLAIN, Limits, agreed
from torpor_wire.messages import (
    MESSAGE_BYTES_MAX,
    Assembler,
    BadMessage,
    Message,
    cut,
    flag,
    integer,
    mapping,
    number,
    optional_number,
    optional_text,
    pack,
    text,
    text_mapping,
    texts,
    unpack,
)

__all__ = [
    "BULK",
    "BULK_PAYLOAD_BYTES_MAX",
    "MESSAGE_BYTES_MAX",
    "PAYLOAD_BYTES_MAX",
    "PLAIN",
    "VERSION",
    "WINDOW_BYTES",
    "Assembler",
    "BadMessage",
    "Connection",
    "DataChannel",
    "Decoder",
    "Event",
    "Foreign",
    "Frame",
    "FrameType",
    "Gap",
    "Limits",
    "Message",
    "SendWindow",
    "SkipReason",
    "Skipped",
    "agreed",
    "cut",
    "encode",
    "flag",
    "integer",
    "mapping",
    "number",
    "optional_number",
    "optional_text",
    "pack",
    "text",
    "text_mapping",
    "texts",
    "unpack",
]
