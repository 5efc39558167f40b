"""Objects in this process's memory: the shipped fake, under the same contract as the others."""

from __future__ import annotations

from collections.abc import AsyncIterator

from torpor.adapters.objects.object_key import checked_key, checked_prefix
from torpor.domain.errors import Corrupt, NotFound, StaleRevision, StorageFull
from torpor.ports.objects import ObjectInfo


class MemoryObjects:
    """A dictionary. ``capacity_bytes`` makes a disk that can be full; None has no end."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._write_count = 0

    async def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write."""
        return self._write(checked_key(key), data)

    async def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Write under a condition."""
        found = self._objects.get(checked_key(key))
        current = str(found[1]) if found else None
        if current != etag:
            raise StaleRevision(f"cannot write {key}: its etag is {current}, not {etag}", key=key)
        return self._write(key, data)

    async def get(self, key: str) -> bytes:
        """Read."""
        return self._find(key)[0]

    async def get_range(self, key: str, *, offset: int, size: int) -> bytes:
        """Read a range."""
        data = self._find(key)[0]
        if offset + size > len(data):
            raise Corrupt(f"cannot read {key} up to {offset + size}: it has {len(data)} bytes", key=key)
        return data[offset : offset + size]

    async def head(self, key: str) -> ObjectInfo:
        """Size and etag."""
        return _info(key, self._find(key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """List, as it is at the call."""
        start = checked_prefix(prefix)
        for key in sorted(key for key in self._objects if key.startswith(start)):
            if (found := self._objects.get(key)) is not None:
                yield _info(key, found)

    async def delete(self, key: str) -> None:
        """Remove."""
        self._objects.pop(checked_key(key), None)

    def _write(self, key: str, data: bytes) -> ObjectInfo:
        if self.capacity_bytes is not None:
            held = sum(len(held) for other, (held, _) in self._objects.items() if other != key)
            if held + len(data) > self.capacity_bytes:
                raise StorageFull(
                    f"cannot write {key}: {len(data)} bytes on top of {held} exceed {self.capacity_bytes}"
                )
        self._write_count += 1
        written = self._objects[key] = (bytes(data), self._write_count)
        return _info(key, written)

    def _find(self, key: str) -> tuple[bytes, int]:
        found = self._objects.get(checked_key(key))
        if found is None:
            raise NotFound(f"cannot find object {key}", key=key)
        return found


def _info(key: str, found: tuple[bytes, int]) -> ObjectInfo:
    data, write = found
    return ObjectInfo(key=key, size_bytes=len(data), etag=str(write))
