"""Blobs by key. Retry, cache, metering and fault injection are wrappers that implement the same port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing says of one object. ``etag`` changes with every write of that key."""

    key: str
    size_bytes: int
    etag: str


class ObjectStore(Protocol):
    """Keys are ``/``-separated, of ``[A-Za-z0-9._-]``, without empty, ``.`` or ``..`` parts; at most 512 characters.

    A write that returned is durable (it survives power loss as far as the medium promises); one that raised may or
    may not have happened, but is never visible in part. May be called concurrently.

    Errors of every method: Unavailable (repeat), StorageFull, InvalidArgument (a malformed key).
    """

    async def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write the object whole, replacing any of that key. Idempotent."""
        ...

    async def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Write only if the object's etag is ``etag``; ``None``: only if there is no such object.

        Raises: StaleRevision if the condition did not hold. Not idempotent: after Unavailable read back.
        """
        ...

    async def get(self, key: str) -> bytes:
        """The whole object. Raises: NotFound."""
        ...

    async def get_range(self, key: str, *, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes from ``offset``. Raises: NotFound; Corrupt if the object ends before."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Size and etag. Raises: NotFound."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """All objects whose key starts with ``prefix``, in key order. ``prefix`` may be empty or end anywhere."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the object; absent is fine. Idempotent."""
        ...
