# ruff: noqa: ARG002, ASYNC220 - the port's parameters, and a real terminal
"""A guest that is this machine: terminals, ports and files of its own, for tests of what carries them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

from torpor.domain.errors import Conflict, NotFound
from torpor.ports.guest import (
    FileChange,
    FileEvent,
    FileInfo,
    FileKind,
    FilePage,
    LogEntry,
    ProcessExited,
    ProcessInfo,
    ProcessOutput,
    StreamKind,
)


class HostForward:
    """``ports.guest.Forward`` to a port of this machine."""

    def __init__(self, reader, writer) -> None:
        self._reader, self._writer = reader, writer

    async def read(self):
        return await self._reader.read(65536)

    async def write(self, data):
        self._writer.write(data)
        await self._writer.drain()

    async def close_write(self):
        self._writer.write_eof()

    async def close(self):
        self._writer.close()


class HostGuest:
    """The part of ``ports.guest.Guest`` that is no burst. One terminal at a time."""

    def __init__(self) -> None:
        self.process = None
        self.shown = bytearray()
        self.news = asyncio.Event()
        self.size = None
        self.paused = asyncio.Event()

    async def forward(self, port, *, host="127.0.0.1"):
        try:
            return HostForward(*await asyncio.open_connection(host, port))
        except ConnectionRefusedError:
            raise NotFound(f"cannot connect to port {port}: nothing listens there", port=port) from None

    async def list_files(self, path, *, limit=1000, after=None):
        names = sorted(name for name in os.listdir(path) if after is None or name > after)
        entries = tuple([await self.stat_file(f"{path}/{name}") for name in names[:limit]])
        return FilePage(entries, names[limit - 1] if len(names) > limit else None)

    async def stat_file(self, path):
        try:
            status = Path(path).lstat()
        except FileNotFoundError:
            raise NotFound(f"cannot find {path}", path=path) from None
        kind = FileKind.DIRECTORY if Path(path).is_dir() else FileKind.FILE
        return FileInfo(path, kind, status.st_size, status.st_mode & 0o777, "root", "root", status.st_mtime)

    async def make_directory(self, path, *, mode=0o755, user=None):
        there = Path(path).is_dir()
        Path(path).mkdir(mode=mode, parents=True, exist_ok=True)
        return not there

    async def move_file(self, path, to):
        Path(path).rename(to)

    async def remove_file(self, path, *, recursive=False):
        Path(path).rmdir() if recursive else Path(path).unlink()

    async def logs(self, *, source=None, follow=False, from_sequence=0):
        for number, data in enumerate((b"started\n", b"\xff\n")):
            yield LogEntry(source or "agent", 1_790_000_000.0, number, StreamKind.STDERR, data, lost_bytes=7 * number)

    async def watch_files(self, path, *, recursive=False):
        yield FileEvent(FileChange.CREATED, f"{path}/new")
        yield FileEvent(FileChange.WRITTEN, f"{path}/new", dropped_count=int(recursive))

    async def processes(self):
        return (self._info(),) if self.process else ()

    async def signal(self, pid, number, *, group=False):
        self.process.send_signal(number)

    async def start(self, process, *, terminal=None, keep_stdin=False):
        self.shown.clear()
        self.near, far = pty.openpty()
        if terminal is not None:
            await self.resize(0, terminal)
        self.process = subprocess.Popen(process.argv, stdin=far, stdout=far, stderr=far, start_new_session=True)
        os.close(far)
        asyncio.get_running_loop().add_reader(self.near, self._read)
        return self._info()

    async def attach(self, pid, *, from_sequence=0):
        sequence = from_sequence
        while True:
            if self.paused.is_set():
                self.paused.clear()
                raise Conflict("the session was paused", reason="paused_during_burst")
            if data := bytes(self.shown[sequence:]):
                yield ProcessOutput(sequence, StreamKind.STDOUT, data)
                sequence += len(data)
            elif self.process.poll() is not None and self.near is None:
                yield ProcessExited(sequence, self.process.returncode)
                return
            else:
                self.news.clear()
                await self.news.wait()

    async def send_input(self, pid, data, *, close=False):
        return sum([os.write(self.near, piece) async for piece in data])

    async def resize(self, pid, size):
        self.size = size
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    def pause(self):
        self.paused.set()
        self.news.set()

    def _read(self):
        try:
            data = os.read(self.near, 4096)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self.near)
            os.close(self.near)
            self.near = None
            self.process.wait(10)
        self.shown += data
        self.news.set()

    def _info(self):
        ended = self.process.poll()
        argv, kept = tuple(self.process.args), len(self.shown)
        return ProcessInfo(self.process.pid, argv, "root", True, ended is None, ended, 1_790_000_000.0, kept, 0)
