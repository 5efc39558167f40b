"""What the server says, as values or as the errors it means. Pure, so both clients share it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from torpor.apps.sdk.frames import FrameDecoder, Kind
from torpor.domain.errors import TorporError, Unavailable, error_for

JSON = dict[str, Any]
OnPiece = Callable[[str, Any], None]
"""Called with ``stdout`` or ``stderr`` and bytes, or with ``display`` and a mime bundle."""
_STREAMS = {Kind.STDOUT: "stdout", Kind.STDERR: "stderr"}


def json_of(url: str, status: int, body: bytes) -> JSON:
    """The JSON of an answer. Raises: the error that it tells of; Unavailable for what no torpor server says."""
    try:
        said = json.loads(body) if body else {}
    except ValueError:
        said = None
    if 200 <= status < 300 and isinstance(said, dict):
        return said
    if not isinstance(said, dict) or not {"code", "message", "details"} <= said.keys():
        raise _other_server(url, status)
    raise error_of(said)


def check_streamed(url: str, status: int, content_type: str, wanted: str) -> None:
    """Raises: Unavailable unless a stream is of the wanted type. Another server's page must not pass for a file."""
    if content_type.partition(";")[0].strip() != wanted:
        raise _other_server(url, status)


def error_of(said: Mapping[str, Any]) -> TorporError:
    """The error that ``{code, message, details}`` tells of; a code of a later version is a plain TorporError."""
    error = error_for(said["code"], said["message"])
    error.details.update(said["details"])
    return error


def _other_server(url: str, status: int) -> Unavailable:
    return Unavailable(
        f"cannot understand {url}: it answered {status} and is not a torpor server; check TORPOR_API_URL", url=url
    )


def unreachable(url: str, error: Exception, *, home: str = "") -> Unavailable:
    """What is raised if nobody listens."""
    return Unavailable(
        f"cannot reach a server at {url}: {error}; start it with `torpor up --detach`"
        f"{f' (home: {home})' if home else ''}, or set TORPOR_API_URL",
        url=url,
    )


def broken(url: str, error: Exception) -> Unavailable:
    """What is raised if a connection ends before its answer."""
    return Unavailable(
        f"the connection to {url} broke: {error}; `torpor ls` shows what holds, then repeat", url=url, retry_after_s=1.0
    )


class EventReader:
    """Bytes of server-sent events in, in any pieces; their names and JSON out. An ``error`` event is raised."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[str, JSON]]:
        """The events that ``data`` completes. Raises: the error that ended the stream."""
        self._held += data
        *whole, rest = bytes(self._held).split(b"\n\n")
        self._held = bytearray(rest)
        found: list[tuple[str, JSON]] = []
        for text in whole:
            fields = dict(line.split(b": ", 1) for line in text.split(b"\n") if line and not line.startswith(b":"))
            if not fields:
                continue
            name, said = fields[b"event"].decode(), json.loads(fields[b"data"])
            if name == "error":
                raise error_of(said)
            found.append((name, said))
        return found


def data_of(said: Mapping[str, Any]) -> bytes:
    """The bytes of ``{text}`` or ``{base64}``."""
    return base64.b64decode(said["base64"]) if "base64" in said else str(said["text"]).encode()


class BurstReader:
    """Bytes of a burst's stream in, its pieces out; ``outcome`` says how it ended."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._decoder = FrameDecoder()
        self._outcome: JSON | None = None
        self._error: TorporError | None = None

    def feed(self, data: bytes) -> list[tuple[str, bytes | JSON]]:
        """``stdout`` or ``stderr`` and bytes, or ``display`` and a mime bundle, in order. Raises: Corrupt."""
        pieces: list[tuple[str, bytes | JSON]] = []
        for frame in self._decoder.feed(data):
            if frame.kind in _STREAMS:
                pieces.append((_STREAMS[frame.kind], frame.payload))
            elif frame.kind is Kind.DISPLAY:
                pieces.append(("display", json.loads(frame.payload)))
            elif frame.kind is Kind.RESULT:
                self._outcome = json.loads(frame.payload)
            elif frame.kind is Kind.ERROR:
                self._error = error_of(json.loads(frame.payload))
        return pieces

    def outcome(self) -> JSON:
        """The last frame. Raises: the error that ended the burst; Unavailable if the stream was cut before its end."""
        if self._error is not None:
            raise self._error
        if self._outcome is None:
            raise Unavailable(
                f"cannot tell how it ended: {self._url} closed the stream early; `torpor inspect` says what holds",
                url=self._url,
            )
        return self._outcome
