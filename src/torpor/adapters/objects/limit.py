"""Bounds how much is asked at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from torpor.adapters.objects.forwarding import Answer, Call, ForwardingObjects
from torpor.ports.objects import ObjectInfo, ObjectStore


class LimitObjects(ForwardingObjects):
    """At most ``count`` calls at once; others wait in the order they came.

    A listing holds its place only while it waits for the store, so that its reader may call us in between.
    """

    def __init__(self, inner: ObjectStore, count: int) -> None:
        assert count >= 1
        super().__init__(inner)
        self._places = asyncio.Semaphore(count)

    async def _around(self, call: Call, perform: Callable[[], Awaitable[Answer]]) -> Answer:
        del call
        async with self._places:
            return await perform()

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See the port."""
        found = aiter(self._inner.list(prefix))
        while True:
            async with self._places:
                info = await anext(found, None)
            if info is None:
                return
            yield info
