"""The channel: two named FIFOs per instance, ``in`` and ``out``, so that a restarted server can take it up again.

Rules of gVisor's that shape this file: descriptors are bound by *kind*, so FIFOs must be FIFOs at a restore as well;
the sandbox holds ``in`` open for reading and writing, hence never sees its end; it holds ``out`` for writing only,
since a save drains every FIFO that it can read. While no server reads ``out`` the guest gets EPIPE and must repeat.
Bytes unread in ``in`` at a checkpoint travel in the image: what is written must be numbered and acknowledged above.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from torpor.domain.errors import GuestError

PIPE_BYTES = 1 << 20  # the kernel's default limit for one pipe; 64 KiB where we may not
IN, OUT = "in", "out"


def make_fifos(bundle: Path) -> None:
    """Make both FIFOs."""
    for name in (IN, OUT):
        os.mkfifo(bundle / name, 0o600)


def open_guest_ends(bundle: Path) -> tuple[int, int, int]:
    """The guest's stdin and stdout to hand to runsc, and our reader of the latter. The caller closes all three."""
    reader = os.open(bundle / OUT, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    stdin = os.open(bundle / IN, os.O_RDWR | os.O_CLOEXEC)
    stdout = os.open(bundle / OUT, os.O_WRONLY | os.O_CLOEXEC)
    for end in (stdin, stdout):
        with contextlib.suppress(OSError):
            fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return stdin, stdout, reader


class FifoChannel:
    """Implements ports.engine.Channel over the FIFOs in ``bundle``. ``reader``: one already open, now owned."""

    def __init__(self, bundle: Path, *, reader: int | None = None) -> None:
        self._reader = os.open(bundle / OUT, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if reader is None else reader
        self._writer: int | None = None
        with contextlib.suppress(OSError):  # ENXIO: the sandbox is gone; reads will say so
            self._writer = os.open(bundle / IN, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_closed = False
        self._waiting: dict[asyncio.Future[None], Callable[[], object]] = {}  # with what stops watching for it

    async def read(self, count_max: int) -> bytes:
        """See the port."""
        while not self._is_closed:
            try:
                return os.read(self._reader, count_max)
            except BlockingIOError:
                await self._wait(self._reader, writing=False)
        return b""

    async def write(self, data: bytes) -> None:
        """See the port. A write that is cancelled may have been done in part."""
        rest = memoryview(data)
        while rest:
            if self._is_closed or self._writer is None:
                raise GuestError("cannot write to the guest: its instance is gone or the channel was closed")
            try:
                rest = rest[os.write(self._writer, rest) :]
            except BlockingIOError:
                await self._wait(self._writer, writing=True)
            except BrokenPipeError as error:
                raise GuestError("cannot write to the guest: its instance is gone") from error

    async def close(self) -> None:
        """See the port."""
        if self._is_closed:
            return
        self._is_closed = True
        # Before the descriptors are closed: their numbers may be somebody else's a moment later.
        for future, unwatch in self._waiting.items():
            unwatch()
            _resolve(future)
        self._waiting.clear()
        os.close(self._reader)
        if self._writer is not None:
            os.close(self._writer)

    async def _wait(self, end: int, *, writing: bool) -> None:
        """Return once ``end`` may be tried again, or the channel is closed."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        watch, unwatch = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
        self._waiting[ready] = lambda: unwatch(end)
        watch(end, _resolve, ready)
        try:
            await ready
        finally:
            if self._waiting.pop(ready, None) is not None:
                unwatch(end)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
