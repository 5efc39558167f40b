"""ports.guest.Guest over framed bytes. The conversation is docs/formats/wire-v0.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from torpor.adapters.guest.answers import (
    burst_from,
    error_from,
    hello_from,
    notice_fields,
    quiesced_from,
    ready_from,
)
from torpor.adapters.guest.link import Arrival, Call, Link
from torpor.domain.errors import GuestError, InvalidArgument
from torpor.domain.ids import InstanceId
from torpor.ports.clock import Clock
from torpor.ports.engine import Channel
from torpor.ports.guest import (
    BurstResult,
    Cause,
    GuestHello,
    Notice,
    OnOutput,
    Output,
    ProcessSpec,
    QuiesceReport,
    ReadyReport,
    StreamKind,
)
from torpor_wire import MESSAGE_BYTES_MAX, BadMessage, DataChannel, FrameType, Message, integer, number, unpack

GREETING_LIMIT_S = 120.0  # the first greeting of a fresh instance waits for the template's warm-up
_STREAMS = {
    DataChannel.STDOUT: StreamKind.STDOUT,
    DataChannel.STDERR: StreamKind.STDERR,
    DataChannel.DISPLAY: StreamKind.DISPLAY,
}


Value = TypeVar("Value")


class FramedGuest:
    """One connected guest. Make it with FramedDialer. It greets by itself before the first request."""

    def __init__(self, instance: InstanceId, channel: Channel, clock: Clock) -> None:
        self._instance = instance
        self._link = Link(channel, clock)
        self._greeting = asyncio.Lock()

    async def hello(self) -> GuestHello:
        """See ports.guest.Guest."""
        welcome = await self._greet()
        if welcome is not None:
            return _checked(hello_from, welcome)
        return _checked(hello_from, await self._ask({"op": "status"}))

    async def code(
        self,
        source: str,
        *,
        context: str = "default",
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> BurstResult:
        """See ports.guest.Guest. Raises: InvalidArgument beyond 16 MiB."""
        fields = {"op": "code", "context": context, "timeout_s": _limit(timeout_s)}
        return _checked(burst_from, await self._ask(fields, _text_body(source, "source"), on_output))

    async def interrupt(self, *, context: str = "default") -> None:
        """See ports.guest.Guest."""
        await self._ask({"op": "interrupt", "context": context})

    async def shell(
        self, command: str, *, shell: str = "default", timeout_s: float | None = None, on_output: OnOutput | None = None
    ) -> BurstResult:
        """See ports.guest.Guest. Raises: InvalidArgument for a NUL byte or beyond 16 MiB."""
        fields = {"op": "shell", "shell": shell, "timeout_s": _limit(timeout_s)}
        return _checked(burst_from, await self._ask(fields, _text_body(command, "command"), on_output))

    async def execute(self, process: ProcessSpec, *, on_output: OnOutput | None = None) -> BurstResult:
        """See ports.guest.Guest. The pid of a detached process is its result's ``text/plain``."""
        fields = {
            "op": "execute",
            "argv": list(process.argv),
            "env": dict(process.env),
            "cwd": process.cwd,
            "user": process.user,
            "timeout_s": _limit(process.timeout_s),
            "detach": process.detach,
        }
        return _checked(burst_from, await self._ask(fields, process.stdin, on_output))

    async def collect(self, pid: int, *, on_output: OnOutput | None = None) -> BurstResult:
        """What a detached process has written since it was last collected; ``exit_code`` is None while it runs.

        Raises: NotFound.
        """
        return _checked(burst_from, await self._ask({"op": "collect", "pid": pid}, on_output=on_output))

    async def signal(self, pid: int, signal_number: int) -> None:
        """See ports.guest.Guest."""
        await self._ask({"op": "signal", "pid": pid, "signal": signal_number})

    async def read_file(self, path: str) -> AsyncIterator[bytes]:
        """See ports.guest.Guest."""
        call = await self._begin({"op": "read", "path": path})
        call.end_body()
        size = 0
        try:
            while (arrival := await call.next()).message.type is FrameType.DATA:
                size += arrival.count
                yield arrival.message.payload or b""
                call.consumed(arrival.count)
        finally:
            self._link.forget(call, cancel=True)
        if _checked(lambda fields: integer(fields, "size"), _final(arrival.message)) != size:
            raise GuestError(f"cannot read {path!r}: {size} bytes came, and the guest says it sent another number")

    async def write_file(self, path: str, data: AsyncIterator[bytes], *, mode: int = 0o644) -> int:
        """See ports.guest.Guest. An error from ``data`` leaves the file as it was."""
        call = await self._begin({"op": "write", "path": path, "mode": mode})
        try:
            async for piece in data:
                rest = memoryview(piece)
                while rest and (arrival := call.take()) is None:
                    if room := call.window.room_bytes:
                        call.send_body(bytes(rest[:room]))
                        rest = rest[room:]
                    else:
                        await call.arrival()
                if rest:  # the guest has answered already: an error, or a size that is not ours
                    return _size(_final(_require(arrival).message))
            call.end_body()
            return _size(_final((await call.next()).message))
        finally:
            self._link.forget(call, cancel=True)

    async def cpu_s(self) -> float:
        """See ports.guest.Guest."""
        return _checked(lambda fields: number(fields, "cpu_s"), await self._ask({"op": "cpu"}))

    async def quiesce(self, *, timeout_s: float = 5.0) -> QuiesceReport:
        """See ports.guest.Guest. On a time-out the channel stays parked: only ``proceed`` may follow."""
        await self._greet()
        call = self._link.open()
        self._link.send(FrameType.QUIESCE, call.id, {})
        self._link.park()
        try:
            answer = await self._link.within(timeout_s, call, "quiesce")
        finally:
            self._link.forget(call)
        if answer.type is FrameType.ERROR:
            self._link.unpark()  # the guest has let everything go on by itself
        return _checked(quiesced_from, _final(answer, FrameType.QUIESCED))

    async def proceed(self, notice: Notice, *, timeout_s: float = 10.0) -> ReadyReport:
        """See ports.guest.Guest."""
        await self._greet()
        call = self._link.open()
        self._link.send_parked(FrameType.RESUMED, call.id, notice_fields(notice))
        try:
            answer = await self._link.within(timeout_s, call, "proceed")
        finally:
            self._link.forget(call)
        report = _checked(ready_from, _final(answer, FrameType.READY))
        if notice.cause is not Cause.ABORTED and report.generation != notice.generation:
            raise GuestError(f"cannot proceed: the guest is at generation {report.generation}, not {notice.generation}")
        self._link.unpark()
        return report

    async def close(self) -> None:
        """See ports.guest.Guest."""
        await self._link.close()

    async def _greet(self) -> dict[str, Any] | None:
        """Greet once per connection; the WELCOME fields, or None if it had been done."""
        async with self._greeting:
            if self._link.greeted:
                return None
            call = self._link.greet()
            try:
                fields = _final(await self._link.within(GREETING_LIMIT_S, call, "greet"), FrameType.WELCOME)
            finally:
                self._link.forget(call)
            self._link.ids_above(_checked(lambda answer: integer(answer, "id_floor"), fields))
            return fields

    async def _begin(self, fields: Mapping[str, Any]) -> Call:
        await self._greet()
        call = self._link.open()
        try:
            self._link.send(FrameType.REQUEST, call.id, fields)
        except (ValueError, UnicodeEncodeError) as error:
            self._link.forget(call)
            raise InvalidArgument(f"cannot send the request: {error}", field=str(fields["op"])) from error
        return call

    async def _ask(
        self, fields: Mapping[str, Any], body: bytes = b"", on_output: OnOutput | None = None
    ) -> dict[str, Any]:
        """A whole request: body out and output in, each at its own pace; the RESULT fields."""
        call = await self._begin(fields)
        rest, ended = memoryview(body), False
        try:
            while True:
                if not ended and (room := call.window.room_bytes) and rest:
                    call.send_body(bytes(rest[:room]))
                    rest = rest[room:]
                if not ended and not rest:
                    call.end_body()
                    ended = True
                arrival = call.take()
                if arrival is None:
                    await call.arrival()
                elif arrival.message.type is not FrameType.DATA:
                    return _final(arrival.message)
                else:
                    await _hand_on(arrival, on_output)
                    call.consumed(arrival.count)
        finally:
            self._link.forget(call, cancel=True)


class FramedDialer:
    """ports.guest.GuestDialer for agents that speak torpor_wire."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def connect(self, instance: InstanceId, channel: Channel) -> FramedGuest:
        """See ports.guest.GuestDialer. Needs a running event loop."""
        return FramedGuest(instance, channel, self._clock)


async def _hand_on(arrival: Arrival, on_output: OnOutput | None) -> None:
    stream = _STREAMS.get(arrival.message.channel)
    if on_output is not None and stream is not None:
        await on_output(Output(stream, arrival.message.payload or b""))


def _require(arrival: Arrival | None) -> Arrival:
    assert arrival is not None
    return arrival


def _text_body(content: str, field: str) -> bytes:
    try:
        body = content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"cannot send {field}: it is not encodable as UTF-8: {error}", field=field) from error
    if len(body) > MESSAGE_BYTES_MAX:
        raise InvalidArgument(
            f"cannot send {field} of {len(body)} bytes: the limit is {MESSAGE_BYTES_MAX}; write a file and run that",
            field=field,
        )
    return body


def _limit(timeout_s: float | None) -> float | None:
    if timeout_s is not None and not 0 < timeout_s < 1e9:
        raise InvalidArgument(
            f"cannot use {timeout_s!r} as timeout_s: give seconds above 0, or none", field="timeout_s"
        )
    return timeout_s


def _final(message: Message, expected: FrameType = FrameType.RESULT) -> dict[str, Any]:
    """The fields of a call's last message. Raises: what an ERROR says; GuestError for anything else."""
    try:
        fields = unpack(message.payload)
        error = error_from(fields) if message.type is FrameType.ERROR else None
    except BadMessage as bad:
        raise GuestError(f"cannot understand the guest: {bad}") from bad
    if error is not None:
        raise error
    if message.type is not expected:
        raise GuestError(f"cannot understand the guest: {message.type.name} came where {expected.name} was due")
    return fields


def _size(fields: Mapping[str, Any]) -> int:
    return _checked(lambda answer: integer(answer, "size"), fields)


def _checked(parse: Callable[[Mapping[str, Any]], Value], fields: Mapping[str, Any]) -> Value:
    """``parse(fields)``. Raises: GuestError if the guest's answer is not what it should be."""
    try:
        return parse(fields)
    except BadMessage as bad:
        raise GuestError(f"cannot understand the guest: {bad}") from bad
