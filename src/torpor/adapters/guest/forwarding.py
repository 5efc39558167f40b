"""TCP connections to ports inside, over the channel."""

from __future__ import annotations

import asyncio

from torpor.adapters.guest.answers import event_from
from torpor.adapters.guest.asking import Asker, final
from torpor.adapters.guest.link import Arrival, Call, Link
from torpor.domain.errors import GuestError, TorporError
from torpor_wire import DataChannel, FrameType


class FramedForwards(Asker):
    """Calls about ports."""

    async def forward(self, port: int, *, host: str = "127.0.0.1") -> FramedForward:
        """See ports.guest.Guest."""
        call = await self._begin({"op": "forward", "port": port, "host": host})
        try:
            arrival = await call.next()
            if arrival.message.type is not FrameType.DATA:
                final(arrival.message)
                raise GuestError(f"cannot forward to port {port}: the guest ended the connection before it began")
            call.consumed(arrival.count)
        except (TorporError, asyncio.CancelledError):
            self._link.forget(call, cancel=True)
            raise
        return FramedForward(self._link, call)


class FramedForward:
    """See ports.guest.Forward. Made by ``forward``."""

    def __init__(self, link: Link, call: Call) -> None:
        self._link = link
        self._call = call
        self._ended = False  # the far side sends no more
        self._closed_write = False
        self._error: TorporError | None = None
        self._unacknowledged = 0

    async def read(self) -> bytes:
        """See ports.guest.Forward."""
        self._acknowledge()
        while not self._ended:
            arrival = await self._next()
            if arrival.message.type is not FrameType.DATA:
                self._end(arrival)
            elif arrival.message.channel is DataChannel.EVENT:
                self._ended = event_from(arrival.message).get("state") == "ended"
                self._call.consumed(arrival.count)
            else:
                self._unacknowledged = arrival.count
                return arrival.message.payload or b""
        if self._error is not None:
            raise self._error
        return b""

    async def write(self, data: bytes) -> None:
        """See ports.guest.Forward."""
        if self._closed_write:
            raise GuestError("cannot write to the forward: its writing side was closed")
        rest = memoryview(data)
        while rest:
            self._require_open()
            if room := self._call.window.room_bytes:
                self._call.send_body(rest[:room])
                rest = rest[room:]
            else:
                await self._call.credit()

    async def close_write(self) -> None:
        """See ports.guest.Forward."""
        if not self._closed_write and not self._call.ended:
            self._closed_write = True
            self._call.end_body()

    async def close(self) -> None:
        """See ports.guest.Forward."""
        self._closed_write = True
        self._link.forget(self._call, cancel=True)
        self._call.fail(GuestError("cannot use the forward: it was closed"))

    def _require_open(self) -> None:
        if self._call.ended:
            raise self._error or self._call.error or GuestError("cannot write to the forward: the far side has gone")

    async def _next(self) -> Arrival:
        try:
            return await self._call.next()
        except TorporError as error:
            self._error = error
            raise

    def _end(self, arrival: Arrival) -> None:
        self._ended = True
        try:
            final(arrival.message)
        except TorporError as error:
            self._error = error

    def _acknowledge(self) -> None:
        count, self._unacknowledged = self._unacknowledged, 0
        self._call.consumed(count)
