"""What the clients ask, as values: one function for each request of the HTTP API. Pure, so both clients share it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from torpor.apps.sdk.frames import MEDIA_TYPE
from torpor.domain.errors import InvalidArgument, NotFound

BODY_BYTES_MAX = 64 * 1024 * 1024  # the server's limit, checked here so that a large body is not sent in vain
PAGE = 500  # of sessions in one answer

# What a stream of the server's is, beside the frames of a burst.
EVENTS = "text/event-stream"
BYTES = "application/octet-stream"

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One request. ``body`` is sent as JSON; files are streamed beside it."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: JSON | None = None

    def __post_init__(self) -> None:
        """Raises: InvalidArgument for text that a URL cannot hold."""
        for name, value in self.query.items():
            _utf8(value, name)

    def target(self) -> str:
        """The path with its query."""
        return f"{self.path}?{urlencode(self.query, quote_via=quote)}" if self.query else self.path

    def content(self) -> bytes | None:
        """The body's bytes. Raises: InvalidArgument above what a server takes, or for what is not JSON."""
        if self.body is None:
            return None
        try:
            data = json.dumps(self.body, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"cannot send the request: {error}", field="body") from error
        if len(data) > BODY_BYTES_MAX:
            raise InvalidArgument(
                f"cannot send {len(data) >> 20} MiB: a request holds at most {BODY_BYTES_MAX >> 20} MiB; "
                "copy the data into the session with `torpor cp` and read it from there",
                field="body",
                limit_bytes=BODY_BYTES_MAX,
            )
        return data

    def sent_headers(self) -> dict[str, str]:
        """The request's own headers."""
        typed = {"content-type": "application/json"} if self.body is not None else {}
        return {**typed, **self.headers}


def health() -> Call:
    """Whether the server is up."""
    return Call("GET", "/v1/health")


def engine() -> Call:
    """The engine in use."""
    return Call("GET", "/v1/engine")


def templates() -> Call:
    """What sessions can be made of."""
    return Call("GET", "/v1/templates")


def store_check() -> Call:
    """Read and authenticate the whole store."""
    return Call("POST", "/v1/store/check")


def collect_garbage(*, dry_run: bool = False, grace_s: float | None = None, keep: int | None = None) -> Call:
    """Remove from the store what nothing uses."""
    return Call("POST", "/v1/store/gc", body=_given({"dry_run": dry_run, "grace_s": grace_s, "keep": keep}))


def rebuild_catalog() -> Call:
    """Insert what the store has and the catalog lacks."""
    return Call("POST", "/v1/store/rebuild-catalog")


def template(name: str) -> Call:
    """One template, by name or digest."""
    return Call("GET", f"/v1/templates/{_segment(name, 'template')}")


def remove_template(name: str) -> Call:
    """Remove one that no session was made of."""
    return Call("DELETE", f"/v1/templates/{_segment(name, 'template')}")


def export(ref: str, passphrase: str) -> Call:
    """A session's newest snapshot, as a file's bytes."""
    return Call("GET", f"{of(ref)}/export", headers=_sealed(passphrase))


def import_session(passphrase: str, *, name: str | None = None) -> Call:
    """A new session; the file's bytes go beside the call."""
    headers = {**_sealed(passphrase), "content-type": "application/octet-stream"}
    return Call("POST", "/v1/sessions/import", {} if name is None else {"name": name}, headers)


def create(request: Mapping[str, Any], *, idempotency_key: str | None = None) -> Call:
    """A new session; the fields of ``CreateBody``. What is left out is the server's to choose."""
    return Call("POST", "/v1/sessions", headers=_keyed(idempotency_key), body=dict(request))


def sessions(cursor: str | None = None, *, limit: int = PAGE) -> Call:
    """A page of sessions, newest first."""
    query = {"limit": str(limit)} | ({"cursor": cursor} if cursor else {})
    return Call("GET", "/v1/sessions", query)


def get(ref: str) -> Call:
    """One session."""
    return Call("GET", of(ref))


def delete(ref: str) -> Call:
    """Delete a session and destroy its key."""
    return Call("DELETE", of(ref))


def pause(ref: str, *, wait: str | None = "disk", idempotency_key: str | None = None) -> Call:
    """Put a session away; ``wait``: return once it is that durable."""
    return Call("POST", f"{of(ref)}/pause", headers=_keyed(idempotency_key), body={"wait": wait})


def resume(ref: str, *, allow_older: bool = False) -> Call:
    """Bring a session back."""
    return Call("POST", f"{of(ref)}/resume", body={"allow_older": allow_older})


def snapshot(ref: str) -> Call:
    """Store what a session is now."""
    return Call("POST", f"{of(ref)}/snapshot")


def fork(ref: str, request: Mapping[str, Any], *, idempotency_key: str | None = None) -> Call:
    """Copies of a session; the fields of ``ForkBody``."""
    return Call("POST", f"{of(ref)}/fork", headers=_keyed(idempotency_key), body=dict(request))


def set_clocks(ref: str, clocks: Mapping[str, Any]) -> Call:
    """The clocks to set anew; the fields of ``ClocksBody``, None for never."""
    return Call("PATCH", f"{of(ref)}/clocks", body=dict(clocks))


def interrupt(ref: str, *, context: str = "default") -> Call:
    """KeyboardInterrupt in a context's running burst."""
    return Call("POST", f"{of(ref)}/interrupt", body={"context": context})


def token(ref: str, *, ttl_s: float | None = None) -> Call:
    """A token that may use one session only."""
    return Call("POST", f"{of(ref)}/tokens", body=_given({"ttl_s": ttl_s}))


def code(ref: str, source: str, **options: Any) -> Call:  # noqa: ANN401 - the fields of CodeBody
    """Run Python; answered as frames."""
    return _burst(ref, "code", {"source": source, **options})


def shell(ref: str, command: str, **options: Any) -> Call:  # noqa: ANN401 - the fields of ShellBody
    """Run a command in a persistent shell; answered as frames."""
    return _burst(ref, "shell", {"command": command, **options})


def execute(ref: str, argv: Iterable[str], *, stdin: bytes = b"", **options: Any) -> Call:  # noqa: ANN401 - of ExecBody
    """Run a process; answered as frames."""
    given = {"argv": list(argv), **options}
    return _burst(ref, "exec", given | ({"stdin_base64": base64.b64encode(stdin).decode()} if stdin else {}))


def read_file(ref: str, path: str) -> Call:
    """A file's bytes."""
    return Call("GET", f"{of(ref)}/files", {"path": path})


def write_file(ref: str, path: str, *, mode: int = 0o644) -> Call:
    """A whole file; its bytes go beside the call."""
    return Call("PUT", f"{of(ref)}/files", {"path": path, "mode": f"{mode:o}"})


def list_files(ref: str, path: str, cursor: str | None = None) -> Call:
    """A page of a directory."""
    return Call("GET", f"{of(ref)}/files/list", {"path": path} | ({"cursor": cursor} if cursor else {}))


def stat_file(ref: str, path: str) -> Call:
    """What a path names."""
    return Call("GET", f"{of(ref)}/files/stat", {"path": path})


def make_directory(ref: str, path: str, *, mode: int = 0o755, user: str | None = None) -> Call:
    """A directory with its parents."""
    body = _given({"path": path, "mode": f"{mode:o}", "user": user})
    return Call("POST", f"{of(ref)}/files/directories", body=body)


def move_file(ref: str, path: str, to: str) -> Call:
    """Rename."""
    return Call("POST", f"{of(ref)}/files/move", body={"path": path, "to": to})


def remove_file(ref: str, path: str, *, recursive: bool = False) -> Call:
    """Remove a file, link or directory."""
    return Call("DELETE", f"{of(ref)}/files", {"path": path, "recursive": "true" if recursive else "false"})


def processes(ref: str) -> Call:
    """What was started inside."""
    return Call("GET", f"{of(ref)}/processes")


def start(ref: str, request: Mapping[str, Any], *, stdin: bytes = b"") -> Call:
    """A process that outlives the request; the fields of ``StartBody``."""
    given = _given(request) | ({"stdin_base64": base64.b64encode(stdin).decode()} if stdin else {})
    return Call("POST", f"{of(ref)}/processes", body=given)


def process_output(ref: str, pid: int, *, from_sequence: int = 0) -> Call:
    """A process's output; answered as server-sent events."""
    return Call("GET", f"{of(ref)}/processes/{pid}/output", {"from_sequence": str(from_sequence)})


def send_input(ref: str, pid: int, *, close: bool = False) -> Call:
    """Input for a process; its bytes go beside the call."""
    query = {"close": "true" if close else "false"}
    return Call("POST", f"{of(ref)}/processes/{pid}/input", query, {"content-type": "application/octet-stream"})


def resize(ref: str, pid: int, columns: int, rows: int) -> Call:
    """A terminal's size."""
    return Call("POST", f"{of(ref)}/processes/{pid}/resize", body={"columns": columns, "rows": rows})


def watch_files(ref: str, path: str, *, recursive: bool = False) -> Call:
    """Changes in a directory; answered as server-sent events."""
    return Call("GET", f"{of(ref)}/files/watch", {"path": path, "recursive": "true" if recursive else "false"})


def send_signal(ref: str, pid: int, number: int, *, group: bool = False) -> Call:
    """A signal for a process."""
    return Call("POST", f"{of(ref)}/processes/{pid}/signal", body={"signal": number, "group": group})


def logs(ref: str, *, source: str | None = None, follow: bool = False, from_sequence: int = 0) -> Call:
    """The log of the inside; answered as server-sent events."""
    query = {"follow": "true" if follow else "false", "from_sequence": str(from_sequence)}
    return Call("GET", f"{of(ref)}/logs", query | ({"source": source} if source else {}))


def of(ref: str) -> str:
    """A session's path. Raises: NotFound for what no session can be called."""
    return f"/v1/sessions/{_segment(ref, 'session')}"


def _segment(name: str, kind: str) -> str:
    """As a part of a path."""
    if not name or name in {".", ".."} or "/" in name:
        listing = "`torpor ls` shows yours" if kind == "session" else "`torpor template list` shows them"
        raise NotFound(f"cannot find a {kind} {name!r}; {listing}", **{kind: name})
    return quote(_utf8(name, kind), safe="")


def _sealed(passphrase: str) -> dict[str, str]:
    return {"torpor-passphrase-base64": base64.b64encode(_utf8(passphrase, "passphrase")).decode()}


def _utf8(text: str, field: str) -> bytes:
    """Its bytes. Raises: InvalidArgument for what is no text, as a file name of another encoding."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        shown = "it" if field == "passphrase" else repr(text)
        raise InvalidArgument(f"cannot send the {field}: {shown} is not UTF-8", field=field) from error


def _burst(ref: str, kind: str, body: Mapping[str, Any]) -> Call:
    return Call("POST", f"{of(ref)}/{kind}", headers={"accept": MEDIA_TYPE}, body=_given(body))


def _keyed(idempotency_key: str | None) -> dict[str, str]:
    return {} if idempotency_key is None else {"idempotency-key": idempotency_key}


def _given(request: Mapping[str, Any]) -> JSON:
    return {name: value for name, value in request.items() if value is not None}
