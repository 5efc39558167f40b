"""Processes and terminals of a guest that outlive a call, and its log, as ports.guest.Guest has them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from torpor.adapters.guest.answers import event_from, log_entry_from, process_from, processes_from
from torpor.adapters.guest.asking import STREAMS, Asker, checked, final, size_of
from torpor.domain.errors import GuestError
from torpor.ports.guest import (
    LogEntry,
    OutputLost,
    ProcessEvent,
    ProcessExited,
    ProcessInfo,
    ProcessOutput,
    ProcessSpec,
    TerminalSize,
)
from torpor_wire import DataChannel, FrameType, Message, integer


class FramedProcesses(Asker):
    """Calls about processes."""

    async def signal(self, pid: int, signal_number: int, *, group: bool = False) -> None:
        """See ports.guest.Guest."""
        await self._ask({"op": "signal", "pid": pid, "signal": signal_number, "group": group})

    async def start(
        self, process: ProcessSpec, *, terminal: TerminalSize | None = None, keep_stdin: bool = False
    ) -> ProcessInfo:
        """See ports.guest.Guest."""
        fields: dict[str, Any] = {
            "op": "start",
            "argv": list(process.argv),
            "env": dict(process.env),
            "cwd": process.cwd,
            "user": process.user,
            "keep_stdin": keep_stdin,
            "terminal": None if terminal is None else {"columns": terminal.columns, "rows": terminal.rows},
        }
        return checked(process_from, await self._ask(fields, process.stdin))

    async def processes(self) -> tuple[ProcessInfo, ...]:
        """See ports.guest.Guest."""
        return checked(processes_from, await self._ask({"op": "processes"}))

    async def attach(self, pid: int, *, from_sequence: int | None = 0) -> AsyncGenerator[ProcessEvent, None]:
        """See ports.guest.Guest."""
        sequence = 0
        async with aclosing(self._stream({"op": "attach", "pid": pid, "sequence": from_sequence})) as messages:
            async for message in messages:
                if message.type is not FrameType.DATA:
                    yield ProcessExited(sequence, checked(_exit_code, final(message)))
                elif message.channel is DataChannel.EVENT:
                    reached = checked(_sequence, event_from(message))
                    lost_from, sequence = max(from_sequence or 0, sequence), reached
                    if reached > lost_from and from_sequence is not None:
                        yield OutputLost(lost_from, reached - lost_from)
                    from_sequence = from_sequence if from_sequence is not None else reached
                elif stream := STREAMS.get(message.channel):
                    data = message.payload or b""
                    sequence += len(data)
                    yield ProcessOutput(sequence - len(data), stream, data)

    async def send_input(self, pid: int, data: AsyncIterator[bytes], *, close: bool = False) -> int:
        """See ports.guest.Guest."""
        return size_of(await self._pour({"op": "input", "pid": pid, "close": close}, data))

    async def resize(self, pid: int, size: TerminalSize) -> None:
        """See ports.guest.Guest."""
        await self._ask({"op": "resize", "pid": pid, "columns": size.columns, "rows": size.rows})

    async def logs(
        self, *, source: str | None = None, follow: bool = False, from_sequence: int = 0
    ) -> AsyncGenerator[LogEntry, None]:
        """See ports.guest.Guest."""
        fields = {"op": "logs", "source": source, "follow": follow, "sequence": from_sequence}
        head: dict[str, Any] | None = None
        async with aclosing(self._stream(fields)) as messages:
            async for message in messages:
                if message.type is not FrameType.DATA:
                    final(message)
                elif message.channel is DataChannel.EVENT:
                    head = event_from(message)
                else:
                    yield _entry(head, message)
                    head = _after(head, message)


def _exit_code(fields: Mapping[str, Any]) -> int:
    return integer(fields, "exit_code")


def _sequence(fields: Mapping[str, Any]) -> int:
    return integer(fields, "sequence")


def _entry(head: dict[str, Any] | None, message: Message) -> LogEntry:
    stream = STREAMS.get(message.channel)
    if head is None or stream is None:
        raise GuestError("cannot understand the guest: a piece of its log has no head")
    return checked(lambda fields: log_entry_from(fields, stream, message.payload or b""), head)


def _after(head: dict[str, Any] | None, message: Message) -> dict[str, Any]:
    """The head of what follows a piece, should the entry go on in another one."""
    head = head or {}
    return {**head, "sequence": head.get("sequence", 0) + len(message.payload or b""), "lost_bytes": 0}
