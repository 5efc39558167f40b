"""What tests of sessions over fakes ask again and again."""

from __future__ import annotations

import asyncio

from torpor.domain.ids import DEFAULT_TENANT


async def value(node, ref, source):
    """What a burst that must succeed gives; nothing is an empty text."""
    burst = await node.sessions.code(DEFAULT_TENANT, ref, source)
    assert burst.result.error is None, burst.result.error
    return burst.result.result["text/plain"] if burst.result.result else ""


async def until(condition):
    """Return once the asynchronous ``condition`` holds."""
    for _ in range(2000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")
