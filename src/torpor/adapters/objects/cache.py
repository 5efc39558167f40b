"""A remote store with this node's copies of what never changes there.

Packs and manifests are sealed, so their copies are too. Heads, listings and conditional writes always go to the store.
An object that somebody else deleted may still be read from here: who must know what the store has (``store check``,
garbage collection) asks the store without this wrapper.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from torpor.adapters.objects.cache_folder import CacheFolder
from torpor.domain.errors import Corrupt, NotFound, Unavailable
from torpor.ports.objects import ObjectInfo, ObjectStore, note_traffic


@dataclass(slots=True)
class CacheCounts:
    """Bytes since the start: answered from the folder, and fetched from the store (those that many wait for, once)."""

    cached_bytes: int = 0
    fetched_bytes: int = 0


@dataclass(eq=False, slots=True)
class _Flight:
    """A fetch under way, from ``offset`` to ``end`` (None: the whole object). Its outcome None: fetch it yourself."""

    offset: int
    end: int | None
    outcome: asyncio.Future[bytes | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def holds(self, offset: int) -> bool:
        """If the byte there is being fetched."""
        return self.offset <= offset and (self.end is None or offset < self.end)


class CachedObjects:
    """Serves keys that ``is_immutable`` from ``folder`` where it can. What many ask for at once is fetched once."""

    def __init__(self, inner: ObjectStore, folder: CacheFolder, *, is_immutable: Callable[[str], bool]) -> None:
        self._inner = inner
        self._folder = folder
        self._is_immutable = is_immutable
        self._flights: dict[str, list[_Flight]] = {}
        self.counts = CacheCounts()

    async def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write to the store, then keep: who wrote a snapshot is the likeliest to read it."""
        self._folder.drop(key)
        info = await self._inner.put(key, data)
        if self._is_immutable(key):
            self._folder.drop(key)
            await self._folder.add(key, 0, data, is_whole=True)
        return info

    async def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Always to the store."""
        self._folder.drop(key)
        return await self._inner.put_if(key, data, etag=etag)

    async def get(self, key: str) -> bytes:
        """The whole object, from the folder if it is whole there."""
        if not self._is_immutable(key):
            return await self._inner.get(key)
        while True:
            if piece := self._folder.whole(key):
                data = await self._folder.read(piece, 0, piece.size)
                self._note_cached(data)
            elif flight := next((one for one in self._of(key) if one.end is None), None):
                data = await asyncio.shield(flight.outcome)
                note_traffic(fetched_bytes=len(data or b""))
            else:
                data = await self._fetched(key, _Flight(0, None), lambda: self._inner.get(key))
            if data is not None:
                return data

    async def get_range(self, key: str, *, offset: int, size: int) -> bytes:
        """The range, of pieces from the folder and what is lacking from the store."""
        if not self._is_immutable(key) or size == 0:
            return await self._inner.get_range(key, offset=offset, size=size)
        parts: list[bytes] = []
        end = offset + size
        while offset < end:
            part = await self._next_part(key, offset, end)
            if part is not None:
                parts.append(part)
                offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def head(self, key: str) -> ObjectInfo:
        """Always from the store."""
        return await self._inner.head(key)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Always from the store."""
        return self._inner.list(prefix)

    async def delete(self, key: str) -> None:
        """From both."""
        self._folder.drop(key)
        await self._inner.delete(key)
        self._folder.drop(key)

    async def _next_part(self, key: str, offset: int, end: int) -> bytes | None:
        """Bytes from ``offset``, at most to ``end``; None: look again, for what was there has gone."""
        if piece := self._folder.at(key, offset):
            data = await self._folder.read(piece, offset, min(end, piece.end))
            self._note_cached(data)
            return data
        if flight := next((one for one in self._of(key) if one.holds(offset)), None):
            data = await asyncio.shield(flight.outcome)
            part = data and data[offset - flight.offset : end - flight.offset]
            if data is not None and not part:
                raise Corrupt(f"cannot read {key} up to {end}: it has {len(data)} bytes", key=key)
            note_traffic(fetched_bytes=len(part or b""))
            return part
        starts = (flight.offset for flight in self._of(key) if flight.offset > offset)
        until = min(end, self._folder.next_start(key, offset, end), *starts)
        fetch = _Flight(offset, until)
        return await self._fetched(key, fetch, lambda: self._inner.get_range(key, offset=offset, size=until - offset))

    async def _fetched(self, key: str, flight: _Flight, fetch: Callable[[], Awaitable[bytes]]) -> bytes:
        """Fetch and keep; others who ask meanwhile get the same, but not our cancellation."""
        data: bytes | None = None
        self._flights.setdefault(key, []).append(flight)
        try:
            data = await fetch()
            self.counts.fetched_bytes += len(data)
            await self._folder.add(key, flight.offset, data, is_whole=flight.end is None)
        except (Unavailable, NotFound) as error:
            flight.outcome.set_exception(error)
            flight.outcome.exception()  # it may be that nobody else asked
            raise
        finally:
            flights = self._flights[key]
            flights.remove(flight)
            if not flights:
                del self._flights[key]
            if not flight.outcome.done():
                flight.outcome.set_result(data)
        return data

    def _of(self, key: str) -> Sequence[_Flight]:
        return self._flights.get(key, ())

    def _note_cached(self, data: bytes | None) -> None:
        if data is not None:
            self.counts.cached_bytes += len(data)
            note_traffic(cached_bytes=len(data))
