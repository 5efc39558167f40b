"""Blobs by key. Retry, limit, cache, metering and fault injection are wrappers that implement the same port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing says of one object. ``etag`` changes with every write of other bytes."""

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

        Bytes that were there before may have the etag that they had (S3's is a digest of them), so ``data`` must hold
        something unique to this write: that also tells, after a lost answer, whose write it is.
        Raises: StaleRevision if the condition did not hold. Not idempotent: after Unavailable read back, and after
        StaleRevision too, for a transport may have repeated the request by itself.
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


@dataclass(slots=True)
class Traffic:
    """Bytes of objects that were read meanwhile: over the network, or from this node's cache instead.

    A store that is a folder of this node counts as neither.
    """

    fetched_bytes: int = 0
    cached_bytes: int = 0

    @property
    def is_cold(self) -> bool:
        """Something had to come over the network."""
        return self.fetched_bytes > 0


_TRAFFIC: ContextVar[Traffic | None] = ContextVar("torpor_object_traffic", default=None)


@contextmanager
def traffic_noted() -> Iterator[Traffic]:
    """Count what object stores read for this task, and for tasks begun within the block, until it ends.

    An inner block counts for itself alone.
    """
    traffic = Traffic()
    token = _TRAFFIC.set(traffic)
    try:
        yield traffic
    finally:
        _TRAFFIC.reset(token)


def note_traffic(*, fetched_bytes: int = 0, cached_bytes: int = 0) -> None:
    """Called by adapters, once for each read, in the task that asked."""
    traffic = _TRAFFIC.get()
    if traffic is not None:
        traffic.fetched_bytes += fetched_bytes
        traffic.cached_bytes += cached_bytes
