"""Plaintext images on a tmpfs that is never swapped (``noswap``, Linux >= 6.4), else on ramfs, which never is."""

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


class MemoryStaging:
    """``ports.staging.Staging`` on a mount of its own. What a dead server left is dropped when the next one opens."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers = itertools.count()

    def open(self) -> None:
        """Mount afresh. Needs root. Raises: Unsupported with what mount said."""
        self.close()
        self._root.mkdir(parents=True, exist_ok=True)
        attempts = (
            ("mount", "-t", "tmpfs", "-o", "mode=0700,size=90%,noswap", "torpor-staging", str(self._root)),
            ("mount", "-t", "ramfs", "-o", "mode=0700", "torpor-staging", str(self._root)),
        )
        said = ""
        for argv in attempts:
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
