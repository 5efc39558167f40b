"""What a burst gave, as people and notebooks want to see it. A program that failed is a value, not an exception."""

from __future__ import annotations

import codecs
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypedDict

JSON = dict[str, Any]
Bundle = Mapping[str, Any]
"""Mime type to content, as Jupyter has it: pictures in base64."""

_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class Listeners(TypedDict, total=False):
    """Called with output while it comes. The asynchronous client awaits what they return, if it can be awaited."""

    on_stdout: Callable[[str], object]
    on_stderr: Callable[[str], object]
    on_display: Callable[[Bundle], object]


@dataclass(frozen=True, slots=True)
class CodeError:
    """An exception that the code raised."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The session was paused before: how, and after how long, it came back. ``dropped``: what was not kept.

    ``outcome``: what of it came back (docs/concepts.md); ``stepped_down``: why not more.
    """

    cause: str
    gap_s: float
    tier: str
    generation: int
    outcome: str = "resumed"
    stepped_down: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    timings_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """How a burst ended. ``text``: the last expression's value; ``data``: all its forms; ``displays``: what it showed.

    ``exit_code``: of a shell command or process, negative signal number if killed by one. ``stdout_bytes`` are exact;
    ``stdout`` replaces what is not UTF-8. ``dropped_bytes``: output thrown away because a bounded buffer was full.
    """

    text: str | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    error: CodeError | None
    exit_code: int | None
    data: Bundle
    displays: tuple[Bundle, ...]
    timed_out: bool
    dropped_bytes: int
    execution_count: int | None
    cwd: str | None
    resumed: Resumed | None
    timings_ms: Mapping[str, float]

    @property
    def ok(self) -> bool:
        """True if nothing was raised, no time ran out and the exit code is 0, where there is one."""
        return self.error is None and not self.timed_out and not self.exit_code

    @property
    def stdout(self) -> str:
        """What was written, as text."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """What was written, as text."""
        return self.stderr_bytes.decode(errors="replace")

    def __str__(self) -> str:
        parts = [self.stdout, self.stderr, *(str(bundle.get("text/plain", "")) for bundle in self.displays)]
        parts += [self.text or "", self.error.traceback if self.error else ""]
        return "\n".join(part.rstrip("\n") for part in parts if part)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> JSON:
        """For notebooks: a lone value or display in all its forms, else everything one below the other.

        The session's HTML is shown as it is: who shows it in a notebook trusts what ran in the session.
        """
        del include, exclude
        shown = [*self.displays, *([self.data] if self.data else [])]
        if len(shown) == 1 and not (self.stdout_bytes or self.stderr_bytes or self.error):
            return dict(shown[0])
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        """For notebooks that ask for nothing else."""
        parts = [_preformatted(self.stdout), _preformatted(self.stderr), *(_shown(one) for one in self.displays)]
        parts += [_shown(self.data)] if self.data else []
        parts += [_preformatted(self.error.traceback)] if self.error else []
        return "\n".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What the server says of a session; ``raw`` is all of it."""

    id: str
    name: str | None
    status: str
    durability: str | None
    generation: int
    template: str
    created_at: datetime
    paused_at: datetime | None
    metadata: Mapping[str, str]
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> SessionInfo:
        """Of the API's JSON."""
        paused_at = said["paused_at"]
        return cls(
            id=said["id"],
            name=said["name"],
            status=said["status"],
            durability=said["durability"],
            generation=said["generation"],
            template=said["template"],
            created_at=datetime.fromisoformat(said["created_at"]),
            paused_at=datetime.fromisoformat(paused_at) if paused_at else None,
            metadata=said["metadata"],
            raw=said,
        )


@dataclass(frozen=True, slots=True)
class Token:
    """A key that may use one session only, until it expires or the session is deleted."""

    token: str = field(repr=False)
    session: str
    expires_at: datetime

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Token:
        """Of the API's JSON."""
        return cls(said["token"], said["session"], datetime.fromisoformat(said["expires_at"]))


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What a path names. ``kind``: file, directory, symlink, other. ``mode``: permission bits. ``target``: a link's."""

    path: str
    kind: str
    size_bytes: int
    mode: int
    owner: str
    group: str
    modified_at: datetime
    target: str | None = None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> FileInfo:
        """Of the API's JSON."""
        given = {**said, "mode": int(said["mode"], 8), "modified_at": datetime.fromisoformat(said["modified_at"])}
        return cls(**{name: given[name] for name in cls.__slots__})


class Gathering:
    """Keeps a burst's output, and says whom to call with each piece."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._kept: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._displays: list[Bundle] = []
        decoder = codecs.getincrementaldecoder("utf-8")
        self._text = {name: decoder(errors="replace") for name in self._kept}

    def take(self, stream: str, piece: bytes | JSON) -> object:
        """Keep a piece and tell its listener; what the listener returned."""
        if isinstance(piece, dict):
            self._displays.append(piece)
            shown = self._listeners.get("on_display")
            return shown(piece) if shown else None
        self._kept[stream].append(piece)
        name: Literal["on_stdout", "on_stderr"] = "on_stdout" if stream == "stdout" else "on_stderr"
        listener = self._listeners.get(name)
        if listener is None:
            return None
        text = self._text[stream].decode(piece)  # a character cut in two by a piece's edge comes with the next piece
        return listener(text) if text else None

    def result(self, said: JSON) -> Result:
        """With how it ended."""
        data = said["result"] or {}
        error, resumed = said["error"], said["resumed"]
        return Result(
            text=data.get("text/plain"),
            stdout_bytes=b"".join(self._kept["stdout"]),
            stderr_bytes=b"".join(self._kept["stderr"]),
            error=CodeError(error["name"], error["value"], error["traceback"]) if error else None,
            exit_code=said["exit_code"],
            data=data,
            displays=tuple(self._displays),
            timed_out=said["timed_out"],
            dropped_bytes=said["dropped_bytes"],
            execution_count=said["execution_count"],
            cwd=said["cwd"],
            resumed=resumed_of(resumed),
            timings_ms=said["timings_ms"],
        )


def resumed_of(said: Mapping[str, Any] | None) -> Resumed | None:
    """Of the API's JSON."""
    if not said:
        return None
    return Resumed(
        cause=said["cause"],
        gap_s=said["gap_s"],
        tier=said["tier"],
        generation=said["generation"],
        outcome=said["outcome"],
        stepped_down=tuple(said["stepped_down"]),
        dropped=tuple(said["dropped"]),
        timings_ms=said["timings_ms"],
    )


def _preformatted(text: str) -> str:
    return f"<pre>{html.escape(text.rstrip())}</pre>" if text.strip() else ""


def _shown(bundle: Bundle) -> str:
    if "text/html" in bundle:
        return str(bundle["text/html"])
    if "image/svg+xml" in bundle:
        return str(bundle["image/svg+xml"])
    for mime in _PICTURES:
        if mime in bundle:
            return f'<img src="data:{mime};base64,{html.escape("".join(str(bundle[mime]).split()))}">'
    return _preformatted(str(bundle.get("text/plain", "")))
