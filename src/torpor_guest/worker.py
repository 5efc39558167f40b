"""A context's process: reads source, runs it, reports. Started by the agent; user code lives here.

Commands come as: 4 bytes length, JSON {source_bytes, env, silent}, source. Reports go as: 4 bytes length, JSON.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import struct
import sys
import threading
from typing import Any

from torpor_guest.evaluate import Evaluator, make_evaluator
from torpor_guest.hold import Hold

LENGTH = struct.Struct(">I")
COMMAND_BYTES = 65_536  # of one read
REPORT_BYTES_MAX = 15 * 1024 * 1024  # below one wire message, which adds a few fields


def _let_interrupts_raise() -> None:
    """While user code runs. It may have taken the signal in an earlier burst; a new burst gets it back."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _let_interrupts_pass() -> None:
    """Else: one that comes too late does nothing. Not SIG_IGN, which children would inherit."""
    while True:
        try:
            signal.signal(signal.SIGINT, lambda _number, _frame: None)
        except KeyboardInterrupt:
            continue  # one more came just before
        return


class Reports:
    """The pipe to the agent, and the one on which it says that display data has found its place in the output."""

    def __init__(self, fd: int, placed: int) -> None:
        self._fd = fd
        self._placed = placed
        self._lock = threading.Lock()
        self._number = 0

    def send(self, kind: str, fields: dict[str, Any]) -> None:
        """One report, whole. What is too long is replaced by a text that says so."""
        data = json.dumps({"kind": kind, **fields}).encode("ascii")
        if len(data) > REPORT_BYTES_MAX:
            said = f"<{len(data)} bytes of data: more than the {REPORT_BYTES_MAX} that can be shown; write a file>"
            field = "data" if "data" in fields else "result"
            data = json.dumps({"kind": kind, **fields, field: {"text/plain": said}}).encode("ascii")
        rest = memoryview(LENGTH.pack(len(data)) + data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def display(self, bundle: dict[str, Any]) -> None:
        """Display data, after what was printed before it and before what is printed next. From any thread."""
        flush()
        with self._lock:
            self._number += 1
            self.send("display", {"data": bundle, "number": self._number})
            while LENGTH.unpack(_read_exactly(self._placed, LENGTH.size))[0] != self._number:
                pass  # an interrupt had kept that one from being read


def flush() -> None:
    """Push out what Python holds back. User code may have replaced or closed the streams."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError, AttributeError):
            continue


def _read(fd: int, count_max: int) -> bytes:
    piece = os.read(fd, count_max)
    if not piece:
        sys.exit(0)  # the agent has closed the context
    return piece


def _read_exactly(fd: int, count: int) -> bytes:
    pieces = []
    while count:
        piece = _read(fd, min(count, 1 << 20))
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _prepare_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        # print must never fail on what it is given, and lines must not wait for a full buffer.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]


def settle_heap() -> None:
    """After a warm-up: no later collection writes to what it made, so those pages stay as they are in the template.

    Measured on a 256 MB session with one burst between two pauses: 789 pages changed instead of 1259.
    """
    gc.collect()
    gc.freeze()


def _next_command(fd: int) -> tuple[dict[str, Any], str]:
    """Wait for one. Mostly one read: the agent sends nothing more until it has the report of the end."""
    data = _read(fd, COMMAND_BYTES)
    data += _read_exactly(fd, max(0, LENGTH.size - len(data)))
    end = LENGTH.size + LENGTH.unpack_from(data)[0]
    data += _read_exactly(fd, max(0, end - len(data)))
    command = json.loads(data[LENGTH.size : end])
    source = data[end:] + _read_exactly(fd, command["source_bytes"] - (len(data) - end))
    return command, source.decode("utf-8")


def serve(commands: int, reports: Reports, evaluator: Evaluator) -> None:
    """Run bursts until the agent closes the pipe."""
    while True:
        command, source = _next_command(commands)
        os.environ.update(command["env"])
        done: dict[str, Any] = {}
        try:
            try:
                _let_interrupts_raise()
                reports.send("begun", {})
                done = evaluator.run(source, silent=command["silent"])
            finally:
                _let_interrupts_pass()
        except KeyboardInterrupt:  # it came in the instant between the code's end and ours
            _let_interrupts_pass()
            done = done or {"error": {"name": "KeyboardInterrupt", "value": "", "traceback": "KeyboardInterrupt\n"}}
        if command["silent"]:
            settle_heap()
        flush()
        reports.send("done", done)


def main(arguments: list[str]) -> None:
    """``arguments``: descriptors of commands, reports, placed, ask, hold, answer."""
    commands, report, placed, ask, hold, answer = (int(argument) for argument in arguments)
    for fd in (commands, report, placed, ask, hold, answer):
        os.set_inheritable(fd, False)
    _let_interrupts_pass()
    Hold(ask=ask, hold=hold, answer=answer).install()
    _prepare_streams()
    reports = Reports(report, placed)
    serve(commands, reports, make_evaluator(reports.display))
