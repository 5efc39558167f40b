"""``sockets.Socket``, awaited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from torpor.apps.sdk.access import Access
from torpor.apps.sdk.sockets import FAILURES, JSON, address, heard, lost, options, refusal, written


class AsyncSocket:
    """See ``sockets.Socket``."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    @classmethod
    @asynccontextmanager
    async def open(cls, access: Access, path: str, query: Mapping[str, Any] | None = None) -> AsyncIterator[Self]:
        """See ``sockets.Socket``."""
        try:
            connection = await connect(address(access, path, query), **options(access))
        except FAILURES as error:
            raise refusal(access, error) from error
        async with connection:
            yield cls(connection, access.url)

    async def send(self, said: bytes | JSON) -> None:
        """See ``sockets.Socket``."""
        try:
            await self._connection.send(written(said))
        except ConnectionClosed as error:
            raise lost(self._url, error) from error

    async def close(self) -> None:
        """See ``sockets.Socket``."""
        await self._connection.close()

    async def messages(self) -> AsyncGenerator[bytes | JSON]:
        """What comes, until the server closes."""
        try:
            async for message in self._connection:
                yield heard(message)
        except ConnectionClosed as error:
            raise lost(self._url, error) from error
