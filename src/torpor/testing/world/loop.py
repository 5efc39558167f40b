"""An event loop in virtual time: one thread, no files, no sockets, and one order of events for one order of calls.

Nobody sleeps: when nothing is ready, time jumps to the next timer. Threads are replaced by running their work at once.
Tasks and futures hash by number, since asyncio keeps them in sets and an address would order those by chance.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from typing import Any, Self, TypeVar

Result = TypeVar("Result")


class StuckError(AssertionError):
    """Everybody waits for somebody, and no timer will end it."""


class _Future(asyncio.Future[Any]):
    """A future with a number of its own."""

    _number = 0

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """A task with a number of its own."""

    _number = 0

    @classmethod
    def numbered(cls, number: int, *given: Any, **options: Any) -> Self:  # noqa: ANN401 - as in asyncio
        """The number comes first: asyncio puts a task into a set while it is made."""
        task = cls.__new__(cls)
        task._number = number  # noqa: SLF001 - its own class
        task.__init__(*given, **options)  # type: ignore[misc]
        return task

    def __hash__(self) -> int:
        return self._number


class _Handle(asyncio.Handle):
    """A handle without what asyncio keeps for its debug mode; histories make some thousand each."""

    __slots__ = ()
    _loop: asyncio.AbstractEventLoop
    _callback: Callable[..., object]
    _args: Sequence[Any]
    _context: Context
    _cancelled: bool

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None

    def cancel(self) -> None:
        """See asyncio."""
        self._cancelled = True


class VirtualLoop(asyncio.BaseEventLoop):
    """Starts at 0 s. ``on_task``: hears of every task that is made."""

    # BaseEventLoop's own, which its stub does not tell of.
    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]  # of TimerHandle
    _timer_cancelled_count: int
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._clock_resolution = 1e-6
        self._numbers = itertools.count(1)
        self.on_task: Callable[[asyncio.Task[Any]], None] | None = None
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def _run_once(self) -> None:
        """One round, as asyncio's, without a selector to ask. Raises: StuckError if it would wait for ever."""
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._cancelled:  # noqa: SLF001 - the loop's own timers, here and below
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False  # noqa: SLF001
        if not ready and not self._stopping:
            if not scheduled:
                raise StuckError("nothing is ready and no timer runs")
            self._now_s = max(self._now_s, scheduled[0]._when)  # noqa: SLF001
        due_s = self._now_s + self._clock_resolution
        while scheduled and scheduled[0]._when < due_s:  # noqa: SLF001
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # noqa: SLF001
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:  # noqa: SLF001
                handle._run()  # noqa: SLF001

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        """See asyncio."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        future = _Future(loop=self)
        future._number = next(self._numbers)  # noqa: SLF001 - its own class
        return future

    def run_in_executor(self, executor: object, func: Callable[..., Result], *args: object) -> asyncio.Future[Result]:
        """The work is done by the time this returns."""
        del executor
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the future raises it, as with any executor
            future.set_exception(error)
        return future

    def create_task(
        self,
        coro: Generator[Any, None, Result] | Coroutine[Any, Any, Result],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[Result]:
        """See asyncio."""
        task: asyncio.Task[Result] = _Task.numbered(next(self._numbers), coro, loop=self, context=context)
        if name is not None:
            task.set_name(name)
        if self.on_task is not None:
            self.on_task(task)
        return task

    def _write_to_self(self) -> None:
        """There is no other thread to wake for."""


class LoopClock:
    """``ports.clock.Clock`` over a virtual loop. ``wall_s``: what it shows at the loop's start."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, wall_s: float = 1_700_000_000.0) -> None:
        self._loop = loop
        self._wall_offset_s = wall_s

    def wall_s(self) -> float:
        """Wall time, seconds since the epoch."""
        return self._wall_offset_s + self._loop.time()

    def monotonic_s(self) -> float:
        """Seconds since the loop was made."""
        return self._loop.time()

    async def sleep(self, duration_s: float) -> None:
        """Return once so many virtual seconds have passed."""
        await asyncio.sleep(duration_s)

    def jump_wall(self, by_s: float) -> None:
        """Set the wall clock, as an operator or a suspended host does. No sleeper notices."""
        self._wall_offset_s += by_s
