"""docs/api.md, written from the OpenAPI description: the routes, and what each is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torpor.adapters.clock.system import SystemClock
from torpor.apps.api.app import create_app
from torpor.apps.api.backend import Backend
from torpor.apps.api.middleware import BODY_BYTES_MAX, KEY_PROTOCOL
from torpor.apps.api.sockets import PROTOCOL
from torpor.apps.api.tokens import TTL_S, TTL_S_MAX, USES
from torpor.apps.sdk.frames import MEDIA_TYPE, PAYLOAD_BYTES_MAX, Kind

HEAD = """\
# The HTTP API

JSON in snake_case; times are RFC 3339 in UTC, durations and sizes end in their unit (`_s`, `_ms`, `_bytes`). `{ref}` is
a session's id or name. `/openapi.json` has every field. All but `/v1/health` want `Authorization: Bearer KEY` or
`X-API-Key: KEY`. Failures are `{code, message, details}`, see [errors.md](errors.md).
"""

FRAME_MEANINGS = {
    Kind.KEEP_ALIVE: "nothing; so that no proxy closes a silent stream",
    Kind.STDOUT: "bytes",
    Kind.STDERR: "bytes",
    Kind.DISPLAY: "JSON: mime type to content",
    Kind.RESULT: "JSON: the answer without its output; the last frame",
    Kind.ERROR: "JSON: `code`, `message`, `details`; the last frame",
}


def _uses() -> str:
    return ", ".join(f"`{use}`" for use in sorted(USES - {""}))


TAIL = f"""\
## Bursts

`code`, `shell` and `exec` wake a paused session; `resumed` then says from what (`cause`, `tier`), after how long
(`gap_s`) and what was dropped, and is null otherwise. A failing program is an answer (`error`, `exit_code`), not a
failure. `stdout` and `stderr` are text; where the bytes are not UTF-8, `stdout_base64` and `stderr_base64` hold them
exactly and are null otherwise. A client that goes away does not end a burst.

With `?stream=true` the answer is server-sent events: `output` (`{{stream, text}}`; `{{stream, base64}}` for bytes that
are not UTF-8; `{{stream: "display", data}}`), then one `result` (the answer without its output) or one `error`. A
failure before the first output has its own HTTP status.

## Files

`GET` and `PUT` carry the file's bytes, streamed, of any size; `mode` is octal. Other bodies are limited to
{BODY_BYTES_MAX >> 20} MiB. `Torpor-Woken: true` and `woken` say that the session was paused before.

## Event streams

`logs`, `files/watch` and `processes/{{pid}}/output` are server-sent events: `event: NAME`, `data: JSON`. `logs` has
`entry` and, unless it follows, `end`; `watch` has `change`; `output` has `output`, `lost` and, last, `exit`. Bytes are
`text`, or `base64` where they are not UTF-8. A failure, a pause of the session too, ends them with `error`. Output is
numbered by its bytes: ask again with `from_sequence` to go on where it ended, which wakes the session.

## Frames

With `Accept: {MEDIA_TYPE}` a burst's stream is frames: one byte of kind, four of length (big endian), and as many bytes
as that says, at most {PAYLOAD_BYTES_MAX >> 20} MiB. A reader refuses kinds that it does not know.

FRAMES

## WebSockets

The key is sent as a header or, from a browser, as the protocol `{KEY_PROTOCOL}KEY` beside `{PROTOCOL}`. A failure is a
last text `{{"error": {{code, message, details}}}}` and the close code 4000.

- `/v1/sessions/{{ref}}/bursts` takes JSON texts: a burst (`kind`: `code`, `shell` or `exec`, and that route's fields),
  one at a time, or `{{"kind": "interrupt"}}`. It sends `{{"event": "output", ...}}`, then `result` or `error`; with
  `?frames=true`, frames as binary messages.
- `/v1/sessions/{{ref}}/terminal` is binary both ways: what is typed, what is shown. `{{columns, rows}}` as a text
  resizes. The server's texts are `{{process, resumed}}` first, `{{sequence, lost_bytes}}` where output is missing, and
  `{{sequence, exit_code}}` last. The query has `argv`, `user`, `cwd`, `columns`, `rows`, `term`; or, to attach to one
  again, `pid` and `from_sequence`.
- `/v1/sessions/{{ref}}/ports/{{port}}` is one TCP connection to a port inside, binary both ways. An empty message ends
  what its sender sends. A pause ends the connection: open another.

## Idempotency

`Idempotency-Key` on create, fork and pause: the same key with the same body gives the stored answer with
`Idempotency-Replayed: true`, and nothing is done again; with another body it is a `conflict`. Failures are not stored.

## Tokens

`POST /v1/sessions/{{ref}}/tokens` gives a key for one session, valid for `ttl_s` ({TTL_S:.0f} unless given, at most
{TTL_S_MAX:.0f}). It ends with the session and with the server's key. It may look at the session and use
{_uses()}; all else is 403.

## Export and import

`GET .../export` and `POST /v1/sessions/import` carry one file of any size; `Torpor-Passphrase-Base64` is base64 of the
passphrase's UTF-8. Whoever has file and passphrase can read the session. What is imported is a new session, paused.
"""


def _frames() -> str:
    rows = [f"| {kind.value} | `{kind.name}` | {FRAME_MEANINGS[kind]} |" for kind in Kind]
    return "\n".join(["| Kind | Name | What it holds |", "| --- | --- | --- |", *rows])


def openapi() -> Mapping[str, Any]:
    """The description that ``/openapi.json`` gives."""
    nobody = cast("Backend", None)  # describing the routes asks nothing of a backend
    return create_app(nobody, "", clock=SystemClock()).openapi()


def api_markdown() -> str:
    """docs/api.md, without the line that says it is generated."""
    rows = [
        f"| `{method.upper()}` | `{path}` | {_line(route)} |"
        for path, routes in openapi()["paths"].items()
        for method, route in routes.items()
    ]
    table = "\n".join(["| Method | Route | What it does |", "| --- | --- | --- |", *rows])
    return f"{HEAD}\n{table}\n\n{TAIL.replace('FRAMES', _frames())}"


def _line(route: Mapping[str, Any]) -> str:
    return " ".join(str(route.get("description", route["summary"])).replace("``", "`").split())
