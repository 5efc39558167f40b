"""Processes that clients start: to their end, or detached with a bounded tail of their output."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque

from torpor_guest.bursts import Alarm, Burst, End, Outcome, Stopwatch, follow
from torpor_guest.processes import Launch, Process, Processes, account_of
from torpor_guest.pump import Pump, Sink
from torpor_guest.settings import Refused, Settings
from torpor_wire import DataChannel, flag, integer, optional_number, optional_text, text, text_mapping, texts

TAIL_BYTES_MAX = 1024 * 1024  # of a detached process
DETACHED_MAX = 64


class Tail:
    """The last output of a detached process and how it ended. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.items: deque[tuple[DataChannel, bytes]] = deque()
        self.dropped_bytes = 0
        self.exit_code: int | None = None
        self._bytes = 0

    def put(self, channel: DataChannel, data: bytes) -> None:
        """Keep it, dropping the oldest."""
        with self.lock:
            self.items.append((channel, data))
            self._bytes += len(data)
            while self._bytes > TAIL_BYTES_MAX:
                count = len(self.items.popleft()[1])
                self._bytes -= count
                self.dropped_bytes += count

    def take(self) -> list[tuple[DataChannel, bytes]]:
        """What was kept; it is kept no more."""
        with self.lock:
            items, self.items, self._bytes = list(self.items), deque(), 0
            return items


class Commands:
    """The operations ``execute``, ``collect`` and ``signal``."""

    def __init__(self, settings: Settings, processes: Processes, stopwatch: Stopwatch) -> None:
        self._settings = settings
        self._processes = processes
        self._stopwatch = stopwatch
        self._detached: dict[int, Tail] = {}

    def execute(self, burst: Burst) -> Outcome:
        """Run a process. Raises: Refused, BadMessage."""
        timeout_s = optional_number(burst.fields, "timeout_s")
        if flag(burst.fields, "detach"):
            return self._detach(burst)
        ends, stdin = self._start(burst)
        process = ends[0]
        sink = Sink(burst.stream.put, lambda _: None, lambda code: burst.events.put((End.EXITED, code)))
        self._pump(*ends, sink)
        threading.Thread(target=_feed, args=(burst, stdin), name="stdin", daemon=True).start()

        def kill(signal_number: int) -> None:
            self._processes.kill(process, signal_number, group=True)

        alarms = []
        if timeout_s is not None:
            alarms = [
                Alarm(timeout_s, lambda: kill(signal.SIGTERM)),
                Alarm(timeout_s + self._settings.grace_s, lambda: kill(signal.SIGKILL)),
            ]
        _, exit_code, gone_off = follow(burst, self._stopwatch, alarms, lambda: kill(signal.SIGKILL))
        return Outcome(exit_code=exit_code, timed_out=gone_off > 0)

    def collect(self, burst: Burst) -> Outcome:
        """What a detached process has written since the last time. Raises: Refused (not_found)."""
        pid = integer(burst.fields, "pid")
        tail = self._detached.get(pid)
        if tail is None:
            raise Refused("not_found", f"cannot collect output of {pid}: no detached process has that pid")
        for channel, data in tail.take():
            burst.stream.put(channel, data)
        burst.stream.dropped_bytes += tail.dropped_bytes
        tail.dropped_bytes = 0
        return Outcome(exit_code=tail.exit_code)

    def send_signal(self, burst: Burst) -> None:
        """Signal any process but PID 1. Raises: Refused (not_found, invalid_argument)."""
        pid, number = integer(burst.fields, "pid"), integer(burst.fields, "signal")
        if pid <= 1 or pid == os.getpid():
            raise Refused("invalid_argument", f"cannot signal {pid}: give the pid of one process above 1", field="pid")
        if not 0 <= number < signal.NSIG:
            raise Refused(
                "invalid_argument", f"cannot send signal {number}: use 0 to {signal.NSIG - 1}", field="signal"
            )
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise Refused("not_found", f"cannot signal {pid}: there is no such process") from None

    def _detach(self, burst: Burst) -> Outcome:
        while len(self._detached) >= DETACHED_MAX:
            ended = next((pid for pid, tail in self._detached.items() if tail.exit_code is not None), None)
            if ended is None:
                raise Refused("guest_error", f"cannot detach: {DETACHED_MAX} detached processes run; end one first")
            del self._detached[ended]
        ends, stdin = self._start(burst)
        tail = self._detached[ends[0].pid] = Tail()
        self._pump(*ends, Sink(tail.put, lambda _: None, lambda code: setattr(tail, "exit_code", code)))
        _feed(burst, stdin)
        return Outcome(result={"text/plain": str(ends[0].pid)})

    def _start(self, burst: Burst) -> tuple[tuple[Process, int, int], int]:
        """The process with the read ends of its output, and the write end of its input."""
        user, argv = text(burst.fields, "user"), texts(burst.fields, "argv")
        if not argv:
            raise Refused("invalid_argument", "cannot start a process: argv is empty", field="argv")
        account = account_of(user)
        env = {**self._settings.environment.values(), **(account.env if account else {})}
        env |= text_mapping(burst.fields, "env")
        cwd = optional_text(burst.fields, "cwd") or env.get("HOME", "/")
        if not os.path.isdir(cwd):
            if optional_text(burst.fields, "cwd") is not None:
                raise Refused("invalid_argument", f"cannot start in {cwd!r}: it is no directory", field="cwd")
            cwd = "/"
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        try:
            process = self._processes.start(Launch(argv, env, stdin[0], stdout[1], stderr[1], cwd, user))
        except Refused:
            for fd in (stdin[1], stdout[0], stderr[0]):
                os.close(fd)
            raise
        finally:
            for fd in (stdin[0], stdout[1], stderr[1]):
                os.close(fd)
        return (process, stdout[0], stderr[0]), stdin[1]

    def _pump(self, process: Process, stdout: int, stderr: int, sink: Sink) -> None:
        pump = Pump(stdout=stdout, stderr=stderr, report=None, sink=sink)
        pump.start()
        self._processes.watch(process, pump.exited)


def _feed(burst: Burst, stdin: int) -> None:
    """The body into the process's input; what it does not read is thrown away."""
    broken = False
    try:
        for piece in burst.body:
            rest = memoryview(piece)
            while rest and not broken:
                try:
                    rest = rest[os.write(stdin, rest) :]
                except BrokenPipeError:
                    broken = True
    except Refused:
        pass  # the caller has gone, and its process is being killed
    finally:
        os.close(stdin)
