"""Tasks that outlive the call that started them: owned, awaited at the end, their failures logged once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

log = structlog.get_logger()
T = TypeVar("T")


class Supervisor:
    """Owns background tasks. What one of them raised is logged here, once, and hidden nowhere."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.settle()

    async def settle(self) -> None:
        """Return once every task that was started has ended."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run ``work`` to its end; leaving the block waits for it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def finish(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """Run ``work`` to its end, also if the caller is cancelled; only then is what it raises logged here."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._ended)
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", task=task.get_name(), error=repr(error))
