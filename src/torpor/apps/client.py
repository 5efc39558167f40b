"""A synchronous client of the HTTP API, for the command line. Answers are the API's JSON; failures are our errors.

A burst whose code failed is an answer; only a failing request raises. Imports httpx and nothing of the server.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self
from urllib.parse import quote

import httpx

from torpor.apps.config import Config, client_key
from torpor.domain.errors import InvalidArgument, NotFound, TorporError, Unavailable, error_for

BODY_BYTES_MAX = 64 * 1024 * 1024  # the server's limit, checked here so that a large body is not sent in vain
CONNECT_TIMEOUT_S = 5.0

JSON = dict[str, Any]
OnPiece = Callable[[str, bytes | JSON], None]
"""Called with ``stdout`` or ``stderr`` and bytes, or with ``display`` and a mime bundle."""


class Client:
    """One server, one key. Sessions are named by id or name. Use as a context manager, or ``close`` it."""

    def __init__(self, url: str, key: str, *, home: str = "") -> None:
        self._url = url
        self._home = home
        # trust_env: a proxy from the environment must not see this machine's traffic, nor answer for our server.
        self._http = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )

    @classmethod
    def of(cls, config: Config) -> Client:
        """The client of a home. Raises: Unauthenticated if no key is found."""
        return cls(config.api_url, client_key(config), home=str(config.home))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._http.close()

    def health(self) -> JSON:
        """What the server says of itself."""
        return self._call("GET", "/v1/health")

    def engine(self) -> JSON:
        """The engine the server uses."""
        return self._call("GET", "/v1/engine")

    def create(self, **request: Any) -> JSON:  # noqa: ANN401 - the fields of CreateBody
        """A new session, running; ``request`` holds template, name, persistence, metadata, env."""
        return self._call("POST", "/v1/sessions", body=request)

    def sessions(self) -> Iterator[JSON]:
        """All sessions, newest first."""
        cursor: str | None = None
        while True:
            page = self._call("GET", "/v1/sessions", query={"cursor": cursor} if cursor else {})
            yield from page["sessions"]
            cursor = page["cursor"]
            if cursor is None:
                return

    def get(self, ref: str) -> JSON:
        """One session."""
        return self._call("GET", _of(ref))

    def delete(self, ref: str) -> JSON:
        """Delete a session and destroy its key."""
        return self._call("DELETE", _of(ref))

    def pause(self, ref: str, *, wait: str | None = "disk") -> JSON:
        """Pause a session and wait until it is that durable."""
        return self._call("POST", f"{_of(ref)}/pause", body={"wait": wait})

    def resume(self, ref: str, *, allow_older: bool = False) -> JSON:
        """Resume a session."""
        return self._call("POST", f"{_of(ref)}/resume", body={"allow_older": allow_older})

    def code(self, ref: str, source: str, *, on_piece: OnPiece, **options: Any) -> JSON:  # noqa: ANN401 - of CodeBody
        """Run Python; how it ended. Output goes to ``on_piece`` while it comes."""
        return self._burst(f"{_of(ref)}/code", {"source": source, **options}, on_piece)

    def shell(self, ref: str, command: str, *, on_piece: OnPiece, **options: Any) -> JSON:  # noqa: ANN401 - of ShellBody
        """Run a command in a persistent shell; how it ended."""
        return self._burst(f"{_of(ref)}/shell", {"command": command, **options}, on_piece)

    def execute(self, ref: str, argv: Iterable[str], *, on_piece: OnPiece, stdin: bytes = b"", **options: Any) -> JSON:  # noqa: ANN401 - of ExecBody
        """Run a process; how it ended."""
        body = {"argv": list(argv), "stdin_base64": base64.b64encode(stdin).decode(), **options}
        return self._burst(f"{_of(ref)}/exec", body, on_piece)

    def interrupt(self, ref: str, *, context: str = "default") -> None:
        """KeyboardInterrupt in a context's running burst."""
        self._call("POST", f"{_of(ref)}/interrupt", body={"context": context})

    @contextmanager
    def reading(self, ref: str, path: str) -> Iterator[tuple[Iterator[bytes], bool]]:
        """A file's bytes, streamed, and whether the session had to be woken for them."""
        with self._failures(), self._http.stream("GET", f"{_of(ref)}/files", params={"path": path}) as answer:
            self._check(answer)
            yield answer.iter_bytes(), answer.headers.get("torpor-woken") == "true"

    def write_file(self, ref: str, path: str, data: Iterable[bytes], *, mode: int = 0o644) -> JSON:
        """Write a whole file, streamed."""
        query = {"path": path, "mode": f"{mode:o}"}
        with self._failures():
            return self._json(self._http.put(f"{_of(ref)}/files", params=query, content=data))

    def templates(self) -> list[JSON]:
        """All templates."""
        found: list[JSON] = self._call("GET", "/v1/templates")["templates"]
        return found

    def store_check(self) -> JSON:
        """Read and authenticate the whole store."""
        return self._call("POST", "/v1/store/check")

    def _call(
        self, method: str, path: str, *, body: JSON | None = None, query: Mapping[str, str] | None = None
    ) -> JSON:
        with self._failures():
            return self._json(self._http.request(method, path, json=body, params=query))

    def _burst(self, path: str, body: JSON, on_piece: OnPiece) -> JSON:
        data = json.dumps(body).encode()
        if len(data) > BODY_BYTES_MAX:
            raise InvalidArgument(
                f"cannot send {len(data) >> 20} MiB: a request holds at most {BODY_BYTES_MAX >> 20} MiB; "
                "copy the data into the session with `torpor cp` and read it from there",
                field="body",
                limit_bytes=BODY_BYTES_MAX,
            )
        headers = {"content-type": "application/json"}
        request = {"content": data, "headers": headers, "params": {"stream": "true"}}
        with self._failures(), self._http.stream("POST", path, **request) as answer:  # type: ignore[arg-type]
            self._check(answer)
            for name, event in _events(answer.iter_lines()):
                if name == "output":
                    on_piece(event["stream"], _piece(event))
                elif name == "result":
                    return event
                elif name == "error":
                    _raise(event)
        raise Unavailable(
            f"cannot tell how it ended: {self._url} closed the stream early; `torpor inspect` says what holds"
        )

    def _json(self, answer: httpx.Response) -> JSON:
        self._check(answer)
        said: JSON = answer.json() if answer.content else {}
        return said

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        answer.read()
        try:
            said = answer.json()
        except ValueError:
            said = None
        if not isinstance(said, dict) or not {"code", "message", "details"} <= said.keys():
            raise Unavailable(
                f"cannot understand {self._url}: it answered {answer.status_code} and is not a torpor server; "
                "check TORPOR_API_URL",
                url=self._url,
            )
        _raise(said)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unavailable(
                f"cannot reach a server at {self._url}: {error}; start it with `torpor up --detach`"
                f"{f' (home: {self._home})' if self._home else ''}, or set TORPOR_API_URL",
                url=self._url,
            ) from error
        except httpx.TransportError as error:
            raise Unavailable(
                f"the connection to {self._url} broke: {error}; `torpor ls` shows what holds, then repeat",
                url=self._url,
                retry_after_s=1.0,
            ) from error


def _of(ref: str) -> str:
    if not ref or ref in {".", ".."} or "/" in ref:
        raise NotFound(f"cannot find a session {ref!r}; `torpor ls` shows yours", session=ref)
    return f"/v1/sessions/{quote(ref, safe='')}"


def _events(lines: Iterator[str]) -> Iterator[tuple[str, JSON]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def _piece(event: JSON) -> bytes | JSON:
    if "data" in event:
        data: JSON = event["data"]
        return data
    if "base64" in event:
        return base64.b64decode(event["base64"])
    text: str = event["text"]
    return text.encode()


def _raise(said: JSON) -> NoReturn:
    raise error_of(said)


def error_of(said: Mapping[str, Any]) -> TorporError:
    """The error that ``{code, message, details}`` tells of; a code of a later version is a plain TorporError."""
    error = error_for(said["code"], said["message"])
    error.details.update(said["details"])
    return error
