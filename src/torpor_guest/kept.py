"""Processes that outlive the call that started them: their output, input, terminal and end."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torpor_guest.bursts import Burst, Outcome
from torpor_guest.crew import CREW
from torpor_guest.journal import Journal
from torpor_guest.launching import Ends, launch
from torpor_guest.logs import Log
from torpor_guest.processes import Process, Processes, signal_name
from torpor_guest.pump import Pump, Sink
from torpor_guest.settings import Refused, Settings
from torpor_guest.terminals import END_OF_FILE, Size, set_size, size_from
from torpor_wire import flag, integer, mapping, text, texts

KEPT_MAX = 64
LOOK_MS = 100  # how often a blocked feeder looks whether its caller is still there


@dataclass(eq=False)
class Kept:
    """One process. ``stdin``: a non-blocking descriptor, None once its input is closed."""

    process: Process
    argv: tuple[str, ...]
    user: str
    terminal: bool
    started_at_s: float
    journal: Journal
    stdin: int | None
    collected: int = 0  # up to where ``collect`` has given it out
    feeding: threading.Lock = field(default_factory=threading.Lock)

    def fields(self) -> dict[str, Any]:
        """As the format's §6 has it."""
        return {
            "pid": self.process.pid,
            "argv": list(self.argv),
            "user": self.user,
            "terminal": self.terminal,
            "exit_code": self.journal.exit_code,
            "started_at_s": self.started_at_s,
            "sequence": self.journal.sequence,
            "oldest_sequence": self.journal.oldest_sequence,
        }

    def close_stdin(self) -> None:
        """No more input. ``feeding`` is held."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None


class KeptProcesses:
    """The operations ``start``, ``processes``, ``attach``, ``input``, ``resize``, ``collect``, ``signal``."""

    def __init__(self, settings: Settings, processes: Processes, log: Log) -> None:
        self._settings = settings
        self._processes = processes
        self._log = log
        self._kept: dict[int, Kept] = {}
        self._lock = threading.Lock()

    def start(self, burst: Burst) -> dict[str, Any]:
        """Start a process. Raises: Refused, BadMessage."""
        terminal = mapping(burst.fields, "terminal")
        stdin = burst.body.whole()
        kept = self._start(burst, None if terminal is None else size_from(terminal))
        keep_open = kept.terminal or flag(burst.fields, "keep_stdin")
        if stdin or not keep_open:
            kept.feeding.acquire()
            CREW.run(partial(self._feed_first, kept, stdin, keep_open))
        return kept.fields()

    def detach(self, burst: Burst) -> Outcome:
        """``execute`` with ``detach``. Raises: Refused, BadMessage."""
        fields = self.start(burst)
        return Outcome(result={"text/plain": str(fields["pid"])})

    def list(self, _burst: Burst) -> dict[str, Any]:
        """In order of start."""
        with self._lock:
            kept = list(self._kept.values())
        return {"processes": [one.fields() for one in kept]}

    def attach(self, burst: Burst) -> dict[str, Any]:
        """Output from a sequence number on, until the process has ended. Raises: Refused, BadMessage."""
        journal = self._of(burst).journal
        wanted = burst.fields.get("sequence")
        sequence = journal.sequence if wanted is None else integer(burst.fields, "sequence")
        if not 0 <= sequence <= journal.sequence:
            raise Refused(
                "invalid_argument",
                f"cannot attach from sequence {sequence}: {journal.sequence} is the next one; use 0 to that",
                field="from_sequence",
            )
        # Asked for once: it grows meanwhile, and what is told must be what is meant.
        sequence = max(sequence, journal.oldest_sequence)
        burst.stream.event({"sequence": sequence})
        for pieces in journal.follow(burst.stream, sequence):
            for piece in pieces:
                if piece.sequence > sequence:
                    burst.stream.event({"sequence": piece.sequence})
                burst.stream.put(piece.channel, piece.data)
                sequence = piece.end
        return {"exit_code": journal.exit_code, "sequence": sequence}

    def input(self, burst: Burst) -> dict[str, Any]:
        """Feed a process. Raises: Refused (not_found, conflict), BadMessage."""
        kept, close = self._of(burst), flag(burst.fields, "close")
        if not kept.feeding.acquire(blocking=False):
            raise Refused("conflict", f"cannot feed {kept.process.pid}: another call is feeding it", reason="feeding")
        try:
            size = 0
            for piece in burst.body:
                self._write(kept, piece, burst)
                size += len(piece)
            if close and kept.terminal:
                self._write(kept, END_OF_FILE, burst)
            elif close:
                kept.close_stdin()
            return {"size": size}
        finally:
            kept.feeding.release()

    def resize(self, burst: Burst) -> None:
        """Change the size of a terminal. Raises: Refused (not_found, invalid_argument), BadMessage."""
        kept, size = self._of(burst), size_from(burst.fields)
        if not kept.terminal or kept.stdin is None:
            raise Refused("invalid_argument", f"cannot resize {kept.process.pid}: it has no terminal", field="pid")
        set_size(kept.stdin, size)

    def collect(self, burst: Burst) -> Outcome:
        """Output since the last time. Raises: Refused (not_found)."""
        kept = self._of(burst)
        while pieces := kept.journal.since(kept.collected):
            burst.stream.dropped_bytes += pieces[0].sequence - kept.collected
            for piece in pieces:
                burst.stream.put(piece.channel, piece.data)
            kept.collected = pieces[-1].end
        return Outcome(exit_code=kept.journal.exit_code)

    def signal(self, burst: Burst) -> None:
        """Signal any process but PID 1, or a group. Raises: Refused (not_found, invalid_argument)."""
        pid, number = integer(burst.fields, "pid"), integer(burst.fields, "signal")
        if pid <= 1 or pid == os.getpid():
            raise Refused("invalid_argument", f"cannot signal {pid}: give the pid of one process above 1", field="pid")
        if not 0 <= number < signal.NSIG:
            raise Refused(
                "invalid_argument", f"cannot send signal {number}: use 0 to {signal.NSIG - 1}", field="signal"
            )
        try:
            (os.killpg if flag(burst.fields, "group") else os.kill)(pid, number)
        except (ProcessLookupError, OverflowError):
            raise Refused("not_found", f"cannot signal {pid}: there is no such process") from None

    def journals(self) -> dict[str, Journal]:
        """Output by pid in decimal."""
        with self._lock:
            return {str(pid): kept.journal for pid, kept in self._kept.items()}

    def _of(self, burst: Burst) -> Kept:
        pid = integer(burst.fields, "pid")
        with self._lock:
            kept = self._kept.get(pid)
        if kept is None:
            why = "no process with that pid was started to be kept; list them with processes"
            raise Refused("not_found", f"cannot serve {burst.fields['op']} of {pid}: {why}", field="pid")
        return kept

    def _start(self, burst: Burst, size: Size | None) -> Kept:
        with self._lock:
            self._make_room()
            ends = launch(burst, self._settings, self._processes, size)
            now_s = time.time()  # noqa: TID251 - the guest's own wall clock stands in its log
            journal = Journal(self._log.changed)
            os.set_blocking(ends.stdin, False)
            argv, user = texts(burst.fields, "argv"), text(burst.fields, "user") or self._settings.user
            kept = Kept(ends.process, argv, user, size is not None, now_s, journal, ends.stdin)
            if (namesake := self._kept.pop(ends.process.pid, None)) is not None:
                namesake.close_stdin()
            self._kept[ends.process.pid] = kept
        self._log.note(f"started {argv[0]!r} as pid {kept.process.pid}")
        self._pump(kept, ends)
        return kept

    def _pump(self, kept: Kept, ends: Ends) -> None:
        def exited(exit_code: int) -> None:
            kept.journal.end(exit_code)
            self._log.note(f"pid {kept.process.pid} ended with {signal_name(exit_code)}")

        pump = Pump(stdout=ends.stdout, stderr=ends.stderr, report=None, sink=Sink(kept.journal.put, _ignore, exited))
        pump.start()
        self._processes.watch(kept.process, pump.exited)

    def _make_room(self) -> None:
        while len(self._kept) >= KEPT_MAX:
            ended = next((pid for pid, kept in self._kept.items() if kept.journal.exit_code is not None), None)
            if ended is None:
                raise Refused("quota_exceeded", f"cannot start: {KEPT_MAX} processes run already; end one first")
            kept = self._kept.pop(ended)
            with kept.feeding:
                kept.close_stdin()

    def _feed_first(self, kept: Kept, data: bytes, keep_open: bool) -> None:  # noqa: FBT001 - a thread's arguments
        try:
            self._write(kept, data, None)
        except Refused:
            keep_open = False  # it reads no more
        finally:
            if not keep_open:
                kept.close_stdin()
            kept.feeding.release()

    def _write(self, kept: Kept, data: bytes, burst: Burst | None) -> None:
        """All of it, for as long as there is a caller and a reader. Raises: Refused (conflict, guest_error)."""
        rest, pid = memoryview(data), kept.process.pid
        while rest:
            if kept.stdin is None or kept.journal.exit_code is not None:
                raise Refused("conflict", f"cannot feed {pid}: its input is closed", reason="closed")
            if burst is not None and burst.stream.gone:
                raise Refused("guest_error", "the caller has gone")
            try:
                rest = rest[os.write(kept.stdin, rest) :]
            except BlockingIOError:
                poller = select.poll()
                poller.register(kept.stdin, select.POLLOUT)
                poller.poll(LOOK_MS)
            except OSError as error:
                raise Refused("conflict", f"cannot feed {pid}: it reads no more: {error}", reason="closed") from error


def _ignore(_: bytes) -> None:
    """Processes of users report nothing."""
