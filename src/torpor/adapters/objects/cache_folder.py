"""Pieces of objects in a folder, bounded in bytes, the least recently used dropped first.

A piece is one file, named by digest of the key, offset and size (``-whole`` if the object ends there), so that a start
finds all it needs in names, sizes and dates. It holds digests of its blocks, then its bytes: whatever a crash or a bad
disk did to a file is noticed at the next read of it. Nothing is synced: a cache that is lost costs only time.
Until its file is written a piece is served from memory, so that nobody who fetched one waits for this disk.
For one process at a time. Index and budget are touched by the event loop's thread only, files by others.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from torpor.domain.errors import Unavailable

BLOCK_BYTES = 128 * 1024
UNWRITTEN_BYTES_MAX = 8 * 1024 * 1024  # more than that waits for the disk: memory is not the cache
DIGEST_BYTES = 16
_NAME = re.compile(r"(?P<key>[0-9a-f]{32})-(?P<offset>\d+)-(?P<size>\d+)(?P<whole>-whole)?")


@dataclass(frozen=True, slots=True)
class Piece:
    """``size`` bytes of an object from ``offset``. ``key``: digest of its key. ``is_whole``: all of it."""

    key: str
    offset: int
    size: int
    is_whole: bool = False

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.size

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.key}-{self.offset}-{self.size}{'-whole' if self.is_whole else ''}"

    @property
    def digests_bytes(self) -> int:
        """What stands before its bytes."""
        return DIGEST_BYTES * -(-self.size // BLOCK_BYTES)

    @property
    def file_bytes(self) -> int:
        """What it takes from the budget."""
        return self.digests_bytes + self.size


@dataclass(eq=False, slots=True)
class _Writing:
    """A file that is being written under another name. Its piece may be forgotten meanwhile, and even added again."""

    data: bytes
    unfinished: Path
    done: asyncio.Future[bool]


class CacheFolder:
    """Pieces under ``root``, which is made if absent (mode 0700). Raises Unavailable if it cannot be."""

    def __init__(self, root: Path, budget_bytes: int) -> None:
        self._root = root
        self._budget_bytes = budget_bytes
        self._pieces: OrderedDict[Piece, None] = OrderedDict()  # least recently used first
        self._of_key: dict[str, list[Piece]] = {}
        self._unwritten: dict[Piece, _Writing] = {}  # pieces that have no file yet
        self._writings: set[_Writing] = set()  # also of pieces that were forgotten
        self._names = itertools.count()
        self.held_bytes = 0
        self.corrupt_count = 0
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._find_pieces()
        except OSError as error:
            raise Unavailable(f"cannot use {root} as a cache: {error.strerror}", retry_after_s=60.0) from error

    def at(self, key: str, offset: int) -> Piece | None:
        """A piece that has the byte at ``offset``."""
        return next((piece for piece in self._of(key) if piece.offset <= offset < piece.end), None)

    def next_start(self, key: str, offset: int, end: int) -> int:
        """Where the first piece after ``offset`` begins, at most ``end``."""
        return min((piece.offset for piece in self._of(key) if piece.offset > offset), default=end)

    def whole(self, key: str) -> Piece | None:
        """The piece that is the whole object."""
        return next((piece for piece in self._of(key) if piece.is_whole), None)

    async def read(self, piece: Piece, start: int, end: int) -> bytes | None:
        """The object's bytes from ``start`` to ``end``, both within the piece; None if it was not intact: gone."""
        if writing := self._unwritten.get(piece):
            self._pieces.move_to_end(piece)
            return writing.data[start - piece.offset : end - piece.offset]
        data = await asyncio.to_thread(self._read, piece, start - piece.offset, end - piece.offset)
        if piece in self._pieces:
            if data is None:
                self.corrupt_count += 1
                self._forget([piece])
            else:
                self._pieces.move_to_end(piece)
        return data

    async def add(self, key: str, offset: int, data: bytes, *, is_whole: bool) -> None:
        """Keep a piece, and drop others for it. Larger than the budget or refused by the disk: not kept, no error.

        It can be read when this returns; its file may be written later, but so much only as ``UNWRITTEN_BYTES_MAX``.
        """
        piece = Piece(_digest(key), offset, len(data), is_whole)
        if piece in self._pieces or piece.file_bytes > self._budget_bytes or (not data and not is_whole):
            return
        if is_whole:  # an object that is here whole needs no other pieces
            self.drop(key)
        self._make_room(piece.file_bytes)
        self._index(piece)
        self._start_writing(piece, data)
        if sum(len(writing.data) for writing in self._writings) > UNWRITTEN_BYTES_MAX:
            await asyncio.wait((self._unwritten[piece].done,))

    async def written(self) -> None:
        """Wait until every piece has its file, or was refused by the disk."""
        while self._writings:
            await asyncio.wait([writing.done for writing in self._writings])

    def drop(self, key: str) -> None:
        """Forget all pieces of an object."""
        self._forget(tuple(self._of(key)))

    def _start_writing(self, piece: Piece, data: bytes) -> None:
        unfinished = self._root / f"{piece.name}.{next(self._names)}"
        done = asyncio.get_running_loop().run_in_executor(None, _write, unfinished, data)
        writing = self._unwritten[piece] = _Writing(data, unfinished, done)
        self._writings.add(writing)
        done.add_done_callback(lambda _: self._settle(piece, writing))

    def _settle(self, piece: Piece, writing: _Writing) -> None:
        """From here on its file serves the piece, unless it was forgotten meanwhile or the disk refused it."""
        self._writings.remove(writing)
        is_current = self._unwritten.get(piece) is writing
        with suppress(OSError):
            if is_current and not writing.done.cancelled() and writing.done.result():
                writing.unfinished.rename(self._root / piece.name)
                del self._unwritten[piece]
                return
        with suppress(OSError):
            writing.unfinished.unlink()
        if is_current:
            self._forget([piece])

    def _index(self, piece: Piece) -> None:
        self._pieces[piece] = None
        self._of_key.setdefault(piece.key, []).append(piece)
        self.held_bytes += piece.file_bytes

    def _of(self, key: str) -> Iterable[Piece]:
        return self._of_key.get(_digest(key), ())

    def _make_room(self, size_bytes: int) -> None:
        while self._pieces and self.held_bytes + size_bytes > self._budget_bytes:
            self._forget([next(iter(self._pieces))])

    def _forget(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            del self._pieces[piece]
            others = self._of_key[piece.key]
            others.remove(piece)
            if not others:
                del self._of_key[piece.key]
            self.held_bytes -= piece.file_bytes
            if self._unwritten.pop(piece, None) is None:
                with suppress(OSError):
                    (self._root / piece.name).unlink()

    def _find_pieces(self) -> None:
        """What an earlier process left, in order of last use; files that are no whole piece go."""
        found: list[tuple[int, Piece]] = []
        for entry in os.scandir(self._root):
            match, status = _NAME.fullmatch(entry.name), entry.stat(follow_symlinks=False)
            piece = match and Piece(match["key"], int(match["offset"]), int(match["size"]), bool(match["whole"]))
            if piece and status.st_size == piece.file_bytes:
                found.append((status.st_mtime_ns, piece))
            else:
                os.unlink(entry.path)
        for _, piece in sorted(found, key=lambda one: one[0]):
            self._index(piece)
        self._make_room(0)

    def _read(self, piece: Piece, start: int, end: int) -> bytes | None:
        """Bytes of the piece, counted from its start; None unless all blocks that hold them are intact."""
        first, after = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        path = self._root / piece.name
        try:
            with open(path, "rb", buffering=0) as file:
                digests = os.pread(file.fileno(), (after - first) * DIGEST_BYTES, first * DIGEST_BYTES)
                size = min(after * BLOCK_BYTES, piece.size) - first * BLOCK_BYTES
                blocks = os.pread(file.fileno(), size, piece.digests_bytes + first * BLOCK_BYTES)
                os.utime(file.fileno())
        except OSError:
            return None
        if len(blocks) != size or _digests(blocks) != digests:
            return None
        skip = start - first * BLOCK_BYTES
        return blocks if skip == 0 and end - start == size else blocks[skip : skip + end - start]


def _write(path: Path, data: bytes) -> bool:
    """False if the disk refused it."""
    try:
        with open(path, "wb", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            for block in (_digests(data), data):
                rest = memoryview(block)
                while rest:
                    rest = rest[file.write(rest) :]
    except OSError:
        return False
    return True


def _digest(key: str) -> str:
    return blake3(key.encode()).hexdigest(length=16)


def _digests(data: bytes) -> bytes:
    view = memoryview(data)
    return b"".join(
        blake3(view[at : at + BLOCK_BYTES]).digest(length=DIGEST_BYTES) for at in range(0, len(view), BLOCK_BYTES)
    )
