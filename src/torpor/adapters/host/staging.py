"""Plaintext images on a tmpfs that is never swapped (``noswap``, Linux >= 6.4), else on ramfs, which never is.

Not in huge pages: on a virtual machine they come from memory that its host has not backed yet, which was measured to
fill at 0.3 to 0.7 GB/s instead of 1.7; only recycled ones were quicker (6 to 10).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from torpor.domain.errors import StorageFull, Unavailable, Unsupported

OPTIONS = "mode=0700,size=90%"
BLANK_EXCESS_MAX = 1.25


class MemoryStaging:
    """``ports.staging.Staging`` on a mount of its own. What a dead server left is dropped when the next one opens.

    ``blank_bytes_max``: most memory held ready for the next read (0: none); part of the node's fixed cost.
    """

    def __init__(self, root: Path, *, blank_bytes_max: int = 0) -> None:
        self._root = root
        self._numbers = itertools.count()
        self._blank = root / "blank"
        self._blank_bytes_max = blank_bytes_max
        self._wanted_bytes = 0
        self._ready_bytes = 0
        self._replenishing = asyncio.Lock()

    def open(self) -> None:
        """Mount afresh. Needs root. Raises: Unsupported with what mount said."""
        self.close()
        self._root.mkdir(parents=True, exist_ok=True)
        attempts = (("tmpfs", f"{OPTIONS},noswap"), ("tmpfs", f"{OPTIONS},noswap"), ("ramfs", "mode=0700"))
        said = ""
        for kind, options in attempts:
            argv = ("mount", "-t", kind, "-o", options, "torpor-staging", str(self._root))
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            said = done.stderr.strip()
        raise Unsupported(f"cannot mount memory for plaintext images at {self._root}: {said}; run as root")

    def close(self) -> None:
        """Unmount; whatever was in it is gone. Idempotent."""
        while os.path.ismount(self._root):
            done = subprocess.run(("umount", "-l", str(self._root)), capture_output=True, check=False)
            if done.returncode != 0:
                return

    @contextlib.asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """See the port."""
        path = self._root / f"{next(self._numbers):08d}"
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            kind = StorageFull if error.errno == errno.ENOSPC else Unavailable
            raise kind(f"cannot make a folder for plaintext images in {self._root}: {error.strerror}") from error
        try:
            yield path
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True))

    def take_blank(self, target: Path, size_bytes: int) -> bool:
        """See the port. One that is much too long is left: giving its tail back would take longer than it saves."""
        self._wanted_bytes = min(self._blank_bytes_max, size_bytes)
        if not self._ready_bytes or self._ready_bytes > size_bytes * BLANK_EXCESS_MAX:
            return False
        self._ready_bytes = 0
        self._blank.rename(target)
        return True

    async def replenish(self, *, default_bytes: int = 0) -> None:
        """See the port. On a full mount there is simply no blank."""
        self._wanted_bytes = self._wanted_bytes or min(self._blank_bytes_max, default_bytes)
        suits = self._wanted_bytes <= self._ready_bytes <= self._wanted_bytes * BLANK_EXCESS_MAX
        if not self._wanted_bytes or suits or self._replenishing.locked():
            return
        async with self._replenishing:
            wanted_bytes, self._ready_bytes = self._wanted_bytes, 0
            if await asyncio.to_thread(self._make_blank, wanted_bytes):
                self._ready_bytes = wanted_bytes

    def _make_blank(self, size_bytes: int) -> bool:
        part = self._root / "blank.part"
        try:
            file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, size_bytes)
            finally:
                os.close(file)
            part.replace(self._blank)
        except OSError:
            part.unlink(missing_ok=True)
            return False
        return True
