"""A wrapper that changes nothing: what the others override."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from torpor.ports.objects import ObjectInfo, ObjectStore

Answer = TypeVar("Answer")


class Operation(StrEnum):
    """A method of the port."""

    PUT = "put"
    PUT_IF = "put_if"
    GET = "get"
    GET_RANGE = "get_range"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``key`` is the prefix of a listing; ``sent_bytes`` the size of what is written."""

    operation: Operation
    key: str
    sent_bytes: int = 0


class ForwardingObjects:
    """Hands every call on to ``inner`` through ``_around``. Listings do not pass there: override ``list``."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    async def _around(self, call: Call, perform: Callable[[], Awaitable[Answer]]) -> Answer:
        """Perform the call; ``perform`` may be called again."""
        del call
        return await perform()

    async def put(self, key: str, data: bytes) -> ObjectInfo:
        """See the port."""
        return await self._around(Call(Operation.PUT, key, len(data)), lambda: self._inner.put(key, data))

    async def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """See the port."""
        call = Call(Operation.PUT_IF, key, len(data))
        return await self._around(call, lambda: self._inner.put_if(key, data, etag=etag))

    async def get(self, key: str) -> bytes:
        """See the port."""
        return await self._around(Call(Operation.GET, key), lambda: self._inner.get(key))

    async def get_range(self, key: str, *, offset: int, size: int) -> bytes:
        """See the port."""
        call = Call(Operation.GET_RANGE, key)
        return await self._around(call, lambda: self._inner.get_range(key, offset=offset, size=size))

    async def head(self, key: str) -> ObjectInfo:
        """See the port."""
        return await self._around(Call(Operation.HEAD, key), lambda: self._inner.head(key))

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See the port."""
        return self._inner.list(prefix)

    async def delete(self, key: str) -> None:
        """See the port."""
        await self._around(Call(Operation.DELETE, key), lambda: self._inner.delete(key))
