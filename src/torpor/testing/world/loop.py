"""An event loop in virtual time: one thread, no files, no sockets, and one order of events for one order of calls.

Nobody sleeps: when nothing is ready, time jumps to the next timer. Threads are replaced by running their work at once.
Tasks and futures hash by number, since asyncio keeps them in sets and an address would order those by chance.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Self, TypeVar, cast

RESOLUTION_S = 1e-6  # timers so near to each other are due at once

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


class _Handle:
    """What is left to be called. As asyncio's, without what that keeps for its debug mode: histories make thousands."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when_s")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: Context | None,
        when_s: float = 0.0,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._when_s = when_s
        self._cancelled = False

    def cancel(self) -> None:
        """See asyncio."""
        self._cancelled = True

    def cancelled(self) -> bool:
        """See asyncio."""
        return self._cancelled

    def when(self) -> float:
        """See asyncio.TimerHandle."""
        return self._when_s


class VirtualLoop(asyncio.BaseEventLoop):
    """Starts at 0 s. ``on_task``: hears of every task that is made."""

    _stopping: bool  # BaseEventLoop's own, which its stub does not tell of

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._due: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []  # a heap; of equal instants the first asked for is first
        self._numbers = itertools.count(1)
        self.on_task: Callable[[asyncio.Task[Any]], None] | None = None
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def _run_once(self) -> None:
        """One round, as asyncio's, without a selector to ask. Raises: StuckError if it would wait for ever."""
        due, timers = self._due, self._timers
        while timers and timers[0][2]._cancelled:  # noqa: SLF001 - the loop's own handles, here and below
            heapq.heappop(timers)
        if not due and not self._stopping:
            if not timers:
                raise StuckError("nothing is ready and no timer runs")
            self._now_s = max(self._now_s, timers[0][0])
        until_s = self._now_s + RESOLUTION_S
        while timers and timers[0][0] < until_s:
            due.append(heapq.heappop(timers)[2])
        for _ in range(len(due)):
            handle = due.popleft()
            if not handle._cancelled:  # noqa: SLF001
                try:
                    handle._context.run(handle._callback, *handle._args)  # noqa: SLF001
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio: a callback's error ends nothing else
                    self.call_exception_handler({"message": "a callback failed", "exception": error})

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        """See asyncio."""
        handle = _Handle(callback, args, context)
        self._due.append(handle)
        return cast("asyncio.Handle", handle)

    call_soon_threadsafe = call_soon  # there is no other thread

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        handle = _Handle(callback, args, context, when)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return cast("asyncio.TimerHandle", handle)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

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
