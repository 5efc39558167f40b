"""Waiting out an outside that does not answer: what must be done is done again, with growing pauses, for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from torpor.domain.errors import EngineError, TorporError, Unavailable
from torpor.domain.ids import InstanceId
from torpor.ports.engine import Engine

log = structlog.get_logger()

PATIENCE_S = 60.0
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 2.0

Result = TypeVar("Result")


async def patiently(
    act: Callable[[], Awaitable[Result]],
    *over: type[TorporError],
    deed: str,
    patience_s: float = PATIENCE_S,
) -> Result:
    """Repeat ``act``, which must be safe to repeat, while it raises one of ``over``; at last raise what it raised."""
    loop = asyncio.get_running_loop()
    until_s, pause_s = loop.time() + patience_s, PAUSE_S_MIN
    while True:
        try:
            return await act()
        except over as error:
            if loop.time() + pause_s > until_s:
                raise
            log.warning("trying again", deed=deed, code=error.code, error=error.message)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


async def destroy_surely(engine: Engine, instance: InstanceId) -> None:
    """Destroy an instance; nobody else will, and its session may be placed anew only once it is gone.

    Raises: EngineError once patience has ended.
    """
    await patiently(lambda: engine.destroy(instance), EngineError, Unavailable, deed=f"destroy {instance}")
