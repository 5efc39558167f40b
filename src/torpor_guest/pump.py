"""Reading what a child writes, for as long as it or its descendants may write.

One thread per child. ``poll`` is made anew for each wait: nothing is registered with a kernel across a restore, where
epoll sets have lost events (gVisor #13920), and runsc 20240729 writes into the event masks it is given.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass

from torpor_guest.crew import CREW
from torpor_wire import BULK_PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX, DataChannel

DRAIN_MS = 20
DRAINED_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sink:
    """What is done with it, in the pump's thread. ``exited`` comes after all output written before the exit."""

    output: Callable[[DataChannel, bytes], None]
    report: Callable[[bytes], None]
    exited: Callable[[int], None]


def readable_count(fd: int) -> int:
    """Bytes that can be read from a pipe now."""
    count: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0]
    return count


class Pump:
    """Owns and closes the read ends it is given. ``stderr``: None if ``stdout`` is a terminal's.

    ``report``: a pipe with the child's own messages, if any.
    """

    def __init__(self, *, stdout: int, stderr: int | None, report: int | None, sink: Sink) -> None:
        self._outputs = {stdout: DataChannel.STDOUT}
        self._terminal = stdout if stderr is None else None
        if stderr is not None:
            self._outputs[stderr] = DataChannel.STDERR
        self._report = report
        self._sink = sink
        self._wake_read, self._wake_write = os.pipe()
        self._exit_code: int | None = None
        self._exit_told = False

    def start(self) -> None:
        """Start reading."""
        CREW.run(self._run)

    def exited(self, exit_code: int) -> None:
        """To be called when the child has been reaped; from any thread, once."""
        self._exit_code = exit_code
        os.write(self._wake_write, b"x")

    def _run(self) -> None:
        while self._outputs or self._report is not None or not self._exit_told:
            poller = select.poll()
            for fd in (*self._outputs, self._wake_read, *(() if self._report is None else (self._report,))):
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll():
                self._serve(fd)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _serve(self, fd: int) -> None:
        if fd == self._wake_read:
            os.read(fd, 1)
            self._drain()
            self._exit_told = True
            assert self._exit_code is not None
            self._sink.exited(self._exit_code)
        elif fd == self._report:
            if data := os.read(fd, PAYLOAD_BYTES_MAX):
                self._drain_outputs()
                self._sink.report(data)
            else:
                self._report = None
                os.close(fd)
        elif channel := self._outputs.get(fd):
            piece = _read(fd)
            if piece:
                self._sink.output(channel, piece)
            elif piece is not None:
                del self._outputs[fd]
                os.close(fd)

    def _drain(self) -> None:
        self._drain_outputs()
        while self._report is not None and readable_count(self._report):
            self._sink.report(os.read(self._report, PAYLOAD_BYTES_MAX))

    def _drain_outputs(self) -> None:
        """What is there at this instant, so that a child which writes on for ever holds up nothing."""
        if self._terminal in self._outputs:
            self._drain_terminal(self._terminal)
            return
        for fd, channel in self._outputs.items():
            count = readable_count(fd)
            while count > 0 and (data := os.read(fd, min(count, BULK_PAYLOAD_BYTES_MAX))):
                count -= len(data)
                self._sink.output(channel, data)

    def _drain_terminal(self, fd: int) -> None:
        """A terminal hands on what was written a little later, and ends when nobody has it open."""
        count = 0
        while count < DRAINED_BYTES_MAX:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            piece = _read(fd) if poller.poll(DRAIN_MS) else None
            if not piece:
                return
            count += len(piece)
            self._sink.output(DataChannel.STDOUT, piece)


def _read(fd: int) -> bytes | None:
    """What is there, b"" at the end, None if nothing is there after all."""
    try:
        return os.read(fd, BULK_PAYLOAD_BYTES_MAX)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EIO:  # how a terminal ends
            raise
        return b""
