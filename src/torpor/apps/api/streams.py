"""A burst's output on the wire, in the form that the client asked for: server-sent events, or frames. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Protocol

from torpor.apps.api.output import joined, output_json, text_or_none
from torpor.apps.api.wire import JSON
from torpor.apps.sdk import frames
from torpor.apps.sdk.frames import HEADER, Kind
from torpor.ports.guest import Output, StreamKind

EVENT: dict[str, Any] = {
    "type": "object",
    "description": "data is JSON",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["event", "data"],
}
EVENT_STREAM: dict[str, Any] = {"content": {"text/event-stream": {"schema": EVENT}}}

_KINDS = {StreamKind.STDOUT: Kind.STDOUT, StreamKind.STDERR: Kind.STDERR, StreamKind.DISPLAY: Kind.DISPLAY}


class Form(Protocol):
    """How a stream is written."""

    media_type: str

    def output(self, pieces: Sequence[Output]) -> bytes:
        """Pieces of output, in order."""
        ...

    def keep_alive(self) -> bytes:
        """What says nothing, so that nobody in between thinks the stream dead."""
        ...

    def result(self, outcome: JSON) -> bytes:
        """The end of a burst that ended."""
        ...

    def error(self, said: JSON) -> bytes:
        """The end of a burst that failed to."""
        ...


class Events:
    """Server-sent events: ``output``, then one ``result`` or ``error``. For people, browsers and curl."""

    media_type = "text/event-stream"

    def output(self, pieces: Sequence[Output]) -> bytes:
        """See Form."""
        return b"".join(event("output", output_json(piece)) for piece in joined(tuple(pieces)))

    def keep_alive(self) -> bytes:
        """See Form."""
        return b": keep-alive\n\n"

    def result(self, outcome: JSON) -> bytes:
        """See Form."""
        return event("result", outcome)

    def error(self, said: JSON) -> bytes:
        """See Form."""
        return event("error", said)


class Frames:
    """``sdk.frames``: output as it is, at the speed of memory."""

    media_type = frames.MEDIA_TYPE

    def output(self, pieces: Sequence[Output]) -> bytes:
        """See Form."""
        parts: list[bytes] = []
        for piece in pieces:
            parts += (HEADER.pack(_KINDS[piece.stream], len(piece.data)), piece.data)
        return b"".join(parts)

    def keep_alive(self) -> bytes:
        """See Form."""
        return frames.encode(Kind.KEEP_ALIVE, b"")

    def result(self, outcome: JSON) -> bytes:
        """See Form."""
        return frames.encode(Kind.RESULT, _json(outcome))

    def error(self, said: JSON) -> bytes:
        """See Form."""
        return frames.encode(Kind.ERROR, _json(said))


def form_for(accept: str, *, stream: bool) -> Form | None:
    """The form that a request asks for; None if it wants one answer at the end."""
    if frames.MEDIA_TYPE in accept:
        return Frames()
    return Events() if stream or "text/event-stream" in accept else None


def event(name: str, data: JSON) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + _json(data) + b"\n\n"


def _json(data: JSON) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def text_fields(data: bytes) -> JSON:
    """``{text}``, or ``{base64}`` for what is not UTF-8."""
    text = text_or_none(data)
    return {"base64": base64.b64encode(data).decode()} if text is None else {"text": text}
