"""Bursts outlive the request that asked for them: a client that goes away breaks neither the session nor the server.

A burst runs in a task of the application. Its outcome is a future; the request waits for that, and giving up waiting
leaves the task alone. Bursts that still run when the server stops are answered with ``Unavailable``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import structlog

from torpor.domain.errors import TorporError, Unavailable
from torpor.services.requests import Burst

BURSTS_MAX = 1024  # of one server at a time; each holds a queue of output and a place in a guest

log = structlog.get_logger()


class Bursts:
    """The bursts of one application in flight. Enter it for the application's life."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        await self._group.__aexit__(kind, error, traceback)

    def start(self, work: Callable[[], Awaitable[Burst]], *, ended: Callable[[], None]) -> asyncio.Future[Burst]:
        """Run ``work``; ``ended`` is called once the outcome is set. The future never holds but TorporError.

        Raises: Unavailable while stopping or with ``BURSTS_MAX`` in flight.
        """
        if self._stopping or len(self._tasks) >= BURSTS_MAX:
            why = "the server is stopping" if self._stopping else f"{BURSTS_MAX} bursts are in flight"
            raise Unavailable(f"cannot start a burst: {why}; repeat the call in a moment", retry_after_s=1.0)
        outcome: asyncio.Future[Burst] = asyncio.get_running_loop().create_future()
        task = self._group.create_task(_settle(work, outcome))
        self._tasks.add(task)

        def close(_task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not outcome.done():
                outcome.set_exception(_stopped())
            outcome.exception()  # seen: a client that went away must not make the loop complain
            ended()

        task.add_done_callback(close)
        return outcome

    def stop(self) -> None:
        """Give up waiting for all bursts. Idempotent."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()


async def _settle(work: Callable[[], Awaitable[Burst]], outcome: asyncio.Future[Burst]) -> None:
    try:
        outcome.set_result(await work())
    except Exception as error:  # noqa: BLE001 - nothing may escape into the task group, it would end every burst
        outcome.set_exception(_reported(error))


def _stopped() -> Unavailable:
    return Unavailable(
        "cannot wait for the burst: the server is stopping; the session's status says what holds", retry_after_s=5.0
    )


def _reported(error: Exception) -> TorporError:
    if isinstance(error, TorporError):
        return error
    log.error("a burst failed unexpectedly", exc_info=error)
    return TorporError("cannot finish the burst: an internal error, written to the server's log")
