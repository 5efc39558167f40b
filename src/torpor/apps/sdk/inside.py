"""What goes on inside a session beside bursts, as values: processes, terminals, logs, changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from torpor.apps.sdk import answers
from torpor.apps.sdk.results import Resumed, resumed_of

JSON = dict[str, Any]


class StartOptions(TypedDict, total=False):
    """Of a process. ``terminal``: its columns and rows, if it is to have one. ``keep_stdin``: more input may follow."""

    env: Mapping[str, str]
    cwd: str
    user: str
    stdin: bytes
    terminal: tuple[int, int]
    keep_stdin: bool


class TerminalOptions(TypedDict, total=False):
    """``argv``: a login shell unless given. ``pid``, ``from_sequence``: attach to one again, where it was."""

    argv: tuple[str, ...] | list[str]
    cwd: str
    user: str
    term: str
    columns: int
    rows: int
    pid: int
    from_sequence: int


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that was started or detached, also after its end.

    ``sequence``: number of the next byte of its output; ``oldest_sequence``: of the oldest one that is still kept.
    """

    pid: int
    argv: tuple[str, ...]
    user: str
    terminal: bool
    running: bool
    exit_code: int | None
    started_at: datetime
    sequence: int
    oldest_sequence: int

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> ProcessInfo:
        """Of the API's JSON."""
        given = {**said, "argv": tuple(said["argv"]), "started_at": datetime.fromisoformat(said["started_at"])}
        return cls(**{name: given[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """A piece of a process's output. ``sequence``: number of its first byte. A terminal has ``stdout`` only."""

    sequence: int
    stream: str
    data: bytes


@dataclass(frozen=True, slots=True)
class OutputLost:
    """``lost_bytes`` from ``sequence`` on are not kept any more."""

    sequence: int
    lost_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """The last event, after all output. ``exit_code``: negative signal number if killed by one."""

    sequence: int
    exit_code: int


ProcessEvent = ProcessOutput | OutputLost | ProcessExited


def process_event(name: str, said: Mapping[str, Any]) -> ProcessEvent:
    """Of the API's event."""
    if name == "output":
        return ProcessOutput(said["sequence"], said["stream"], answers.data_of(said))
    if name == "lost":
        return OutputLost(said["sequence"], said["lost_bytes"])
    return ProcessExited(said["sequence"], said["exit_code"])


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A piece of the log. ``source``: ``agent`` or a pid. ``lost_bytes``: what is missing right before it."""

    source: str
    at: datetime
    sequence: int
    stream: str
    data: bytes
    lost_bytes: int

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> LogEntry:
        """Of the API's event."""
        at, data = datetime.fromisoformat(said["at"]), answers.data_of(said)
        return cls(said["source"], at, said["sequence"], said["stream"], data, said["lost_bytes"])

    @property
    def text(self) -> str:
        """As text; what is not UTF-8 is replaced."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class FileChange:
    """``change``: created, written, removed, moved_from, moved_to, attributes. ``dropped_count``: missing before it."""

    change: str
    path: str
    dropped_count: int


class TerminalState:
    """What a terminal's connection has said so far. ``sequence``: of the next byte, to attach again from there."""

    def __init__(self, from_sequence: int) -> None:
        self.sequence = from_sequence
        self.process: ProcessInfo | None = None
        self.resumed: Resumed | None = None
        self.exit_code: int | None = None

    def hear(self, message: bytes | JSON) -> bytes:
        """Take a message; what it shows."""
        if isinstance(message, bytes):
            self.sequence += len(message)
            return message
        if "process" in message:
            self.process = ProcessInfo.of(message["process"])
            self.resumed = resumed_of(message["resumed"])
        elif "lost_bytes" in message:
            self.sequence += message["lost_bytes"]
        elif "exit_code" in message:
            self.exit_code = message["exit_code"]
        return b""


def start_request(argv: list[str], options: Mapping[str, Any]) -> JSON:
    """The options of ``start`` as the fields of ``StartBody``, but ``stdin``."""
    request = {"argv": argv, **{name: value for name, value in options.items() if name != "stdin"}}
    if "terminal" in options:
        columns, rows = options["terminal"]
        request["terminal"] = {"columns": columns, "rows": rows}
    return request
