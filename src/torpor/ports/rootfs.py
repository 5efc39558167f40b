"""Root filesystems of templates as folders on this node, and as one file that can be stored and sent."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol


class RootfsFolders(Protocol):
    """A folder of a digest is whole or absent, and its digest is that of the tree in it.

    Errors of every method: StorageFull, Unavailable.
    """

    def at(self, digest: str) -> Path:
        """Where the tree of that digest lies or would lie."""
        ...

    def workplace(self) -> AbstractAsyncContextManager[Path]:
        """An empty folder on the same disk, for one packing or unpacking; one at a time; removed afterwards.

        What a dead process left in such a folder is gone as well.
        """
        ...

    async def pack(self, digest: str, into: Path) -> None:
        """Write the tree as one file, the same bytes for the same tree.

        Raises: NotFound; Corrupt if the tree no longer has its digest: it could not be unpacked anywhere.
        """
        ...

    async def unpack(self, archive: Path, digest: str) -> Path:
        """Make the tree of that digest out of what ``pack`` wrote, inside a workplace, and put it in place.

        Returns its path. Idempotent. Raises: Corrupt if the tree has another digest: nothing of it is left.
        """
        ...
