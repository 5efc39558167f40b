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

    def take_blank(self, target: Path, size_bytes: int) -> bool:
        """Put the blank file at ``target``, in a folder of ours, if there is one that suits a file of ``size_bytes``.

        It holds zeros whose memory is there already, and may be somewhat shorter or longer.
        Filling fresh memory is what a large read waits for most; this lets it be done ahead.
        """
        ...

    async def replenish(self, *, default_bytes: int = 0) -> None:
        """Make a blank file of the size that was last asked for, or of ``default_bytes`` if nobody has yet.

        Takes CPU: call it when nobody waits.
        """
        ...
