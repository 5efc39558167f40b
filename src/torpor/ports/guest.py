"""What talks inside: bursts, files, and the resume contract, as the host sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from torpor.domain.ids import InstanceId
from torpor.ports.engine import Channel


class Cause(StrEnum):
    """Why the guest is told to go on."""

    CREATED = "created"
    RESUMED = "resumed"
    FORKED = "forked"
    REBUILT = "rebuilt"
    ABORTED = "aborted"  # the capture failed or was given up; the same instance goes on in place


class StreamKind(StrEnum):
    """Where output of a burst came from."""

    STDOUT = "stdout"
    STDERR = "stderr"
    DISPLAY = "display"  # data is a JSON object: mime type -> content


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of a burst's output, in order."""

    stream: StreamKind
    data: bytes


OnOutput = Callable[[Output], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CodeError:
    """An exception that code raised: a value, not a failure of ours."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True, slots=True)
class BurstResult:
    """How a burst ended. ``exit_code``: of a process or shell command, negative signal number if killed by one.

    ``result``: mime bundle of the last expression's value (``text/plain`` always among it), None if there was none.
    ``dropped_bytes``: output that was thrown away because its bounded buffer was full.
    """

    exit_code: int | None = None
    result: Mapping[str, Any] | None = None
    error: CodeError | None = None
    dropped_bytes: int = 0
    timed_out: bool = False
    execution_count: int | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start. ``detach``: do not wait; its output is kept bounded and it outlives the burst.

    ``user``: a name or a uid in decimal.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str = "root"
    stdin: bytes = b""
    timeout_s: float | None = None
    detach: bool = False


@dataclass(frozen=True, slots=True)
class BusyProcess:
    """A process that used the processor. ``cpu_s``: its own time and its reaped children's, since the last sample."""

    pid: int
    name: str
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Activity:
    """Running totals of a guest's work; a host takes differences. Taking a sample changes none of them.

    ``cpu_s``: processor seconds of all processes but the agent, ended ones included. ``stream_in_bytes`` and
    ``stream_out_bytes``: payload that went into and out of the guest on streams (bursts, files, processes, terminals,
    forwards). ``bursts_count``: code, shell commands and awaited processes that run or queue now.
    ``busiest``: the three that used most processor time since the previous sample, most first; none that used none.
    """

    cpu_s: float
    stream_in_bytes: int
    stream_out_bytes: int
    bursts_count: int
    busiest: tuple[BusyProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Of a pseudo-terminal, in characters; 1 to 10,000 each."""

    columns: int = 80
    rows: int = 24


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that was started by ``start`` or detached, also after its end (the last 64 are remembered).

    Output is numbered by its bytes: ``sequence`` is the number of the next byte, ``oldest_sequence`` of the oldest one
    that is still kept (at most 1 MiB is), so that an ``attach`` from in between loses nothing.
    """

    pid: int
    argv: tuple[str, ...]
    user: str
    terminal: bool
    running: bool
    exit_code: int | None
    started_at_s: float
    sequence: int
    oldest_sequence: int


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """A piece of a process's output. ``sequence``: number of its first byte. A terminal has STDOUT only."""

    sequence: int
    stream: StreamKind
    data: bytes


@dataclass(frozen=True, slots=True)
class OutputLost:
    """``count_bytes`` from ``sequence`` on are not kept any more: the reader was away or too slow."""

    sequence: int
    count_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """The last event of a process, after all its output. ``sequence``: that of the byte that would have been next."""

    sequence: int
    exit_code: int


ProcessEvent = ProcessOutput | OutputLost | ProcessExited


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A piece of the in-guest log. ``source``: ``agent`` or the pid in decimal. ``at_s``: the guest's wall clock.

    ``sequence``: as in ProcessOutput, per source. ``lost_bytes``: what is missing right before it.
    """

    source: str
    at_s: float
    sequence: int
    stream: StreamKind
    data: bytes
    lost_bytes: int = 0


class FileKind(StrEnum):
    """What a path names, links not followed."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """``mode``: permission bits. ``owner``, ``group``: names, or numbers in decimal. ``target``: of a symlink."""

    path: str
    kind: FileKind
    size_bytes: int
    mode: int
    owner: str
    group: str
    modified_at_s: float
    target: str | None = None


@dataclass(frozen=True, slots=True)
class FilePage:
    """Part of a directory, in order of names. ``next_after``: pass it as ``after`` to go on; None at the end."""

    entries: tuple[FileInfo, ...]
    next_after: str | None = None


class FileChange(StrEnum):
    """What happened to a watched path."""

    CREATED = "created"
    WRITTEN = "written"
    REMOVED = "removed"
    MOVED_FROM = "moved_from"
    MOVED_TO = "moved_to"
    ATTRIBUTES = "attributes"


@dataclass(frozen=True, slots=True)
class FileEvent:
    """``dropped_count``: events that are missing right before this one, since they came faster than they were read."""

    change: FileChange
    path: str
    dropped_count: int = 0


class Forward(Protocol):
    """One TCP connection to a port inside. Reads and writes may go on at once, one of each.

    Errors of every method: GuestError (the connection was reset, the session was paused, the guest is gone). After a
    pause the connection is gone on both sides: open another.
    """

    async def read(self) -> bytes:
        """The next bytes, at most 1 MiB; empty when the far side will send no more."""
        ...

    async def write(self, data: bytes) -> None:
        """Send all of it; waits while the far side does not take it."""
        ...

    async def close_write(self) -> None:
        """Tell the far side that no more will come (half close). Idempotent."""
        ...

    async def close(self) -> None:
        """Drop the connection. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class GuestHello:
    """What an agent says of itself when it is greeted.

    ``operations``: the calls it knows; empty if it is too old to say. An unknown one is answered ``Unsupported``.
    """

    agent_version: str
    protocol: int
    pid: int
    python: str
    contexts: tuple[str, ...]
    generation: int
    operations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuiesceReport:
    """The guest is parked: no user instruction runs until ``proceed``. ``unparked``: pids that would not park."""

    took_ms: float
    stopped_count: int
    unparked: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """What the guest is told after a restore, before any user code runs (the RESUMED frame).

    ``entropy``: 32 fresh bytes, distinct per clone. ``hostname`` and ``machine_id`` are the session's own.
    ``wall_time_s``: the host's clock at sending. ``gap_s``: how long it was away, 0 for created.
    """

    session: str
    generation: int
    cause: Cause
    clone: bool
    wall_time_s: float
    gap_s: float
    paused_at_s: float | None
    entropy: bytes
    hostname: str
    machine_id: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """The contract was carried out. ``reseeded``: contexts whose generators were reseeded; ``steps_ms`` by name.

    ``dropped``: what did not survive and was dropped on purpose, one sentence each.
    """

    generation: int
    steps_ms: Mapping[str, float]
    reseeded: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    clock_skew_ms: float = 0.0


class Guest(Protocol):
    """One connected guest. Bursts may run concurrently (one at a time per context or shell; further ones queue).

    Errors of every method: GuestError (refused, gone, malformed answer), DeadlineExceeded, Unsupported (this agent is
    too old for that call; others work). After ``quiesce`` only ``proceed`` may be called, and until then the host
    writes nothing into the channel. Iterators end with GuestError when the session is paused; those of processes and
    logs can be had again from a sequence number. Closing one early (``aclose``) ends its request, nothing else.
    """

    async def hello(self) -> GuestHello:
        """Greet and resynchronise the channel; also after a server restart. Idempotent."""
        ...

    async def code(
        self,
        source: str,
        *,
        context: str = "default",
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> BurstResult:
        """Run Python in a context that keeps its variables. An exception in it is a value: ``error``."""
        ...

    async def interrupt(self, *, context: str = "default") -> None:
        """KeyboardInterrupt in a context's running burst; nothing if it runs none."""
        ...

    async def shell(
        self, command: str, *, shell: str = "default", timeout_s: float | None = None, on_output: OnOutput | None = None
    ) -> BurstResult:
        """Run a command in a persistent shell that keeps its directory and variables."""
        ...

    async def execute(self, process: ProcessSpec, *, on_output: OnOutput | None = None) -> BurstResult:
        """Run a process to its end (or start it, if ``detach``)."""
        ...

    async def signal(self, pid: int, signal_number: int, *, group: bool = False) -> None:
        """Send a signal to a process, or to the process group it leads. Raises: NotFound if there is none."""
        ...

    async def start(
        self, process: ProcessSpec, *, terminal: TerminalSize | None = None, keep_stdin: bool = False
    ) -> ProcessInfo:
        """Start a process that outlives this call; on a pseudo-terminal (``stdin`` is typed into it) if given a size.

        ``keep_stdin``: its input stays open for ``send_input``; a terminal's always does. ``timeout_s`` and ``detach``
        are not looked at. Raises: NotFound (program), InvalidArgument (user, cwd), QuotaExceeded (64 run already).
        """
        ...

    async def processes(self) -> tuple[ProcessInfo, ...]:
        """What was started or detached, in order of start, ended ones too."""
        ...

    def attach(self, pid: int, *, from_sequence: int | None = 0) -> AsyncGenerator[ProcessEvent, None]:
        """A process's output from a sequence number on (None: from now on), then as it comes, then its exit.

        Any number may be attached at once, each at its own pace; none ever holds up the process. What is kept no more
        is told as OutputLost. Raises: NotFound, InvalidArgument (a sequence that was not reached yet).
        """
        ...

    async def send_input(self, pid: int, data: AsyncIterator[bytes], *, close: bool = False) -> int:
        """Feed its input, waiting while it does not read; ``close`` then ends it. The number of bytes it was given.

        A terminal's input is not closed but told end-of-file (Ctrl-D). Raises: NotFound, Conflict (its input is closed,
        or another call is feeding it).
        """
        ...

    async def resize(self, pid: int, size: TerminalSize) -> None:
        """Change a terminal's size; its foreground is told. Raises: NotFound, InvalidArgument (it has no terminal)."""
        ...

    def logs(
        self, *, source: str | None = None, follow: bool = False, from_sequence: int = 0
    ) -> AsyncGenerator[LogEntry, None]:
        """The agent's log and the output of started processes, oldest first; ``follow``: then as it comes, for ever.

        ``source`` and ``from_sequence``: of one source only. Bounded; it survives pauses. Raises: NotFound (source).
        """
        ...

    async def forward(self, port: int, *, host: str = "127.0.0.1") -> Forward:
        """Connect to a TCP port inside, through the channel: no network is needed.

        Raises: NotFound (nothing listens there), InvalidArgument, QuotaExceeded.
        """
        ...

    async def list_files(self, path: str, *, limit: int = 1000, after: str | None = None) -> FilePage:
        """A directory's entries after the name ``after``, at most ``limit`` (1 to 10,000).

        Raises: NotFound, InvalidArgument (not a directory).
        """
        ...

    async def stat_file(self, path: str) -> FileInfo:
        """Raises: NotFound."""
        ...

    async def make_directory(self, path: str, *, mode: int = 0o755, user: str | None = None) -> bool:
        """Make a directory with its parents, owned by ``user``; False if it was there.

        Raises: InvalidArgument (something else is there, no such user), StorageFull.
        """
        ...

    async def move_file(self, path: str, to: str) -> None:
        """Rename, over a file or an empty directory that is there; the parents of ``to`` are made.

        Raises: NotFound, InvalidArgument.
        """
        ...

    async def remove_file(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, link, or directory (with what is in it, if ``recursive``).

        Raises: NotFound, InvalidArgument (a directory that is not empty).
        """
        ...

    def watch_files(self, path: str, *, recursive: bool = False) -> AsyncGenerator[FileEvent, None]:
        """Changes in a directory, from the first ``anext`` on; never ends by itself but with the directory.

        At most 4,096 events wait to be read; further ones are dropped and counted. Raises: NotFound, InvalidArgument.
        """
        ...

    def read_file(self, path: str) -> AsyncIterator[bytes]:
        """The file's bytes, streamed with flow control. Raises: NotFound, InvalidArgument (a directory)."""
        ...

    async def write_file(
        self, path: str, data: AsyncIterator[bytes], *, mode: int = 0o644, user: str | None = None
    ) -> int:
        """Write a whole file (parents made, replaced atomically); the number of bytes. Raises: StorageFull.

        ``user``: its owner; without, that of the file it replaces, else root.
        """
        ...

    async def cpu_s(self) -> float:
        """CPU seconds that processes in the guest have used, without the agent itself."""
        ...

    async def activity(self) -> Activity:
        """Totals for idle detection. Cheap, and counts neither itself nor the agent."""
        ...

    async def quiesce(self, *, timeout_s: float = 5.0) -> QuiesceReport:
        """Park all user code; on return nothing runs and nothing is unread in either direction."""
        ...

    async def proceed(self, notice: Notice, *, timeout_s: float = 10.0) -> ReadyReport:
        """Carry out the resume contract, then let user code go on. Fail-closed: raises GuestError rather than go on."""
        ...

    async def close(self) -> None:
        """Let go of the channel; pending bursts end with GuestError. Idempotent."""
        ...


class GuestDialer(Protocol):
    """Makes a Guest of an instance's channel."""

    def connect(self, instance: InstanceId, channel: Channel) -> Guest:
        """Start reading ``channel``. Nothing is sent yet."""
        ...
