"""One burst: whose it is, how it ends, and what happens when it does not."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from torpor_guest.outbox import Stream
from torpor_guest.settings import Refused
from torpor_wire import WINDOW_BYTES, DataChannel, FrameType

BODY_BYTES_MAX = 16 * 1024 * 1024
QUEUED_MAX = 64
LATE_BYTES_MAX = 65_536
WAIT_MIN_S = 0.02


class Stopwatch:
    """Monotonic time without the spans in which the guest was parked: a wait of days must not time a burst out."""

    def __init__(self) -> None:
        self._parked_s = 0.0
        self._since_s: float | None = None

    def active_s(self) -> float:
        """Seconds of unparked time since an arbitrary instant."""
        return (self._since_s if self._since_s is not None else time.monotonic()) - self._parked_s

    def park(self) -> None:
        """Stand still."""
        self._since_s = time.monotonic()

    def proceed(self) -> None:
        """Go on from where it stood still."""
        if self._since_s is not None:
            self._parked_s += time.monotonic() - self._since_s
            self._since_s = None


class Turnstile:
    """Lets one burst through at a time, in the order in which they joined the queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    def join(self) -> Place:
        """A place at the end of the queue. Raises: Refused (quota_exceeded) when too many wait."""
        with self._lock:
            if len(self._waiting) >= QUEUED_MAX:
                raise Refused("quota_exceeded", f"cannot queue: {QUEUED_MAX} bursts wait here already; let them end")
            turn = threading.Event()
            self._waiting.append(turn)
            self._waiting[0].set()
        return Place(turn, lambda: self._leave(turn))

    def _leave(self, turn: threading.Event) -> None:
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
            if self._waiting:
                self._waiting[0].set()


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a queue. ``leave`` must follow, whether or not its turn has come; leaving twice is harmless."""

    turn: threading.Event
    leave: Callable[[], None]


class End(Enum):
    """What a burst may be told while it waits."""

    DONE = auto()  # the child says so; the value is its report
    EXITED = auto()  # the child has been reaped; the value is its exit code
    CANCELLED = auto()  # the caller has gone


@dataclass
class Outcome:
    """A burst's answer, as it is sent. Field names are those of the format's §6."""

    exit_code: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    timed_out: bool = False
    execution_count: int | None = None
    cwd: str | None = None

    def fields(self, dropped_bytes: int) -> dict[str, Any]:
        """The RESULT payload."""
        return {
            **{name: value for name, value in vars(self).items() if value is not None},
            "dropped_bytes": dropped_bytes,
        }


class Body:
    """What the host sends along with a request, taken by one consumer. Bounded by the window it is sent under."""

    def __init__(self, acknowledge: Callable[[int], None], window_bytes: int = WINDOW_BYTES) -> None:
        self._pieces: queue.SimpleQueue[bytes | Refused | None] = queue.SimpleQueue()
        self._acknowledge = acknowledge
        self._window_bytes = window_bytes
        self._received_bytes = 0
        self._taken_bytes = 0
        self._acknowledged_bytes = 0

    def add(self, piece: bytes) -> None:
        """A DATA frame. A host beyond its credit is refused."""
        self._received_bytes += len(piece)
        if self._received_bytes - self._taken_bytes > self._window_bytes:
            self.fail(Refused("guest_error", "cannot take the body: more was sent than there was credit for"))
        else:
            self._pieces.put(piece)

    def end(self) -> None:
        """The END frame."""
        self._pieces.put(None)

    def fail(self, refusal: Refused) -> None:
        """The rest will not come."""
        self._pieces.put(refusal)

    def __iter__(self) -> Iterator[bytes]:
        """The pieces, acknowledged as they are taken. Raises: Refused."""
        while (piece := self._pieces.get()) is not None:
            if isinstance(piece, Refused):
                raise piece
            self._taken_bytes += len(piece)
            if self._taken_bytes - self._acknowledged_bytes >= self._window_bytes // 2:  # the host never runs dry
                self._acknowledged_bytes = self._taken_bytes
                self._acknowledge(self._taken_bytes)
            yield piece

    def whole(self) -> bytes:
        """All of it. Raises: Refused (invalid_argument) beyond BODY_BYTES_MAX."""
        pieces, size = [], 0
        for piece in self:
            size += len(piece)
            if size <= BODY_BYTES_MAX:
                pieces.append(piece)
        if size > BODY_BYTES_MAX:
            raise Refused(
                "invalid_argument",
                f"cannot run {size} bytes: the limit is {BODY_BYTES_MAX}; write them to a file and run that",
                field="source",
            )
        return b"".join(pieces)


@dataclass(eq=False)
class Burst:
    """One open request. ``events`` tells its thread how it ends.

    ``begun_s``: when its code began, in the stopwatch's time, if whoever runs it says so; nobody is woken for that.
    """

    id: int
    fields: dict[str, Any]
    stream: Stream
    body: Body
    place: Place | None = None
    begun_s: float | None = None
    events: queue.SimpleQueue[tuple[End, Any]] = field(default_factory=queue.SimpleQueue)

    def await_turn(self) -> None:
        """Wait for its turn in the queue it has joined. Raises: Refused if the caller has gone meanwhile."""
        if self.place is not None:
            self.place.turn.wait()
        if not self.events.empty():
            raise Refused("guest_error", "the caller has gone")

    def cancel(self) -> None:
        """The caller has gone: its output is for nobody."""
        self.body.fail(Refused("guest_error", "the caller has gone"))
        self.events.put((End.CANCELLED, None))

    def answer(self, outcome: Outcome) -> None:
        """RESULT, after all output."""
        self.stream.finish(FrameType.RESULT, lambda: outcome.fields(self.stream.dropped_bytes))

    def refuse(self, refusal: Refused) -> None:
        """ERROR, after all output."""
        fields = {"code": refusal.code, "message": refusal.message, "details": refusal.details}
        self.stream.finish(FrameType.ERROR, lambda: fields)


@dataclass(frozen=True, slots=True)
class Alarm:
    """After ``after_s`` of a burst, do ``act``."""

    after_s: float
    act: Callable[[], object]


def follow(
    burst: Burst,
    stopwatch: Stopwatch,
    alarms: list[Alarm],
    on_cancel: Callable[[], object],
    *,
    start: Alarm | None = None,
) -> tuple[End, Any, int]:
    """Wait for DONE or EXITED. Returns it with its value and the number of alarms that went off.

    With ``start`` the alarms count from when the burst has begun, and it goes off, once, if that takes so long.
    """
    since_s, gone_off = stopwatch.active_s(), 0
    while True:
        if start is not None and burst.begun_s is not None:
            since_s, start = burst.begun_s, None
        passed_s, left_s = stopwatch.active_s() - since_s, None
        if start is not None:
            if passed_s >= start.after_s:
                start.act()
                start, alarms, gone_off = None, [], 1
                continue
            # It may begin at any time, and no alarm is due earlier than its own time after that.
            left_s = min(start.after_s - passed_s, *(alarm.after_s for alarm in alarms), start.after_s)
        elif gone_off < len(alarms):
            left_s = alarms[gone_off].after_s - passed_s
            if left_s <= 0:
                alarms[gone_off].act()
                gone_off += 1
                continue
        try:
            end, value = burst.events.get(timeout=None if left_s is None else max(left_s, WAIT_MIN_S))
        except queue.Empty:
            continue
        if end is not End.CANCELLED:
            return end, value, gone_off
        on_cancel()


class Outlet:
    """Where a long-lived child's output goes: to the burst that runs, else it is kept, bounded, for the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._late: deque[tuple[DataChannel, bytes]] = deque()
        self._late_bytes = 0
        self._dropped_bytes = 0

    def put(self, channel: DataChannel, data: bytes) -> None:
        """Pass output on, or keep it."""
        with self._lock:
            stream = self._stream
            if stream is None:
                self._keep(channel, data[-LATE_BYTES_MAX:])
        if stream is not None:
            stream.put(channel, data)

    def attach(self, stream: Stream) -> None:
        """Give what was kept, and from now on everything, to ``stream``."""
        with self._lock:
            late, self._late, self._late_bytes = self._late, deque(), 0
            stream.dropped_bytes += self._dropped_bytes
            self._dropped_bytes = 0
            self._stream = stream
        for channel, data in late:
            stream.put(channel, data)

    def detach(self) -> None:
        """Keep what comes from now on."""
        with self._lock:
            self._stream = None

    def _keep(self, channel: DataChannel, data: bytes) -> None:
        self._late.append((channel, data))
        self._late_bytes += len(data)
        while self._late_bytes > LATE_BYTES_MAX:
            count = len(self._late.popleft()[1])
            self._late_bytes -= count
            self._dropped_bytes += count
