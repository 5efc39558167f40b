"""The guest protocol: values and sans-I/O framing. Standard library only.

Bytes in, events out; no socket, clock or thread anywhere. The layout is docs/formats/wire-v0.md.
"""

from torpor_wire.codec import Connection, Decoder, Event, Foreign, Gap, Skipped, SkipReason, encode
from torpor_wire.credit import WINDOW_BYTES, SendWindow
from torpor_wire.frames import PAYLOAD_BYTES_MAX, VERSION, DataChannel, Frame, FrameType
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
    "MESSAGE_BYTES_MAX",
    "PAYLOAD_BYTES_MAX",
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
    "Message",
    "SendWindow",
    "SkipReason",
    "Skipped",
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
