"""The way out: one thread writes, everybody else queues, and nobody but that thread ever waits for the host.

Who queues something small while nothing else is on its way writes it at once, if the pipe takes it without waiting:
handing it over would change the thread twice.

A stream is one id's output, with credit. Lossy streams (bursts) drop their oldest bytes rather than block a process for
longer than PATIENCE_S; lossless ones (file reads) make their producer wait.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torpor_guest.settings import Refused
from torpor_wire import PLAIN, Connection, DataChannel, Frame, FrameType, Limits, SendWindow, cut, pack

BUFFER_BYTES_MAX = 4 * 1024 * 1024  # of one burst; an agent's answer of megabytes fits, a runaway loop does not
PATIENCE_S = 0.25
WHOLE = frozenset({DataChannel.DISPLAY, DataChannel.EVENT})  # mean nothing in part
RETRY_S = 0.05
AT_ONCE_BYTES_MAX = select.PIPE_BUF  # a pipe that can be written to takes so much whole
HEADER_BYTES = 64  # more than a frame adds to its payload


@dataclass(slots=True)
class _Item:
    channel: DataChannel
    data: bytes
    whole: bool  # a message that means nothing in part (display)
    sent_bytes: int = 0  # of data

    @property
    def left_bytes(self) -> int:
        return len(self.data) - self.sent_bytes


class Stream:
    """One open id. ``put`` and ``finish`` may be called from any thread; nothing may follow ``finish``."""

    def __init__(self, outbox: Outbox, frame_id: int, *, lossy: bool) -> None:
        self.id = frame_id
        self.dropped_bytes = 0
        self.gone = False  # its caller has gone: nothing is sent any more
        self._outbox = outbox
        self._lossy = lossy
        self._items: deque[_Item] = deque()
        self._buffered_bytes = 0
        self._limits = outbox.limits
        self._window = SendWindow(self._limits.window_bytes)
        self._waiting_count = 0
        self._progress_s = time.monotonic()
        self._on_gone: list[Callable[[], object]] = []
        self._final: Callable[[], tuple[FrameType, dict[str, Any]]] | None = None

    def put(self, channel: DataChannel, data: bytes) -> None:
        """Queue output. Waits as the class says; output of a caller who has gone is dropped."""
        changed = self._outbox.changed
        with changed:
            while not self.gone and self._buffered_bytes and self._buffered_bytes + len(data) > BUFFER_BYTES_MAX:
                patience_s = self._progress_s + PATIENCE_S - time.monotonic()
                if self._lossy and patience_s <= 0:
                    break
                self._waiting_count += 1
                changed.wait(patience_s if self._lossy else None)
                self._waiting_count -= 1
            if self.gone:
                self.dropped_bytes += len(data)
                return
            self._items.append(_Item(channel, data, whole=channel in WHOLE))
            self._buffered_bytes += len(data)
            self._drop_oldest()
            self._outbox.hurry()

    def event(self, fields: Mapping[str, Any]) -> None:
        """Queue an event, in its place among the output."""
        self.put(DataChannel.EVENT, pack(fields))

    def on_gone(self, act: Callable[[], object]) -> None:
        """Call it once when the caller has gone, at once if it has. It must not block."""
        with self._outbox.changed:
            if not self.gone:
                self._on_gone.append(act)
                return
        act()

    def clear_on_gone(self) -> None:
        """Nobody needs to be told any more."""
        with self._outbox.changed:
            self._on_gone.clear()

    def leave(self) -> None:
        """The caller has gone. The outbox's lock is held, and re-entrant."""
        self.gone = True
        acts, self._on_gone = self._on_gone, []
        for act in acts:
            act()

    def finish(self, frame_type: FrameType, fields: Callable[[], dict[str, Any]]) -> None:
        """Send the answer after all output. ``fields`` is called at the end, when ``dropped_bytes`` is known."""
        with self._outbox.changed:
            self._final = lambda: (frame_type, fields())
            self._outbox.hurry()

    def acknowledge(self, total: int) -> None:
        """The host has consumed ``total`` bytes."""
        with self._outbox.changed:
            if self._window.acknowledged(total):
                self._progress_s = time.monotonic()
                self._outbox.changed.notify_all()

    def take(self) -> list[Frame] | None:
        """The next frames to write; [] if it is over, None if there is nothing now. The outbox's lock is held."""
        if self._items:
            return self._take_item()
        if self._final is None:
            return None
        frame_type, fields = self._final()
        payload = pack(fields)
        self.gone = True
        return list(cut(frame_type, self.id, payload))

    def _take_item(self) -> list[Frame] | None:
        item, count = self._items[0], min(self._window.room_bytes, self._limits.payload_bytes)
        if count == 0:
            return None
        piece = item.data[item.sent_bytes : item.sent_bytes + count]  # all of it is no copy
        item.sent_bytes += len(piece)
        self._window.sent(len(piece))
        self._outbox.streamed_bytes += len(piece)
        self._buffered_bytes -= len(piece)
        if not item.left_bytes:
            self._items.popleft()
        if self._waiting_count and self._buffered_bytes <= BUFFER_BYTES_MAX // 2:
            self._outbox.changed.notify_all()
        return [Frame(FrameType.DATA, self.id, piece, item.channel, more=item.whole and item.left_bytes > 0)]

    def _drop_oldest(self) -> None:
        """Only a lossy stream can be over its bound, and one item alone may be (a large display)."""
        while self._buffered_bytes > BUFFER_BYTES_MAX and len(self._items) > 1:
            index = 1 if self._items[0].whole and self._items[0].sent_bytes else 0
            if index == len(self._items) - 1:
                return
            count = self._items[index].left_bytes
            del self._items[index]
            self._buffered_bytes -= count
            self.dropped_bytes += count


class Outbox:
    """All frames on their way to the host. ``connection`` is used for sending by whoever writes: one at a time."""

    def __init__(self, connection: Connection, fd: int) -> None:
        self.changed = threading.Condition()
        self.streamed_bytes = 0  # of all streams, ever
        self.limits = PLAIN  # of the present connection
        self._connection = connection
        self._fd = fd
        self._taken: deque[Frame | bytes] = deque()  # by one who could not write it at once: next for the writer
        self._control: deque[Frame] = deque()
        self._deferred: list[Frame] = []
        self._streams: dict[int, Stream] = {}
        self._turn: deque[int] = deque()
        self._held = False
        self._busy = False

    def start(self) -> None:
        """Start the writer."""
        threading.Thread(target=self._run, name="outbox", daemon=True).start()

    def open(self, frame_id: int, *, lossy: bool) -> Stream:
        """A stream for a new id. Raises: nothing; a repeated id is the dispatcher's to refuse."""
        with self.changed:
            assert frame_id not in self._streams
            stream = self._streams[frame_id] = Stream(self, frame_id, lossy=lossy)
            self._turn.append(frame_id)
            return stream

    def stream(self, frame_id: int) -> Stream | None:
        """The open stream of that id."""
        with self.changed:
            return self._streams.get(frame_id)

    def abandon(self, frame_id: int) -> None:
        """The caller of that id has gone: nothing more is sent for it."""
        with self.changed:
            if (stream := self._streams.pop(frame_id, None)) is not None:
                stream.leave()
                self._turn.remove(frame_id)
                self.changed.notify_all()

    def send(self, frame_type: FrameType, frame_id: int, fields: Mapping[str, Any]) -> None:
        """Queue a control message; while held it waits for ``release``."""
        frames = list(cut(frame_type, frame_id, pack(fields)))
        with self.changed:
            if self._held:
                self._deferred.extend(frames)
            else:
                self._control.extend(frames)
            self.changed.notify_all()

    def refuse(self, frame_id: int, refusal: Refused) -> None:
        """Answer an id that has no stream with ERROR, held or not."""
        fields = {"code": refusal.code, "message": refusal.message, "details": refusal.details}
        self.send_held(FrameType.ERROR, frame_id, fields)

    def greet(self, fields: Mapping[str, Any], limits: Limits) -> int:
        """Begin a connection: forget what was meant for the last one, then WELCOME. The number of ids cut off."""
        with self.changed:
            orphans = len(self._streams)
            self.limits = limits
            for stream in self._streams.values():
                stream.leave()
            self._streams.clear()
            self._turn.clear()
            self._control.clear()
            self._deferred.clear()
            self._control.append(Frame(FrameType.WELCOME, 0, pack(fields)))
            self.changed.notify_all()
            return orphans

    def send_held(self, frame_type: FrameType, frame_id: int, fields: Mapping[str, Any]) -> None:
        """Queue a control message that goes out although the outbox is held."""
        with self.changed:
            self._control.extend(cut(frame_type, frame_id, pack(fields)))
            self.changed.notify_all()

    def hold(self, frame_type: FrameType, frame_id: int, fields: Mapping[str, Any]) -> None:
        """Write what is queued as control, then this message, then nothing more until ``release``. Waits for that."""
        with self.changed:
            self._held = True
            self._control.extend(cut(frame_type, frame_id, pack(fields)))
            self.changed.notify_all()
            while self._control or self._taken or self._busy:
                self.changed.wait()

    def release(self, frame_type: FrameType, frame_id: int, fields: Mapping[str, Any]) -> None:
        """End the hold with this message."""
        with self.changed:
            self._control.extend(cut(frame_type, frame_id, pack(fields)))
            self._control.extend(self._deferred)
            self._deferred.clear()
            self._held = False
            self.hurry()

    def hurry(self) -> None:
        """Have written what waits: here and now what is small, as long as the pipe takes it. The lock is held."""
        if not self._busy and not self._held and not self._taken:
            while frames := self._next():
                if not self._write_at_once(frames):
                    break
            else:
                return
        self.changed.notify_all()

    def _write_at_once(self, frames: list[Frame]) -> bool:
        """False if that could make us wait, or the host has gone: then it is the writer's, who waits for both."""
        size_bytes = sum(len(frame.payload) + HEADER_BYTES for frame in frames)
        is_greeting = any(frame.type is FrameType.WELCOME for frame in frames)
        if is_greeting or size_bytes > AT_ONCE_BYTES_MAX or not self._is_writable():
            self._taken.extend(frames)
            return False
        data = b"".join(self._connection.send(frame) for frame in frames)
        try:
            os.write(self._fd, data)
        except BrokenPipeError:
            self._taken.append(data)
            return False
        return True

    def _is_writable(self) -> bool:
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        return any(events & select.POLLOUT for _, events in poller.poll(0))

    def _run(self) -> None:
        while True:
            with self.changed:
                self._busy = False
                if self._held:
                    self.changed.notify_all()
                while not (pieces := self._next_of_writer()):
                    self.changed.wait()
                self._busy = True
                bulk = self.limits.bulk
            for piece in pieces:
                if isinstance(piece, Frame) and piece.type is FrameType.WELCOME:
                    self._connection.bulk = bulk
                self._write(piece if isinstance(piece, bytes) else self._connection.send(piece))

    def _next_of_writer(self) -> Sequence[Frame | bytes]:
        """What could not be written at once, first of all. The lock is held."""
        return [self._taken.popleft()] if self._taken else self._next()

    def _next(self) -> list[Frame]:
        """What to write now. The lock is held."""
        if self._control:
            return [self._control.popleft()]
        if self._held:
            return []
        for _ in range(len(self._turn)):
            frame_id = self._turn[0]
            self._turn.rotate(-1)
            stream = self._streams[frame_id]
            frames = stream.take()
            if stream.gone:
                del self._streams[frame_id]
                self._turn.remove(frame_id)
            if frames:
                return frames
        return []

    def _write(self, data: bytes) -> None:
        """All of ``data``. While no host reads (EPIPE) it waits, then begins again: half a frame is skipped there."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BrokenPipeError:
                rest = memoryview(data)
                threading.Event().wait(RETRY_S)
