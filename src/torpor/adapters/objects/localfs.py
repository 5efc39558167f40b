"""Objects as files under one folder, durable on return and safe among processes on one machine.

Ours because obstore's ``LocalStore`` (0.12) neither syncs files and folders nor offers a write that replaces a known
etag: after a power cut a "stored" snapshot could be empty, and two servers could both move a head.

Layout: ``objects/`` holds the files under their keys, ``unfinished/`` writes under way, ``lock`` serialises changes.
Invariants: a file under ``objects/`` is whole (written, synced, then renamed); what a crash leaves lies in
``unfinished/`` and the next start removes it; a writer holds a lock on its unfinished file, so that a living process's
write is never taken for a dead one's.
Known limits: a key cannot also be the folder of another key; etags need a file system that stores nanoseconds.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torpor.adapters.objects.object_key import checked_key, checked_prefix
from torpor.domain.errors import (
    Corrupt,
    InvalidArgument,
    NotFound,
    StaleRevision,
    StorageFull,
    TorporError,
    Unavailable,
)
from torpor.ports.objects import ObjectInfo

LIST_PAGE_COUNT = 1000
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_ANY = object()


class LocalObjects:
    """Objects under ``root``, which is made if absent (mode 0700). Removes at once what dead writers left."""

    def __init__(self, root: Path) -> None:
        self._objects = root / "objects"
        self._unfinished = root / "unfinished"
        self._lock = root / "lock"
        with _translated(str(root), missing=Unavailable):
            for folder in (root, self._objects, self._unfinished):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sync_folder(root)
            self._sweep()

    async def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write a file beside, sync it, rename it into place, sync the folder."""
        return await asyncio.to_thread(self._write, checked_key(key), data, _ANY)

    async def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """The same; the comparison and the rename happen under the lock."""
        return await asyncio.to_thread(self._write, checked_key(key), data, etag)

    async def get(self, key: str) -> bytes:
        """The whole file."""
        return await asyncio.to_thread(self._read, checked_key(key), 0, None)

    async def get_range(self, key: str, *, offset: int, size: int) -> bytes:
        """A range of the file."""
        return await asyncio.to_thread(self._read, checked_key(key), offset, size)

    async def head(self, key: str) -> ObjectInfo:
        """Size and etag of the file."""
        return await asyncio.to_thread(self._head, checked_key(key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Walk the folders that may hold the prefix, a page of files at a time."""
        found = self._walk(checked_prefix(prefix))
        while page := await asyncio.to_thread(lambda: tuple(itertools.islice(found, LIST_PAGE_COUNT))):
            for info in page:
                yield info

    async def delete(self, key: str) -> None:
        """Unlink and sync; folders that become empty go too."""
        await asyncio.to_thread(self._remove, checked_key(key))

    def _write(self, key: str, data: bytes, etag: object) -> ObjectInfo:
        path = self._objects / key
        with _translated(key, missing=Unavailable), self._fresh_file() as (descriptor, unfinished):
            _write_all(descriptor, data)
            # Renames within one tick of the kernel's coarse clock may reuse an inode: random nanoseconds tell them
            # apart, and the date stays right for people who look at the folder.
            written_s = int(os.fstat(descriptor).st_mtime)
            stamp_ns = written_s * 10**9 + int.from_bytes(os.urandom(8), "big") % 10**9
            os.utime(descriptor, ns=(stamp_ns, stamp_ns))
            os.fsync(descriptor)
            with self._locked():
                if etag is not _ANY:
                    self._compare(key, etag)
                made = self._make_folders(path.parent)
                unfinished.rename(path)
            for folder in (*made, path.parent):
                _sync_folder(folder)
            return _info(key, os.fstat(descriptor))

    def _compare(self, key: str, etag: object) -> None:
        try:
            current: str | None = self._head(key).etag
        except NotFound:
            current = None
        if current != etag:
            raise StaleRevision(f"cannot write {key}: its etag is {current}, not {etag}", key=key)

    def _read(self, key: str, offset: int, size: int | None) -> bytes:
        with _translated(key), open(self._objects / key, "rb", buffering=0) as file:
            want = os.fstat(file.fileno()).st_size if size is None else size
            pieces = []
            while want:
                piece = os.pread(file.fileno(), want, offset)
                if not piece:
                    raise Corrupt(f"cannot read {key}: it ends {want} bytes early", key=key)
                pieces.append(piece)
                offset += len(piece)
                want -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _head(self, key: str) -> ObjectInfo:
        with _translated(key):
            path = self._objects / key
            if path.is_dir():
                raise NotFound(f"cannot find object {key}", key=key)
            return _info(key, path.stat())

    def _remove(self, key: str) -> None:
        path = self._objects / key
        with _translated(key), self._locked():
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
            folder = path.parent
            with suppress(OSError):  # not empty
                while folder != self._objects:
                    folder.rmdir()
                    folder = folder.parent
            _sync_folder(folder)

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        """All files under the prefix, in key order. What disappears meanwhile is left out."""
        folders = [self._entries(prefix.rpartition("/")[0])]
        while folders:
            entry = next(folders[-1], None)
            if entry is None:
                folders.pop()
                continue
            name, is_folder = entry
            if not name.startswith(prefix) and not prefix.startswith(name):
                continue
            if is_folder:
                folders.append(self._entries(name.rstrip("/")))
            elif name.startswith(prefix):
                with suppress(NotFound):
                    yield self._head(name)

    def _entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        """(key, False) of files and (key + "/", True) of folders; sorted so, files and folders come in key order."""
        start = f"{folder}/" if folder else ""
        try:
            with _translated(folder), os.scandir(self._objects / folder) as scan:
                entries = [(start + e.name + ("/" if e.is_dir() else ""), e.is_dir()) for e in scan]
        except (NotFound, InvalidArgument):
            entries = []
        return iter(sorted(entries))

    def _make_folders(self, folder: Path) -> tuple[Path, ...]:
        """Make ``folder``; the folders that got a new entry by it, outermost first."""
        missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return tuple(parent.parent for parent in reversed(missing))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Held against other threads and processes; let go by the kernel if we die."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _fresh_file(self) -> Iterator[tuple[int, Path]]:
        """A locked, empty file in ``unfinished/`` that is gone afterwards unless it was renamed."""
        while True:
            path = self._unfinished / os.urandom(10).hex()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)  # a sweep came between the two calls
        try:
            yield descriptor, path
        finally:
            with suppress(FileNotFoundError):
                path.unlink()
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove unfinished files that no living writer holds."""
        for path in self._unfinished.iterdir():
            with suppress(FileNotFoundError), open(path, "rb") as file, suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except FileNotFoundError:
        pass
    finally:
        os.close(descriptor)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}")


@contextmanager
def _translated(key: str, *, missing: type[TorporError] = NotFound) -> Iterator[None]:
    """No OSError crosses the port. ``missing``: what the absence of a file means to the caller."""
    try:
        yield
    except FileNotFoundError as error:
        raise missing(f"cannot find object {key}", key=key) from error
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise InvalidArgument(f"cannot use key {key}: it or a part of it is a folder or a file", field="key") from error
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"cannot store {key}: no room left on the disk; free some space", key=key) from error
        raise Unavailable(f"cannot reach object {key}: {error.strerror}", key=key, retry_after_s=1.0) from error
