"""A Python context under interrupts. Run as a program: ``SCENARIO FOLDER`` prints as JSON what the scenario saw.

A process of its own, for the agent's reaper waits for every child of its process, also for those of other tests.
"""

import json
import os
import sys
import threading

from torpor_guest.bursts import Body, Burst, Outcome, Stopwatch
from torpor_guest.contexts import Contexts
from torpor_guest.outbox import Outbox, Stream
from torpor_guest.processes import Processes
from torpor_guest.settings import settings_from
from torpor_wire import Connection

HANG = b"while True: pass"


class Interrupted:
    """A default context whose output goes nowhere."""

    def __init__(self, folder: str) -> None:
        processes = Processes(contained=True)
        processes.run()
        self.context = Contexts(settings_from(["--contained", folder]), processes, Stopwatch()).context("default")
        self._outbox = Outbox(Connection(), os.open(os.devnull, os.O_WRONLY))
        self._count = 0

    def run(self, source: bytes) -> Outcome:
        self._count += 1
        stream = Stream(self._outbox, self._count, lossy=True)
        stream.gone = True
        burst = Burst(self._count, {}, stream, Body(lambda _: None))
        return self.context.run(burst, source, 60.0)

    def interrupt(self) -> None:
        if self.context.worker is not None:
            self.context.worker.interrupt()

    def kill(self) -> None:
        if self.context.worker is not None:
            self.context.worker.kill()


def as_fast_as_they_can(interrupted: Interrupted) -> list[Outcome]:
    """Two threads interrupt on and on while 25 bursts hang."""
    over = threading.Event()

    def interrupt_on_and_on() -> None:
        while not over.is_set():
            interrupted.interrupt()

    spam = [threading.Thread(target=interrupt_on_and_on) for _ in range(2)]
    for thread in spam:
        thread.start()
    try:
        return [interrupted.run(HANG) for _ in range(25)]
    finally:
        over.set()
        for thread in spam:
            thread.join()


def one_each(interrupted: Interrupted) -> list[Outcome]:
    """Each of three bursts gets one interrupt as soon as its code runs."""
    outcomes = []
    for _ in range(3):
        done = threading.Event()

        def interrupt_once(done: threading.Event = done) -> None:
            worker = interrupted.context.worker
            while not worker._begun and not done.wait(0.001):
                pass
            worker.interrupt()

        thread = threading.Thread(target=interrupt_once)
        thread.start()
        outcomes.append(interrupted.run(HANG))
        done.set()
        thread.join()
    return outcomes


def main(scenario: str, folder: str) -> None:
    interrupted = Interrupted(folder)
    try:
        before = interrupted.run(b"kept = 41")
        hung = globals()[scenario](interrupted)
        after = interrupted.run(b"kept + 1")
        ends = [[outcome.error and outcome.error["name"], outcome.timed_out] for outcome in (before, *hung, after)]
        print(json.dumps({"ends": ends, "kept": after.result and after.result["text/plain"]}))
    finally:
        interrupted.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
