"""docs/api.md, written from the OpenAPI description: the routes, and what each is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torpor.adapters.clock.system import SystemClock
from torpor.apps.api.app import create_app
from torpor.apps.api.backend import Backend
from torpor.apps.api.middleware import BODY_BYTES_MAX

HEAD = """\
# The HTTP API

JSON in snake_case; times are RFC 3339 in UTC, durations and sizes end in their unit (`_s`, `_ms`, `_bytes`). `{ref}` is
a session's id or name. `/openapi.json` has every field. All but `/v1/health` want `Authorization: Bearer KEY` or
`X-API-Key: KEY`. Failures are `{code, message, details}`, see [errors.md](errors.md).
"""

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
"""


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
    return f"{HEAD}\n{table}\n\n{TAIL}"


def _line(route: Mapping[str, Any]) -> str:
    return " ".join(str(route.get("description", route["summary"])).replace("``", "`").split())
