"""What talks inside: bursts, files, and the resume contract, as the host sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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
    """A process to start. ``detach``: do not wait; its output is kept bounded and it outlives the burst."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str = "root"
    stdin: bytes = b""
    timeout_s: float | None = None
    detach: bool = False


@dataclass(frozen=True, slots=True)
class GuestHello:
    """What an agent says of itself when it is greeted."""

    agent_version: str
    protocol: int
    pid: int
    python: str
    contexts: tuple[str, ...]
    generation: int


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

    Errors of every method: GuestError (refused, gone, malformed answer), DeadlineExceeded. After ``quiesce`` only
    ``proceed`` may be called, and until then the host writes nothing into the channel.
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

    async def signal(self, pid: int, signal_number: int) -> None:
        """Send a signal. Raises: NotFound if there is no such process."""
        ...

    def read_file(self, path: str) -> AsyncIterator[bytes]:
        """The file's bytes, streamed with flow control. Raises: NotFound, InvalidArgument (a directory)."""
        ...

    async def write_file(self, path: str, data: AsyncIterator[bytes], *, mode: int = 0o644) -> int:
        """Write a whole file (parents made, replaced atomically); the number of bytes. Raises: StorageFull."""
        ...

    async def cpu_s(self) -> float:
        """CPU seconds that processes in the guest have used, without the agent itself."""
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
