"""Processes, terminals, logs and ports of a session: what ``Session`` has beside bursts and files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Unpack

from torpor.apps.sdk import calls
from torpor.apps.sdk.inside import (
    LogEntry,
    ProcessEvent,
    ProcessExited,
    ProcessInfo,
    StartOptions,
    TerminalOptions,
    TerminalState,
    process_event,
    start_request,
)
from torpor.apps.sdk.sockets import Socket
from torpor.apps.sdk.transport import Transport, pieces_of


class Process:
    """A process of a session. It lives on across pauses; every call wakes the session."""

    def __init__(self, transport: Transport, ref: str, info: ProcessInfo) -> None:
        self._transport = transport
        self._ref = ref
        self.info = info
        self.pid = info.pid

    def __repr__(self) -> str:
        return f"<torpor process {self.pid}: {' '.join(self.info.argv)}>"

    def attach(self, *, from_sequence: int = 0) -> Iterator[ProcessEvent]:
        """Its output from there on, then as it comes, then its exit.

        A pause of the session ends this with GuestError or Conflict: attach again from the next sequence number.
        """
        call = calls.process_output(self._ref, self.pid, from_sequence=from_sequence)
        for name, said in self._transport.events(call):
            yield process_event(name, said)

    def wait(self) -> int:
        """Until it ends; its exit code. Raises: as ``attach``, when the session is paused."""
        sequence = self.info.sequence
        for one in self.attach(from_sequence=sequence):
            if isinstance(one, ProcessExited):
                return one.exit_code
        raise AssertionError("a process's events end with its exit")

    def send_input(self, data: bytes | str | Iterable[bytes], *, close: bool = False) -> int:
        """Feed its input, waiting while it does not read; the number of bytes it took. ``close``: then end it."""
        said = self._transport.json(calls.send_input(self._ref, self.pid, close=close), pieces_of(data))
        taken_bytes: int = said["taken_bytes"]
        return taken_bytes

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to it, or to the group it leads."""
        self._transport.json(calls.send_signal(self._ref, self.pid, number, group=group))

    def resize(self, columns: int, rows: int) -> None:
        """Change its terminal's size. Raises: InvalidArgument if it has none."""
        self._transport.json(calls.resize(self._ref, self.pid, columns, rows))


class Terminal:
    """A terminal's connection. Iterating gives what it shows, until the process ends or the session is paused.

    ``state.process.pid`` and ``state.sequence`` are what another ``Session.terminal`` attaches again with.
    """

    def __init__(self, far: Socket, from_sequence: int) -> None:
        self._far = far
        self._messages = iter(far)
        self.state = TerminalState(from_sequence)
        while self.state.process is None:
            self.state.hear(next(self._messages))

    def __iter__(self) -> Iterator[bytes]:
        """Raises: Conflict or GuestError when the session is paused."""
        for message in self._messages:
            if shown := self.state.hear(message):
                yield shown

    def type(self, data: bytes | str) -> None:
        """As a keyboard."""
        self._far.send(data.encode() if isinstance(data, str) else data)

    def resize(self, columns: int, rows: int) -> None:
        """The foreground program is told."""
        self._far.send({"columns": columns, "rows": rows})


class Port:
    """One TCP connection to a port inside. A pause of the session ends it: connect again."""

    def __init__(self, far: Socket) -> None:
        self._far = far
        self._messages = iter(far)
        self._ended = False

    def receive(self) -> bytes:
        """The next bytes; empty at the end. Raises: NotFound if nobody listens there; GuestError, Unavailable."""
        if self._ended:
            return b""
        message = next(self._messages, b"")
        if not isinstance(message, bytes) or not message:
            self._ended = True
            return b""
        return message

    def send(self, data: bytes) -> None:
        """Raises: Unavailable if the connection is gone."""
        if data:
            self._far.send(data)

    def close_write(self) -> None:
        """Tell the far side that no more will come."""
        self._far.send(b"")


class Inside:
    """The part of ``Session`` about what runs inside."""

    _transport: Transport
    id: str

    def start(self, argv: Sequence[str], **options: Unpack[StartOptions]) -> Process:
        """Start a process that outlives this call. Raises: NotFound (program), InvalidArgument (user, cwd)."""
        call = calls.start(self.id, start_request(list(argv), options), stdin=options.get("stdin", b""))
        return Process(self._transport, self.id, ProcessInfo.of(self._transport.json(call)))

    def processes(self) -> list[Process]:
        """What was started or detached, in order of start, ended ones too."""
        said = self._transport.json(calls.processes(self.id))["processes"]
        return [Process(self._transport, self.id, ProcessInfo.of(one)) for one in said]

    def logs(self, *, source: str | None = None, follow: bool = False, from_sequence: int = 0) -> Iterator[LogEntry]:
        """What the agent and started processes wrote; with ``follow`` as it comes, for ever."""
        call = calls.logs(self.id, source=source, follow=follow, from_sequence=from_sequence)
        for name, said in self._transport.events(call):
            if name == "entry":
                yield LogEntry.of(said)

    def terminal(self, **options: Unpack[TerminalOptions]) -> AbstractContextManager[Terminal]:
        """A new terminal, or with ``pid`` one to attach to again. Leaving the block leaves it running."""
        return self._terminal(options)

    def port(self, number: int) -> AbstractContextManager[Port]:
        """A TCP connection to a port inside, through the channel: the session needs no network for it."""
        return self._port(number)

    @contextmanager
    def _terminal(self, options: TerminalOptions) -> Iterator[Terminal]:
        with Socket.open(self._transport.access, f"{self.id}/terminal", options) as far:
            yield Terminal(far, options.get("from_sequence", 0))

    @contextmanager
    def _port(self, number: int) -> Iterator[Port]:
        with Socket.open(self._transport.access, f"{self.id}/ports/{number}") as far:
            yield Port(far)
