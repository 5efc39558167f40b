"""One life of a server: its tasks, and its end as a SIGKILL is: at once, with nothing tidied outside."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from torpor.testing.world.loop import VirtualLoop

REAP_ROUNDS_MAX = 500

Result = TypeVar("Result")

_CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """Every task that one of its tasks makes is its own, and ends with it.

    The tasks of a dead process are cancelled. What they do in their ``finally`` reaches no port: each refuses.
    """

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self._loop = loop
        self.name = name
        self.alive = True
        self.ended = asyncio.Event()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.broken: list[BaseException] = []
        self._context = copy_context()
        self._context.run(_CURRENT.set, self)

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run ``work`` as a task of this process."""
        task = self._loop.create_task(work, context=self._context.copy())
        self.own(task)
        return task

    def own(self, task: asyncio.Task[Any]) -> None:
        """``task`` belongs to this process."""
        self._tasks[task] = None
        task.add_done_callback(self._gone)

    def kill(self) -> None:
        """End it. Idempotent; returns before its tasks know."""
        if self.alive:
            self.alive = False
            self.ended.set()
            self._loop.call_soon(self._reap, 0)

    def _reap(self, round_: int) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            assert round_ < REAP_ROUNDS_MAX, f"tasks of {self.name} outlive it: {list(self._tasks)}"
            self._loop.call_soon(self._reap, round_ + 1)

    def _gone(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and self.alive:
            self.broken.append(error)


def owned_by_maker(task: asyncio.Task[Any]) -> None:
    """For ``VirtualLoop.on_task``: a task belongs to the process that made it, if one did."""
    process = _CURRENT.get()
    if process is not None:
        process.own(task)
