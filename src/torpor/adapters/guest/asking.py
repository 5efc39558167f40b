"""Requests over a link: greeting, bodies out, answers in. What is asked is the business of its subclasses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from torpor.adapters.guest.answers import error_from
from torpor.adapters.guest.link import Arrival, Call, Link
from torpor.domain.errors import GuestError, InvalidArgument
from torpor.domain.ids import InstanceId
from torpor.ports.clock import Clock
from torpor.ports.engine import Channel
from torpor.ports.guest import OnOutput, Output, StreamKind
from torpor_wire import MESSAGE_BYTES_MAX, BadMessage, DataChannel, FrameType, Message, agreed, integer, unpack

GREETING_LIMIT_S = 120.0  # the first greeting of a fresh instance waits for the template's warm-up
STREAMS = {
    DataChannel.STDOUT: StreamKind.STDOUT,
    DataChannel.STDERR: StreamKind.STDERR,
    DataChannel.DISPLAY: StreamKind.DISPLAY,
}

Value = TypeVar("Value")


class Asker:
    """One connected guest's link. It greets by itself before the first request."""

    def __init__(self, instance: InstanceId, channel: Channel, clock: Clock) -> None:
        self._instance = instance
        self._link = Link(channel, clock)
        self._greeting = asyncio.Lock()

    async def _greet(self) -> dict[str, Any] | None:
        """Greet once per connection; the WELCOME fields, or None if it had been done."""
        async with self._greeting:
            if self._link.greeted:
                return None
            call = self._link.greet()
            try:
                fields = final(await self._link.within(GREETING_LIMIT_S, call, "greet"), FrameType.WELCOME)
            finally:
                self._link.forget(call)
            self._link.agree(checked(agreed, fields))
            self._link.ids_above(checked(lambda answer: integer(answer, "id_floor"), fields))
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
                    call.send_body(rest[:room])
                    rest = rest[room:]
                if not ended and not rest:
                    call.end_body()
                    ended = True
                arrival = call.take()
                if arrival is None:
                    await call.arrival()
                elif arrival.message.type is not FrameType.DATA:
                    return final(arrival.message)
                else:
                    await hand_on(arrival, on_output)
                    call.consumed(arrival.count)
        finally:
            self._link.forget(call, cancel=True)

    async def _stream(self, fields: Mapping[str, Any]) -> AsyncGenerator[Message, None]:
        """The DATA of a request without a body, acknowledged as the next is asked for; the answer comes last."""
        call = await self._begin(fields)
        call.end_body()
        try:
            while (arrival := await call.next()).message.type is FrameType.DATA:
                yield arrival.message
                call.consumed(arrival.count)
        finally:
            self._link.forget(call, cancel=True)
        yield arrival.message

    async def _pour(self, fields: Mapping[str, Any], data: AsyncIterator[bytes]) -> dict[str, Any]:
        """A request whose body is ``data``; the RESULT fields, which may come before all of it was sent."""
        call = await self._begin(fields)
        try:
            async for piece in data:
                if (arrival := await send_all(call, piece)) is not None:
                    return final(arrival.message)
            call.end_body()
            return final((await call.next()).message)
        finally:
            self._link.forget(call, cancel=True)


async def send_all(call: Call, piece: bytes) -> Arrival | None:
    """Send a piece of body as there is room for it; what the guest has answered meanwhile, if it has."""
    rest = memoryview(piece)
    while rest:
        if (arrival := call.take()) is not None:
            return arrival
        if room := call.window.room_bytes:
            call.send_body(rest[:room])
            rest = rest[room:]
        else:
            await call.arrival()
    return None


async def hand_on(arrival: Arrival, on_output: OnOutput | None) -> None:
    """Give output to whoever wants it. Raises: GuestError for a display that is none."""
    stream = STREAMS.get(arrival.message.channel)
    if stream is StreamKind.DISPLAY:
        try:
            json.loads(arrival.message.payload or b"")
        except (ValueError, RecursionError) as error:
            raise GuestError(f"cannot understand the guest: a display is not JSON: {error}") from error
    if on_output is not None and stream is not None:
        await on_output(Output(stream, arrival.message.payload or b""))


def text_body(content: str, field: str) -> bytes:
    """A body of text. Raises: InvalidArgument if it is not encodable or too long."""
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


def limit(timeout_s: float | None) -> float | None:
    """A time-out that can be sent. Raises: InvalidArgument."""
    if timeout_s is not None and not 0 < timeout_s < 1e9:
        raise InvalidArgument(
            f"cannot use {timeout_s!r} as timeout_s: give seconds above 0, or none", field="timeout_s"
        )
    return timeout_s


def final(message: Message, expected: FrameType = FrameType.RESULT) -> dict[str, Any]:
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


def size_of(fields: Mapping[str, Any]) -> int:
    """The number of bytes that the guest took or gave. Raises: GuestError."""
    return checked(lambda answer: integer(answer, "size"), fields)


def checked(parse: Callable[[Mapping[str, Any]], Value], fields: Mapping[str, Any]) -> Value:
    """``parse(fields)``. Raises: GuestError if the guest's answer is not what it should be."""
    try:
        return parse(fields)
    except BadMessage as bad:
        raise GuestError(f"cannot understand the guest: {bad}") from bad
