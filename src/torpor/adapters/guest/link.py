"""One connection to an agent: a task that reads, a task that writes, and the calls that are open.

Queueing a frame never waits, so neither task can hold up the other; what may be queued is bounded by credit. After
QUIESCE nothing is written until RESUMED: bytes unread at a capture would be delivered again to every clone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torpor.domain.errors import DeadlineExceeded, GuestError, TorporError
from torpor.ports.clock import Clock
from torpor.ports.engine import Channel
from torpor_wire import (
    BULK,
    PAYLOAD_BYTES_MAX,
    PLAIN,
    VERSION,
    Assembler,
    BadMessage,
    Connection,
    Frame,
    FrameType,
    Limits,
    Message,
    SendWindow,
    cut,
    integer,
    pack,
    unpack,
)

READ_BYTES_MAX = 1024 * 1024
FINAL = frozenset({FrameType.RESULT, FrameType.ERROR, FrameType.QUIESCED, FrameType.READY, FrameType.WELCOME})


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message for a call. ``count``: its bytes that are to be acknowledged once consumed."""

    message: Message
    count: int


class Call:
    """One open id, at the host. Its deliveries are bounded by the window that is acknowledged as they are consumed."""

    def __init__(self, link: Link, frame_id: int) -> None:
        self.id = frame_id
        self.window = SendWindow(link.limits.window_bytes)
        self._link = link
        self._limits = link.limits
        self._deliveries: deque[Arrival | TorporError] = deque()
        self._arrived = asyncio.Event()
        self._credit = asyncio.Event()
        self._error: TorporError | None = None
        self._received_bytes = 0
        self._ended = False
        self._consumed_bytes = 0
        self._acknowledged_bytes = 0

    def deliver(self, arrival: Arrival) -> None:
        """Called by the reader."""
        self._deliveries.append(arrival)
        if arrival.message.type in FINAL:
            self._ended = True
            self._credit.set()
        self._arrived.set()

    def fail(self, error: TorporError) -> None:
        """Called by the reader: nothing more will come."""
        self._deliveries.append(error)
        self._error = self._error or error
        self._ended = True
        self._arrived.set()
        self._credit.set()

    def received(self, count: int) -> bool:
        """Count DATA that arrives; False if it is more than there was credit for."""
        self._received_bytes += count
        return self._received_bytes - self._acknowledged_bytes <= self._limits.window_bytes

    def wake(self) -> None:
        """There is new credit."""
        self._arrived.set()
        self._credit.set()

    @property
    def ended(self) -> bool:
        """Its last message has come, or it has failed."""
        return self._ended

    @property
    def error(self) -> TorporError | None:
        """What ended it, if it failed."""
        return self._error

    async def credit(self) -> None:
        """Return when there is new credit or the call has ended; for those who send while another receives."""
        if not self._ended:
            self._credit.clear()
            await self._credit.wait()

    def take(self) -> Arrival | None:
        """The next arrival if there is one. Raises: the error that ended the call."""
        if not self._deliveries:
            return None
        delivery = self._deliveries.popleft()
        if isinstance(delivery, TorporError):
            self._deliveries.append(delivery)
            raise delivery
        return delivery

    async def arrival(self) -> None:
        """Return when there is something to take or new credit; spuriously at times."""
        if not self._deliveries:
            self._arrived.clear()
            await self._arrived.wait()

    async def next(self) -> Arrival:
        """The next arrival. Raises: the error that ended the call."""
        while (arrival := self.take()) is None:
            await self.arrival()
        return arrival

    def consumed(self, count: int) -> None:
        """Acknowledge output in steps of half a window: each costs the guest a wake-up, and it never runs dry."""
        self._consumed_bytes += count
        due = self._consumed_bytes - self._acknowledged_bytes
        if not self._ended and due >= self._limits.window_bytes // 2:
            self._acknowledged_bytes = self._consumed_bytes
            self._link.send(FrameType.ACK, self.id, {"total": self._consumed_bytes})

    def send_body(self, piece: bytes | memoryview) -> None:
        """Queue body bytes; at most ``window.room_bytes``."""
        self.window.sent(len(piece))
        step = self._limits.payload_bytes
        for start in range(0, len(piece), step):
            self._link.queue(Frame(FrameType.DATA, self.id, bytes(piece[start : start + step])))

    def end_body(self) -> None:
        """The body is complete."""
        self._link.queue(Frame(FrameType.END, self.id))


class Link:
    """A channel with its tasks. Made inside a running event loop."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self.clock = clock
        self.limits = PLAIN
        self._channel = channel
        self._connection = Connection()
        self._assembler = Assembler()
        self._calls: dict[int, Call] = {}
        self._next_id = 1
        self._outgoing: deque[Frame] = deque()
        self._deferred: list[Frame] | None = None  # a list while parked
        self._may_write = asyncio.Event()
        self._failure: TorporError | None = None
        self.greeted = False
        self._nonce: int | None = None
        loop = asyncio.get_running_loop()
        # The port's connect() is no coroutine, so nobody can own these but the link; close() ends them.
        self._tasks = (loop.create_task(self._read()), loop.create_task(self._write()))

    def open(self, frame_id: int | None = None) -> Call:
        """A call with a new id (or the greeting's 0). Raises: GuestError if the channel is gone."""
        if self._failure is not None:
            raise self._failure
        if frame_id is None:
            frame_id, self._next_id = self._next_id, self._next_id + 1
        call = self._calls[frame_id] = Call(self, frame_id)
        return call

    def greet(self) -> Call:
        """Send HELLO; the call ends with the WELCOME that answers it."""
        self._nonce = int(self.clock.wall_s() * 1e6)
        call = self.open(0)
        self.send_parked(FrameType.HELLO, 0, {"nonce": self._nonce, "versions": [VERSION], "bulk": BULK.fields()})
        return call

    def agree(self, limits: Limits) -> None:
        """What holds for calls from now on."""
        self.limits = limits
        self._connection.bulk = limits.bulk

    def ids_above(self, floor: int) -> None:
        """New ids begin above what the guest has seen."""
        self._next_id = max(self._next_id, floor + 1)

    def forget(self, call: Call, *, cancel: bool = False) -> None:
        """The caller wants nothing more of it; with ``cancel`` the guest is told."""
        if self._calls.pop(call.id, None) is not None and cancel and self._failure is None:
            self.queue(Frame(FrameType.CANCEL, call.id))

    def send(self, frame_type: FrameType, frame_id: int, fields: Mapping[str, Any]) -> None:
        """Queue a control message."""
        self.queue(*cut(frame_type, frame_id, pack(fields)))

    def queue(self, *frames: Frame) -> None:
        """Queue frames; while parked they wait for ``unpark``."""
        if self._deferred is not None:
            self._deferred.extend(frames)
        else:
            self._push(frames)

    def park(self) -> None:
        """What is queued from now on waits."""
        self._deferred = self._deferred if self._deferred is not None else []

    def send_parked(self, frame_type: FrameType, frame_id: int, fields: Mapping[str, Any]) -> None:
        """Queue a control message although parked."""
        self._push(cut(frame_type, frame_id, pack(fields)))

    def unpark(self) -> None:
        """Send what has waited."""
        deferred, self._deferred = self._deferred, None
        self._push(deferred or ())

    async def within(self, limit_s: float, call: Call, deed: str) -> Message:
        """The call's next message. Raises: DeadlineExceeded after ``limit_s`` of the clock."""
        waiting = asyncio.ensure_future(call.next())
        sleeping = asyncio.ensure_future(self.clock.sleep(limit_s))
        try:
            await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise DeadlineExceeded(f"cannot {deed}: the guest did not answer within {limit_s:g} s", limit_s=limit_s)
            return waiting.result().message
        finally:
            for task in (waiting, sleeping):
                task.cancel()
            await asyncio.gather(waiting, sleeping, return_exceptions=True)

    async def close(self) -> None:
        """End the tasks and the calls; close the channel. Idempotent."""
        self.fail(GuestError("cannot reach the guest: its channel was closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    def fail(self, error: TorporError) -> None:
        """End every open call with ``error``, and the channel with it."""
        self._failure = self._failure or error
        self._end_calls(self._failure)

    def _end_calls(self, error: TorporError) -> None:
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.fail(error)

    def _push(self, frames: Iterable[Frame]) -> None:
        self._outgoing.extend(frames)
        if self._outgoing:
            self._may_write.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._may_write.wait()
                while self._outgoing:
                    await self._channel.write(self._next_write())
                self._may_write.clear()
        except TorporError as error:
            self.fail(GuestError(f"cannot reach the guest: the instance is gone: {error}"))
        except OSError as error:
            self.fail(GuestError(f"cannot reach the guest: the instance is gone: {error}"))

    def _next_write(self) -> bytes:
        """The frames that wait, as far as one write is worth it: each wakes the guest, a large one waits for nobody."""
        pieces = [self._connection.send(self._outgoing.popleft())]
        size_bytes = len(pieces[0])
        while self._outgoing and size_bytes + len(self._outgoing[0].payload) <= PAYLOAD_BYTES_MAX:
            pieces.append(self._connection.send(self._outgoing.popleft()))
            size_bytes += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _read(self) -> None:
        try:
            count = PAYLOAD_BYTES_MAX
            while data := await self._channel.read(count):
                for event in self._connection.receive_data(data):
                    if isinstance(event, Frame):
                        self._on_frame(event)
                    elif self.greeted:
                        # Nothing may be missing between a greeting and the end: what was open cannot be trusted.
                        self._end_calls(GuestError(f"cannot follow the guest: its stream was damaged ({event})"))
                        self.greeted = False
                if len(data) == count:
                    count = READ_BYTES_MAX
                    await asyncio.sleep(0)  # let those who consume it keep up
                else:
                    count = PAYLOAD_BYTES_MAX
            self.fail(GuestError("cannot reach the guest: the instance is gone"))
        except TorporError as error:
            self.fail(GuestError(f"cannot reach the guest: the instance is gone: {error}"))
        except OSError as error:
            self.fail(GuestError(f"cannot reach the guest: the instance is gone: {error}"))

    def _on_frame(self, frame: Frame) -> None:
        call = self._calls.get(frame.id)
        if call is None:
            return  # an answer to an earlier host, or to a caller who has gone
        if frame.type is FrameType.WELCOME:
            if not self._is_ours(frame):
                return  # it answers an earlier host
            self.greeted = True
        if frame.type is FrameType.DATA and not call.received(len(frame.payload)):
            self._fail_call(call, "it sent more than it had credit for")
            return
        if frame.type is FrameType.DATA and frame.more:
            call.consumed(len(frame.payload))
        message = self._assembler.add(frame)
        if message is None or (message.type is FrameType.DATA and not message.payload):
            return
        if message.type is FrameType.ACK:
            self._on_ack(call, message)
            return
        call.deliver(Arrival(message, len(frame.payload) if message.type is FrameType.DATA else 0))
        if message.type in FINAL:
            self._calls.pop(call.id, None)

    def _is_ours(self, welcome: Frame) -> bool:
        try:
            return unpack(welcome.payload).get("nonce") == self._nonce
        except BadMessage:
            return False

    def _on_ack(self, call: Call, message: Message) -> None:
        try:
            if call.window.acknowledged(integer(unpack(message.payload), "total")):
                call.wake()
        except BadMessage as error:
            self._fail_call(call, str(error))

    def _fail_call(self, call: Call, why: str) -> None:
        self.forget(call, cancel=True)
        call.fail(GuestError(f"cannot go on with the guest's answer: {why}"))
