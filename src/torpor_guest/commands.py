"""Processes that a client starts and waits for."""

from __future__ import annotations

import os
import signal
from functools import partial

from torpor_guest.bursts import Alarm, Burst, End, Outcome, Stopwatch, follow
from torpor_guest.crew import CREW
from torpor_guest.kept import KeptProcesses
from torpor_guest.launching import Ends, launch
from torpor_guest.processes import Processes
from torpor_guest.pump import Pump, Sink
from torpor_guest.settings import Refused, Settings
from torpor_wire import flag, optional_number


class Commands:
    """The operation ``execute``."""

    def __init__(self, settings: Settings, processes: Processes, stopwatch: Stopwatch, kept: KeptProcesses) -> None:
        self._settings = settings
        self._processes = processes
        self._stopwatch = stopwatch
        self._kept = kept

    def execute(self, burst: Burst) -> Outcome:
        """Run a process. Raises: Refused, BadMessage."""
        timeout_s = optional_number(burst.fields, "timeout_s")
        if flag(burst.fields, "detach"):
            return self._kept.detach(burst)
        ends = launch(burst, self._settings, self._processes)
        process = ends.process
        sink = Sink(burst.stream.put, lambda _: None, lambda code: burst.events.put((End.EXITED, code)))
        self._pump(ends, sink)
        CREW.run(partial(_feed, burst, ends.stdin))

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

    def _pump(self, ends: Ends, sink: Sink) -> None:
        pump = Pump(stdout=ends.stdout, stderr=ends.stderr, report=None, sink=sink)
        pump.start()
        self._processes.watch(ends.process, pump.exited)


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
