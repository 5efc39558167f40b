"""Where plaintext images may lie: memory that is never swapped, for the duration of one capture or restore."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol


class Staging(Protocol):
    """Folders in memory, gone with the block that asked for them, and with the process that died in it."""

    def folder(self) -> AbstractAsyncContextManager[Path]:
        """A fresh empty folder, removed with its content when the block is left, however it is left."""
        ...
