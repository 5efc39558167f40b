"""The files of a guest, as ports.guest.Guest has them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from torpor.adapters.guest.answers import event_from, file_event_from, file_from, page_from
from torpor.adapters.guest.asking import Asker, checked, final, size_of
from torpor.domain.errors import GuestError
from torpor.ports.guest import FileEvent, FileInfo, FilePage
from torpor_wire import DataChannel, FrameType, flag


class FramedFiles(Asker):
    """Calls about files."""

    async def read_file(self, path: str) -> AsyncIterator[bytes]:
        """See ports.guest.Guest."""
        size = 0
        async with aclosing(self._stream({"op": "read", "path": path})) as messages:
            async for message in messages:
                if message.type is not FrameType.DATA:
                    break
                piece = message.payload or b""
                size += len(piece)
                yield piece
        if size_of(final(message)) != size:
            raise GuestError(f"cannot read {path!r}: {size} bytes came, and the guest says it sent another number")

    async def write_file(
        self, path: str, data: AsyncIterator[bytes], *, mode: int = 0o644, user: str | None = None
    ) -> int:
        """See ports.guest.Guest. An error from ``data`` leaves the file as it was."""
        return size_of(await self._pour({"op": "write", "path": path, "mode": mode, "user": user}, data))

    async def list_files(self, path: str, *, limit: int = 1000, after: str | None = None) -> FilePage:
        """See ports.guest.Guest."""
        return checked(page_from, await self._ask({"op": "list", "path": path, "limit": limit, "after": after}))

    async def stat_file(self, path: str) -> FileInfo:
        """See ports.guest.Guest."""
        return checked(file_from, await self._ask({"op": "stat", "path": path}))

    async def make_directory(self, path: str, *, mode: int = 0o755, user: str | None = None) -> bool:
        """See ports.guest.Guest."""
        answer = await self._ask({"op": "mkdir", "path": path, "mode": mode, "user": user})
        return checked(lambda fields: flag(fields, "made"), answer)

    async def move_file(self, path: str, to: str) -> None:
        """See ports.guest.Guest."""
        await self._ask({"op": "move", "path": path, "to": to})

    async def remove_file(self, path: str, *, recursive: bool = False) -> None:
        """See ports.guest.Guest."""
        await self._ask({"op": "remove", "path": path, "recursive": recursive})

    async def watch_files(self, path: str, *, recursive: bool = False) -> AsyncGenerator[FileEvent, None]:
        """See ports.guest.Guest."""
        async with aclosing(self._stream({"op": "watch", "path": path, "recursive": recursive})) as messages:
            async for message in messages:
                if message.type is not FrameType.DATA:
                    final(message)
                elif message.channel is DataChannel.EVENT:
                    fields = event_from(message)
                    if "change" in fields:
                        yield checked(file_event_from, fields)
