"""ports.engine.Channel over two pipe ends of this process, for agents that are its children (tests, development)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from torpor.domain.errors import GuestError


class PipeChannel:
    """Owns and closes both descriptors. ``read_fd``: the agent's output; ``write_fd``: its input."""

    def __init__(self, *, read_fd: int, write_fd: int) -> None:
        self._read_fd: int | None = read_fd
        self._write_fd: int | None = write_fd
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)

    async def read(self, count_max: int) -> bytes:
        """See ports.engine.Channel."""
        while self._read_fd is not None:
            try:
                return os.read(self._read_fd, count_max)
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await _ready(self._read_fd, loop.add_reader, loop.remove_reader)
        return b""

    async def write(self, data: bytes) -> None:
        """See ports.engine.Channel."""
        rest = memoryview(data)
        while rest:
            if self._write_fd is None:
                raise GuestError("cannot write to the guest: its channel was closed")
            try:
                rest = rest[os.write(self._write_fd, rest) :]
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await _ready(self._write_fd, loop.add_writer, loop.remove_writer)
            except BrokenPipeError as error:
                raise GuestError("cannot write to the guest: it is gone") from error

    async def close(self) -> None:
        """See ports.engine.Channel. Not while ``read`` or ``write`` waits: cancel those first."""
        for fd in (self._read_fd, self._write_fd):
            if fd is not None:
                os.close(fd)
        self._read_fd = self._write_fd = None


async def _ready(fd: int, add: Callable[[int, Callable[[], object]], object], remove: Callable[[int], object]) -> None:
    """Return when ``fd`` is ready; the loop's registration ends with the wait."""
    ready = asyncio.Event()
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)
