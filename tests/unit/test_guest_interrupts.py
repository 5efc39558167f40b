"""Interrupts of a Python context, however fast they come: the burst ends, and its variables stay."""

import os
import threading

import pytest

from torpor_guest.bursts import Body, Burst, Stopwatch
from torpor_guest.contexts import Contexts
from torpor_guest.outbox import Outbox, Stream
from torpor_guest.processes import Processes
from torpor_guest.settings import settings_from
from torpor_wire import Connection

HANG = b"while True: pass"


class Interrupted:
    """A default context whose output goes nowhere."""

    def __init__(self, folder) -> None:
        settings = settings_from(["--contained", str(folder)])
        self.processes = Processes(contained=True)
        self.processes.run()
        self.context = Contexts(settings, self.processes, Stopwatch()).context("default")
        self._outbox = Outbox(Connection(), os.open(os.devnull, os.O_WRONLY))
        self._count = 0

    def run(self, source: bytes):
        self._count += 1
        stream = Stream(self._outbox, self._count, lossy=True)
        stream.gone = True
        burst = Burst(self._count, {}, stream, Body(lambda _: None))
        return self.context.run(burst, source, 60.0)

    def interrupt(self) -> None:
        if self.context.worker is not None:
            self.context.worker.interrupt()


@pytest.fixture
def interrupted(tmp_path):
    one = Interrupted(tmp_path)
    yield one
    if one.context.worker is not None:
        one.context.worker.kill()


def test_interrupts_that_come_as_fast_as_they_can_cost_no_variables(interrupted):
    assert interrupted.run(b"kept = 41").error is None
    over = threading.Event()

    def interrupt_on_and_on():
        while not over.is_set():
            interrupted.interrupt()

    spam = [threading.Thread(target=interrupt_on_and_on) for _ in range(2)]
    for thread in spam:
        thread.start()
    try:
        ends = [interrupted.run(HANG).error["name"] for _ in range(25)]
    finally:
        over.set()
        for thread in spam:
            thread.join()
    assert set(ends) == {"KeyboardInterrupt"}
    assert interrupted.run(b"kept + 1").result["text/plain"] == "42"


def test_one_interrupt_ends_the_burst_that_follows_an_interrupted_one_at_once(interrupted):
    assert interrupted.run(b"kept = 41").error is None
    for _ in range(3):
        done = threading.Event()

        def interrupt_once(done=done):
            worker = interrupted.context.worker
            while not worker._begun and not done.wait(0.001):
                pass
            worker.interrupt()

        thread = threading.Thread(target=interrupt_once)
        thread.start()
        outcome = interrupted.run(HANG)
        done.set()
        thread.join()
        assert (outcome.error["name"], outcome.timed_out) == ("KeyboardInterrupt", False)
    assert interrupted.run(b"kept + 1").result["text/plain"] == "42"
