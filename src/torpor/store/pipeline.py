"""Bounded parallel work: jobs on threads, actions on the loop. Knows nothing of snapshots.

BLAKE3, zstd, AES and file reads and writes let go of the interpreter lock, so that threads do run at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from operator import length_hint
from typing import Generic, ParamSpec, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Given = ParamSpec("Given")


class _Inline(ThreadPoolExecutor):
    """No threads: a job is done by the time it is submitted."""

    def __init__(self) -> None:
        super().__init__(1)

    def submit(self, job: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(job(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future raises it, as with any executor
            future.set_exception(error)
        return future


@asynccontextmanager
async def worker_pool(count: int) -> AsyncIterator[ThreadPoolExecutor]:
    """Threads for one operation; 0: none, each job runs where it is submitted, so that a simulation has one order.

    On exit no job runs any more, however the block was left.
    A job may be writing into a file that the caller closes next, so leaving waits for the job, even when cancelled.
    Jobs are small (some 10 ms).
    """
    pool = ThreadPoolExecutor(count, thread_name_prefix="torpor-store") if count else _Inline()
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """An asyncio.TaskGroup that raises the first error itself, so that typed errors pass through it unchanged."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise _first(errors) from None


async def for_each(items: Iterable[Item], action: Callable[[Item], Awaitable[None]], *, limit: int) -> None:
    """Await ``action`` for every item, at most ``limit`` at once. The first error cancels the others and is raised."""
    remaining = iter(items)
    limit = min(limit, length_hint(items, limit))

    async def work() -> None:
        for item in remaining:
            await action(item)

    async with task_group() as group:
        for _ in range(limit):
            group.create_task(work())


async def run(pool: ThreadPoolExecutor, job: Callable[[Item], Result], item: Item) -> Result:
    """``job(item)`` on a thread."""
    return await _outcome(pool.submit(job, item))


class Stage(Generic[Item, Result]):
    """Jobs on a pool whose results come out in the order their items went in; at most ``depth`` are on the way."""

    def __init__(self, pool: ThreadPoolExecutor, job: Callable[[Item], Result], *, depth: int) -> None:
        self._pool = pool
        self._job = job
        self._depth = depth
        self._waiting: deque[Future[Result]] = deque()

    async def push(self, item: Item) -> list[Result]:
        """Start on ``item``; the results that had to be waited for to stay within ``depth``."""
        self._waiting.append(self._pool.submit(self._job, item))
        return [await self._next()] if len(self._waiting) > self._depth else []

    async def drain(self) -> AsyncIterator[Result]:
        """All results that are left."""
        while self._waiting:
            yield await self._next()

    async def _next(self) -> Result:
        return await _outcome(self._waiting.popleft())


async def _outcome(future: Future[Result]) -> Result:
    """Of a job. One that has ended needs no bridge between threads, only its turn."""
    if future.done():
        await asyncio.sleep(0)
        return future.result()
    return await asyncio.wrap_future(future)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
