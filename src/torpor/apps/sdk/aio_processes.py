"""``processes``, awaited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Unpack

from torpor.apps.sdk import calls
from torpor.apps.sdk.aio_sockets import AsyncSocket
from torpor.apps.sdk.aio_transport import AsyncTransport
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
from torpor.apps.sdk.transport import pieces_of


class AsyncProcess:
    """See ``Process``."""

    def __init__(self, transport: AsyncTransport, ref: str, info: ProcessInfo) -> None:
        self._transport = transport
        self._ref = ref
        self.info = info
        self.pid = info.pid

    def __repr__(self) -> str:
        return f"<torpor process {self.pid}: {' '.join(self.info.argv)}>"

    async def attach(self, *, from_sequence: int = 0) -> AsyncGenerator[ProcessEvent]:
        """See ``Process``."""
        call = calls.process_output(self._ref, self.pid, from_sequence=from_sequence)
        async with aclosing(self._transport.events(call)) as events:
            async for name, said in events:
                yield process_event(name, said)

    async def wait(self) -> int:
        """See ``Process``."""
        async with aclosing(self.attach(from_sequence=self.info.sequence)) as events:
            async for one in events:
                if isinstance(one, ProcessExited):
                    return one.exit_code
        raise AssertionError("a process's events end with its exit")

    async def send_input(self, data: bytes | str | Iterable[bytes], *, close: bool = False) -> int:
        """See ``Process``."""
        call = calls.send_input(self._ref, self.pid, close=close)
        said = await self._transport.json(call, _awaited(pieces_of(data)))
        taken_bytes: int = said["taken_bytes"]
        return taken_bytes

    async def signal(self, number: int, *, group: bool = False) -> None:
        """See ``Process``."""
        await self._transport.json(calls.send_signal(self._ref, self.pid, number, group=group))

    async def resize(self, columns: int, rows: int) -> None:
        """See ``Process``."""
        await self._transport.json(calls.resize(self._ref, self.pid, columns, rows))


class AsyncTerminal:
    """See ``Terminal``: ``async for`` gives what it shows."""

    def __init__(self, far: AsyncSocket, from_sequence: int) -> None:
        self._far = far
        self._messages = far.messages()
        self.state = TerminalState(from_sequence)

    async def begin(self) -> None:
        """Until the server says which process it is."""
        while self.state.process is None:
            self.state.hear(await anext(self._messages))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """See ``Terminal``."""
        async for message in self._messages:
            if shown := self.state.hear(message):
                yield shown

    async def type(self, data: bytes | str) -> None:
        """See ``Terminal``."""
        await self._far.send(data.encode() if isinstance(data, str) else data)

    async def resize(self, columns: int, rows: int) -> None:
        """See ``Terminal``."""
        await self._far.send({"columns": columns, "rows": rows})


class AsyncPort:
    """See ``Port``."""

    def __init__(self, far: AsyncSocket) -> None:
        self._far = far
        self._messages = far.messages()
        self._ended = False

    async def receive(self) -> bytes:
        """See ``Port``."""
        if self._ended:
            return b""
        message = await anext(self._messages, b"")
        if not isinstance(message, bytes) or not message:
            self._ended = True
            return b""
        return message

    async def send(self, data: bytes) -> None:
        """See ``Port``."""
        if data:
            await self._far.send(data)

    async def close_write(self) -> None:
        """See ``Port``."""
        await self._far.send(b"")


class AsyncInside:
    """See ``Inside``."""

    _transport: AsyncTransport
    id: str

    async def start(self, argv: Sequence[str], **options: Unpack[StartOptions]) -> AsyncProcess:
        """See ``Session``."""
        call = calls.start(self.id, start_request(list(argv), options), stdin=options.get("stdin", b""))
        return AsyncProcess(self._transport, self.id, ProcessInfo.of(await self._transport.json(call)))

    async def processes(self) -> list[AsyncProcess]:
        """See ``Session``."""
        said = (await self._transport.json(calls.processes(self.id)))["processes"]
        return [AsyncProcess(self._transport, self.id, ProcessInfo.of(one)) for one in said]

    async def logs(
        self, *, source: str | None = None, follow: bool = False, from_sequence: int = 0
    ) -> AsyncGenerator[LogEntry]:
        """See ``Session``."""
        call = calls.logs(self.id, source=source, follow=follow, from_sequence=from_sequence)
        async with aclosing(self._transport.events(call)) as events:
            async for name, said in events:
                if name == "entry":
                    yield LogEntry.of(said)

    def terminal(self, **options: Unpack[TerminalOptions]) -> AbstractAsyncContextManager[AsyncTerminal]:
        """See ``Session``."""
        return self._terminal(options)

    def port(self, number: int) -> AbstractAsyncContextManager[AsyncPort]:
        """See ``Session``."""
        return self._port(number)

    @asynccontextmanager
    async def _terminal(self, options: TerminalOptions) -> AsyncIterator[AsyncTerminal]:
        async with AsyncSocket.open(self._transport.access, f"{self.id}/terminal", options) as far:
            terminal = AsyncTerminal(far, options.get("from_sequence", 0))
            await terminal.begin()
            yield terminal

    @asynccontextmanager
    async def _port(self, number: int) -> AsyncIterator[AsyncPort]:
        async with AsyncSocket.open(self._transport.access, f"{self.id}/ports/{number}") as far:
            yield AsyncPort(far)


async def _awaited(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
