"""Plaintext images on a tmpfs that is never swapped (``noswap``, Linux >= 6.4), else on ramfs, which never is.

Not in huge pages: on a virtual machine they come from memory that its host has not backed yet, which was measured to
fill at 0.3 to 0.7 GB/s instead of 1.7; only recycled ones were quicker (6 to 10).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from torpor.domain.errors import Unsupported

OPTIONS = "mode=0700,size=90%"


class MemoryStaging:
    """``ports.staging.Staging`` on a mount of its own. What a dead server left is dropped when the next one opens.

    ``blank_bytes``: memory held ready for the next read (0: none); part of the node's fixed cost.
    """

    def __init__(self, root: Path, *, blank_bytes: int = 0) -> None:
        self._root = root
        self._numbers = itertools.count()
        self._blank = root / "blank"
        self._blank_bytes = blank_bytes
        self._is_blank_ready = False

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
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True))

    def take_blank(self, target: Path) -> bool:
        """See the port."""
        if not self._is_blank_ready:
            return False
        self._is_blank_ready = False
        self._blank.rename(target)
        return True

    async def replenish(self) -> None:
        """See the port. On a full mount there is simply no blank."""
        if self._blank_bytes and not self._blank.exists():
            self._is_blank_ready = await asyncio.to_thread(self._make_blank)

    def _make_blank(self) -> bool:
        part = self._root / "blank.part"
        try:
            file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, self._blank_bytes)
            finally:
                os.close(file)
            part.rename(self._blank)
        except OSError:
            part.unlink(missing_ok=True)
            return False
        return True
