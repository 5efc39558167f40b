"""An event loop in virtual time: one thread, no files, no sockets, and one order of events for one order of calls.

Nobody sleeps: when nothing is ready, time jumps to the next timer. Threads are replaced by running their work at once.
Tasks and futures hash by number, since asyncio keeps them in sets and an address would order those by chance.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Self, TypeVar

Result = TypeVar("Result")


class StuckError(AssertionError):
    """Everybody waits for somebody, and no timer will end it."""


class _Future(asyncio.Future[Any]):
    """A future with a number of its own."""

    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._number = number

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


class VirtualLoop(asyncio.BaseEventLoop):
    """Starts at 0 s. ``on_task``: hears of every task that is made."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._clock_resolution = 1e-6
        self._selector = self  # BaseEventLoop asks its selector to wait: here that is what moves time
        self._numbers = itertools.count(1)
        self.on_task: Callable[[asyncio.Task[Any]], None] | None = None
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def select(self, timeout_s: float | None) -> list[Any]:
        """Called when the loop would wait. Raises: StuckError if it would wait for ever."""
        if timeout_s is None:
            raise StuckError("nothing is ready and no timer runs")
        self._now_s += timeout_s
        return []

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return _Future(next(self._numbers), loop=self)

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

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

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
