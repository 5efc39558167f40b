"""Root filesystems as one file: ``ports.rootfs.RootfsFolders`` over the folder where templates are built.

The archive is a tar of ``<digest>/``: ``template.json`` and ``rootfs/``, paths sorted, owners as numbers, times in
whole seconds (byte code is valid by the seconds of its source). Extended attributes are not kept, nor in the digest.
Blocking file work runs on threads.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from torpor.adapters.templates.digest import digest_tree
from torpor.adapters.templates.workplace import full_disk_named, workplace
from torpor.domain.errors import Corrupt, NotFound, Unavailable

_ROOT = "rootfs"


class TemplateFolders:
    """Trees at ``<into>/<digest>/rootfs``, beside those that ``build_rootfs`` made."""

    def __init__(self, into: Path) -> None:
        self._into = into

    def at(self, digest: str) -> Path:
        """See the port."""
        return self._into / digest / _ROOT

    @asynccontextmanager
    async def workplace(self) -> AsyncIterator[Path]:
        """See the port. The same lock as a build's."""
        async with workplace(self._into, "archive", lambda _line: None) as here:
            here.mkdir(mode=0o700)
            yield here

    async def pack(self, digest: str, into: Path) -> None:
        """See the port."""
        if not self.at(digest).is_dir():
            raise NotFound(f"cannot pack the root filesystem {digest[:12]}: it is not on this node", digest=digest)
        with _disk(into):
            found = await asyncio.to_thread(digest_tree, self.at(digest))
            if found.digest != digest:
                raise Corrupt(
                    f"cannot pack the root filesystem {digest[:12]}: it was changed after it was built; remove "
                    f"{self._into / digest} and build the template again",
                    digest=digest,
                )
            await asyncio.to_thread(_pack, self._into / digest, into)

    async def unpack(self, archive: Path, digest: str) -> Path:
        """See the port."""
        fresh, target = archive.parent / "tree", self._into / digest
        with _disk(target):
            await asyncio.to_thread(_unpack, archive, fresh)
            found = await asyncio.to_thread(digest_tree, fresh / _ROOT)
            if found.digest != digest:
                await asyncio.to_thread(shutil.rmtree, fresh)
                raise Corrupt(
                    f"cannot use a root filesystem: its digest is {found.digest}, not {digest}", digest=digest
                )
            await asyncio.to_thread(os.sync)  # whole after a power cut as well: nobody looks again
            if not target.exists():
                fresh.rename(target)
        return self.at(digest)


def _pack(folder: Path, into: Path) -> None:
    with tarfile.open(into, "w", format=tarfile.GNU_FORMAT, dereference=False) as archive:
        for name in _names(folder):
            member = archive.gettarinfo(str(folder / name), arcname=name)
            member.mtime = int(member.mtime)
            member.uname = member.gname = ""
            if member.isreg():
                with open(folder / name, "rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)


def _names(folder: Path) -> Iterator[str]:
    """Relative paths, a folder before what is in it, siblings in the order of their names."""
    pending = sorted(os.listdir(folder), reverse=True)
    while pending:
        name = pending.pop()
        yield name
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            pending.extend(f"{name}/{inner}" for inner in sorted(os.listdir(path), reverse=True))


def _unpack(archive: Path, target: Path) -> None:
    """Raises: Corrupt for what ``_pack`` does not write: nothing leaves ``target``, by whatever name or link."""
    target.mkdir(mode=0o755)
    folders: set[str] = {""}
    files: set[str] = set()
    times: list[tuple[str, int]] = []
    try:
        with tarfile.open(archive, "r:") as members:
            for member in members:
                name = member.name
                folder, _, last = name.rpartition("/")
                is_placed = folder in folders and last not in {"", ".", ".."} and not name.startswith("/")
                if not is_placed or name in folders or name in files:
                    raise Corrupt(f"cannot unpack a root filesystem: {name!r} is out of place in the archive")
                if member.islnk() and member.linkname not in files:
                    raise Corrupt(f"cannot unpack a root filesystem: {name!r} links to what is not in the archive")
                (folders if member.isdir() else files).add(name)
                members.extract(member, target, numeric_owner=True, filter="fully_trusted")
                if member.isdir():
                    times.append((name, int(member.mtime)))
    except tarfile.TarError as error:
        raise Corrupt(f"cannot unpack a root filesystem: {error}") from error
    for name, at_s in reversed(times):  # filling a folder has touched it
        os.utime(target / name, (at_s, at_s))


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    with full_disk_named(path):
        try:
            yield
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise
            raise Unavailable(f"cannot work on {path}: {error.strerror}", retry_after_s=1.0) from error
