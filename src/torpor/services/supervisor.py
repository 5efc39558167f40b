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
    """Owns background tasks. One of the two places where any exception is caught: here it is logged, not hidden."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing = True
        for task in tuple(self._tasks):
            if task.get_name().startswith("idle:"):
                task.cancel()
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run ``work`` until it ends. Work named ``idle:…`` is cancelled at the end, all other is waited for."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", task=task.get_name(), error=repr(error))
