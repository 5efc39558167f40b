"""From a snapshot to files: manifest, then packs in large ranges by offset, opened on threads straight into place.

Invariant: what is in a file came out of an authentic envelope or is a hole; on failure no file of the call is left.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torpor.domain.errors import Corrupt, NotFound, StorageFull, Unavailable
from torpor.domain.snapshot import ChunkRef, Manifest, PackRef, Part, SnapshotRef
from torpor.store.format.envelope import Opener
from torpor.store.layout import pack_key
from torpor.store.outside import Outside
from torpor.store.pipeline import for_each, run, task_group, worker_pool
from torpor.store.placed_data import PlacedData
from torpor.store.requests import ReadOptions, ReadReport
from torpor.store.resident import Held, ResidentChunks
from torpor.store.timings import Stopwatch

FETCH_BYTES_MAX = 2 * 1024 * 1024  # of sealed bytes
FETCH_GAP_BYTES_MAX = 128 * 1024  # read over smaller gaps rather than ask twice: an answer costs as much time as these
FETCH_COUNT_MAX = 4  # large ones at once: they fill the line, and lie in memory meanwhile
SMALL_FETCH_BYTES_MAX = 64 * 1024
SMALL_FETCH_COUNT_MAX = 16  # beside them: each of these only waits for the store to answer
COPY_BYTES = 16 * 1024 * 1024  # copied from a resident by one job
BATCH_BYTES = 4 * 1024 * 1024  # of plaintext, opened by one job
VECTORS_MAX = 512  # below IOV_MAX


@dataclass(frozen=True, slots=True)
class Fetch:
    """One ranged read and the chunks in it, by offset."""

    pack: PackRef
    offset_bytes: int
    size_bytes: int
    chunk_indexes: tuple[int, ...]


def plan_fetches(manifest: Manifest, chunk_indexes: Collection[int]) -> list[Fetch]:
    """Ranged reads that cover the chunks, by pack and offset. Pure."""
    chunks = manifest.chunks
    ordered = sorted(chunk_indexes, key=lambda index: (chunks[index].pack, chunks[index].offset_bytes))
    fetches: list[Fetch] = []
    group: list[int] = []
    plain_bytes = 0

    def close() -> None:
        first, last = chunks[group[0]], chunks[group[-1]]
        size_bytes = last.offset_bytes + last.sealed_bytes - first.offset_bytes
        fetches.append(Fetch(manifest.packs[first.pack], first.offset_bytes, size_bytes, tuple(group)))

    for index in ordered:
        plain_bytes += chunks[index].plain_bytes
        fits = group and _fits(chunks[group[0]], chunks[group[-1]], chunks[index]) and plain_bytes <= BATCH_BYTES
        if group and not fits:
            close()
            group, plain_bytes = [], chunks[index].plain_bytes
        group.append(index)
    if group:
        close()
    return fetches


def _fits(first: ChunkRef, last: ChunkRef, chunk: ChunkRef) -> bool:
    gap_bytes = chunk.offset_bytes - (last.offset_bytes + last.sealed_bytes)
    size_bytes = chunk.offset_bytes + chunk.sealed_bytes - first.offset_bytes
    return chunk.pack == last.pack and gap_bytes <= FETCH_GAP_BYTES_MAX and size_bytes <= FETCH_BYTES_MAX


async def read_snapshot(
    outside: Outside, ref: SnapshotRef, into: Path, *, parts: Collection[str] | None, options: ReadOptions
) -> ReadReport:
    """Write the parts as files; the contract is ``SnapshotStore.read``'s."""
    watch = Stopwatch(outside.clock)
    with watch.phase("total"):
        with watch.phase("manifest"):
            manifest = options.manifest or await outside.manifests.open(ref)
        names = [part.name for part in manifest.parts] if parts is None else list(dict.fromkeys(parts))
        wanted = [manifest.part(name) for name in names]
        with _targets(wanted, into, options.blank) as targets, ResidentChunks(options.resident) as held:
            reading = _Reading(outside, manifest, targets, held, watch)
            async with worker_pool(outside.workers) as pool:
                await reading.perform(pool)
    return ReadReport(
        files={part.name: into / part.name for part in wanted},
        image_bytes=sum(part.size_bytes for part in wanted),
        bytes_read=reading.bytes_read,
        chunk_count=reading.chunk_count,
        resident_chunk_count=reading.resident_chunk_count,
        timings_ms=watch.timings_ms(),
    )


class _Reading:
    """One read: which chunk goes where, and the buffers of each thread."""

    def __init__(
        self,
        outside: Outside,
        manifest: Manifest,
        targets: Sequence[_Target],
        held: ResidentChunks,
        watch: Stopwatch,
    ) -> None:
        self._outside = outside
        self._held = held
        self._manifest = manifest
        self._watch = watch
        self._thread = threading.local()
        # By chunk: target, offset in its data, first byte of the chunk, bytes.
        self._places: dict[int, list[tuple[_Target, int, int, int]]] = {}
        self._copies: list[Copy] = []
        self._batch_bytes = min(BATCH_BYTES, sum(target.part.data_bytes for target in targets))
        held_at = {index: held.get(self._stored_at(index)) for index in _named_chunks(targets)}
        for target in targets:
            self._plan(target, held_at)
        self.chunk_count = len(held_at)
        self.resident_chunk_count = sum(place is not None for place in held_at.values())
        self.bytes_read = 0

    def _plan(self, target: _Target, held_at: Mapping[int, Held | None]) -> None:
        """Note for every extent where it comes from; neighbours in a resident's file and in ours become one copy."""
        offset_bytes, granule_bytes = 0, target.part.granule_bytes
        copying = _Copies(target, self._copies)
        for extent in target.part.extents:
            size_bytes = extent.size_bytes(self._manifest.chunks[extent.chunk_index], granule_bytes)
            first_byte = extent.first_granule * granule_bytes
            place = held_at[extent.chunk_index]
            if place is None:
                piece = (target, offset_bytes, first_byte, size_bytes)
                self._places.setdefault(extent.chunk_index, []).append(piece)
            else:
                copying.add(place, first_byte, offset_bytes, size_bytes)
            offset_bytes += size_bytes
        copying.end()

    async def perform(self, pool: ThreadPoolExecutor) -> None:
        """Copies follow one another: writers of one file would only wait for its lock. Opening goes on beside them."""

        async def fetch_and_open(fetch: Fetch) -> None:
            with self._watch.phase("fetch"):
                data = await fetch_range(self._outside, fetch)
            self.bytes_read += len(data)
            await run(pool, self._open, (fetch, data))

        async def copy() -> None:
            for copies in _jobs(self._copies):
                await run(pool, self._copy, copies)

        fetches = plan_fetches(self._manifest, self._places)
        large = [fetch for fetch in fetches if fetch.size_bytes > SMALL_FETCH_BYTES_MAX]
        small = [fetch for fetch in fetches if fetch.size_bytes <= SMALL_FETCH_BYTES_MAX]
        async with task_group() as group:
            group.create_task(copy())
            group.create_task(for_each(large, fetch_and_open, limit=FETCH_COUNT_MAX))
            await for_each(small, fetch_and_open, limit=SMALL_FETCH_COUNT_MAX)

    def _stored_at(self, index: int) -> tuple[PackRef, int]:
        chunk = self._manifest.chunks[index]
        return self._manifest.packs[chunk.pack], chunk.offset_bytes

    def _copy(self, copies: tuple[Copy, ...]) -> None:
        with self._watch.phase("copy"):
            for copy in copies:
                copy.perform()

    def _write_chunks(self, plaintexts: Mapping[int, memoryview]) -> None:
        pieces: dict[_Target, list[tuple[int, memoryview]]] = {}
        for index, plaintext in plaintexts.items():
            for target, offset_bytes, first_byte, size_bytes in self._places[index]:
                data = plaintext[first_byte : first_byte + size_bytes]
                pieces.setdefault(target, []).extend(target.placed(data, offset_bytes))
        _write(pieces)

    def _batch(self, size_bytes: int) -> memoryview:
        """A buffer of this thread, at least so long; valid until the next call on it."""
        batch: memoryview | None = getattr(self._thread, "batch", None)
        if batch is None or len(batch) < size_bytes:
            batch = self._thread.batch = memoryview(bytearray(max(size_bytes, self._batch_bytes)))
        return batch

    def _open(self, item: tuple[Fetch, bytes]) -> None:
        fetch, data = item
        with self._watch.phase("open"):
            opener, view = self._opener(), memoryview(data)
            batch = self._batch(sum(self._manifest.chunks[index].plain_bytes for index in fetch.chunk_indexes))
            plaintexts: dict[int, memoryview] = {}
            for index in fetch.chunk_indexes:
                chunk = self._manifest.chunks[index]
                start = chunk.offset_bytes - fetch.offset_bytes
                plaintexts[index], batch = batch[: chunk.plain_bytes], batch[chunk.plain_bytes :]
                open_chunk_into(opener, view[start : start + chunk.sealed_bytes], plaintexts[index], chunk, fetch.pack)
            self._write_chunks(plaintexts)

    def _opener(self) -> Opener:
        opener: Opener | None = getattr(self._thread, "opener", None)
        if opener is None:
            opener = self._thread.opener = Opener()
        return opener


@dataclass(frozen=True, slots=True)
class Copy:
    """``size_bytes`` of a resident's data from ``from_bytes`` on, and the offset in the target's data where they go."""

    held: Held
    from_bytes: int
    target: _Target
    offset_bytes: int
    size_bytes: int

    def perform(self) -> None:
        """Copy, within the kernel. On any thread."""
        from_bytes = self.from_bytes
        for file_offset_bytes, count in self.target.data.pieces(self.offset_bytes, self.size_bytes):
            at = file_offset_bytes
            for held_offset_bytes, held_count in self.held.data.pieces(from_bytes, count):
                self.target.copy(self.held.file, held_offset_bytes, at, held_count)
                at += held_count
            from_bytes += count


class _Copies:
    """Joins copies into one target where both sides go on, and cuts them at what one job may copy."""

    def __init__(self, target: _Target, into: list[Copy]) -> None:
        self._target = target
        self._into = into
        self._held: Held | None = None
        self._from_bytes = 0
        self._offset_bytes = 0
        self._size_bytes = 0

    def add(self, held: Held, first_byte: int, offset_bytes: int, size_bytes: int) -> None:
        """Copies come in the order of the target's data. ``first_byte``: of the held chunk."""
        from_bytes = held.offset_bytes + first_byte
        goes_on = (
            self._held is not None
            and self._held.data is held.data
            and self._from_bytes + self._size_bytes == from_bytes
            and self._offset_bytes + self._size_bytes == offset_bytes
            and self._size_bytes + size_bytes <= COPY_BYTES
        )
        if goes_on:
            self._size_bytes += size_bytes
            return
        self.end()
        self._held, self._from_bytes, self._offset_bytes, self._size_bytes = held, from_bytes, offset_bytes, size_bytes

    def end(self) -> None:
        """Hand over the last one."""
        if self._held is not None:
            self._into.append(Copy(self._held, self._from_bytes, self._target, self._offset_bytes, self._size_bytes))
            self._held = None


def _jobs(copies: Sequence[Copy]) -> Iterator[tuple[Copy, ...]]:
    """Copies in order, in groups of up to COPY_BYTES."""
    group: list[Copy] = []
    size_bytes = 0
    for copy in copies:
        if group and size_bytes + copy.size_bytes > COPY_BYTES:
            yield tuple(group)
            group, size_bytes = [], 0
        group.append(copy)
        size_bytes += copy.size_bytes
    if group:
        yield tuple(group)


def _named_chunks(targets: Sequence[_Target]) -> set[int]:
    return {extent.chunk_index for target in targets for extent in target.part.extents}


def _write(pieces: Mapping[_Target, list[tuple[int, memoryview]]]) -> None:
    """Neighbours together: a system call costs two fights for the interpreter."""
    for target, placed in pieces.items():
        target.write(placed)


async def fetch_range(outside: Outside, fetch: Fetch) -> bytes:
    """The bytes of one fetch. Raises: Corrupt if the pack is missing or too short: a manifest names it."""
    key = pack_key(fetch.pack)
    try:
        return await outside.objects.get_range(key, offset=fetch.offset_bytes, size=fetch.size_bytes)
    except NotFound as error:
        raise Corrupt(f"cannot read {key}: a manifest names this pack but it is missing", key=key) from error


def open_chunk_into(opener: Opener, sealed: memoryview, into: memoryview, chunk: ChunkRef, pack: PackRef) -> None:
    """``open_chunk`` into a buffer of exactly the plaintext's size. Raises: Corrupt."""
    try:
        opener.open_into(sealed, into, key=chunk.key)
    except Corrupt as error:
        raise Corrupt(f"cannot read {pack_key(pack)} at {chunk.offset_bytes}: {error.message}") from error


def open_chunk(opener: Opener, sealed: memoryview, chunk: ChunkRef, pack: PackRef) -> memoryview:
    """The chunk's plaintext, a view valid until the opener's next call. Raises: Corrupt.

    The tag, under a key that only the sealed manifest names, proves the bytes to be those that were sealed. Comparing
    the digest as well would find nothing but a defect of our own writer, and cost a sixth of a read: ``check`` does it.
    """
    try:
        return opener.open(sealed, key=chunk.key, plain_bytes=chunk.plain_bytes)
    except Corrupt as error:
        raise Corrupt(f"cannot read {pack_key(pack)} at {chunk.offset_bytes}: {error.message}") from error


class _Target:
    """A part's file being written. Zero runs stay holes."""

    def __init__(self, part: Part, path: Path, *, is_blank: bool) -> None:
        self.part = part
        self.path = path
        self.data = PlacedData(part)
        with _disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not is_blank:
                path.unlink(missing_ok=True)
            made = 0 if is_blank else os.O_CREAT | os.O_EXCL
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | made, 0o600)
            try:
                os.ftruncate(self._descriptor, part.size_bytes)
            except OSError:
                self.close()
                path.unlink()
                raise

    def placed(self, plaintext: memoryview, offset_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """(offset in the file, bytes) of a piece of the part's data, cut around the zero runs."""
        for file_offset_bytes, count in self.data.pieces(offset_bytes, len(plaintext)):
            yield file_offset_bytes, plaintext[:count]
            plaintext = plaintext[count:]

    def write(self, placed: list[tuple[int, memoryview]]) -> None:
        """Write pieces at their offsets, adjacent ones in one call. On any thread."""
        placed.sort(key=lambda piece: piece[0])
        start = 0
        while start < len(placed):
            end, reach = start, placed[start][0]
            while end < len(placed) and placed[end][0] == reach and end - start < VECTORS_MAX:
                reach += len(placed[end][1])
                end += 1
            self._write_at([piece for _, piece in placed[start:end]], placed[start][0])
            start = end

    def copy(self, file: int, from_bytes: int, at_bytes: int, size_bytes: int) -> None:
        """Copy a range of an open file to ``at_bytes``. On any thread."""
        with _disk(self.path):
            while size_bytes:
                count = os.copy_file_range(file, self._descriptor, size_bytes, from_bytes, at_bytes)
                assert count, "a resident's file ends early"
                from_bytes, at_bytes, size_bytes = from_bytes + count, at_bytes + count, size_bytes - count

    def close(self) -> None:
        """Let go of the file. No thread may write any more."""
        os.close(self._descriptor)

    def _write_at(self, pieces: list[memoryview], file_offset_bytes: int) -> None:
        with _disk(self.path):
            while pieces:
                count = os.pwritev(self._descriptor, pieces, file_offset_bytes)
                file_offset_bytes += count
                while pieces and count >= len(pieces[0]):
                    count -= len(pieces.pop(0))
                if count:
                    pieces[0] = pieces[0][count:]


@contextmanager
def _targets(parts: Sequence[Part], into: Path, blank: Collection[str]) -> Iterator[list[_Target]]:
    """Files for the parts; removed again if the block fails or is cancelled."""
    targets: list[_Target] = []
    with ExitStack() as closing:
        try:
            for part in parts:
                targets.append(_Target(part, into / part.name, is_blank=part.name in blank))
                closing.callback(targets[-1].close)
            yield targets
        except BaseException:
            for target in targets:
                target.path.unlink(missing_ok=True)
            raise


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageFull(f"cannot write {path}: no room left; free some space") from error
        raise Unavailable(f"cannot write {path}: {error.strerror}") from error
