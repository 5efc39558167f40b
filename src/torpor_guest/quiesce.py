"""Stopping everything, and letting it go on: the frame of the resume contract.

Quiesce: Python contexts park (hold.py), then every process is stopped by SIGSTOP. Proceed: the contract's steps in
order, contexts reseeded while they are still in their hold, then SIGCONT to what *we* stopped, and the word to go.
If a mandatory step fails, nothing goes on.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from torpor_guest.bursts import Stopwatch
from torpor_guest.contexts import Contexts, Worker
from torpor_guest.hold import PARK_SIGNAL, SEED_BYTES
from torpor_guest.identity import Notice, take_identity, tell_generation
from torpor_guest.processes import Processes
from torpor_guest.procfs import DEAD, ProcessRow, processes, state_of
from torpor_guest.settings import Refused, Settings

ROUND_S = 0.001


@dataclass
class _Parked:
    """What quiesce did, to be undone."""

    held: dict[str, Worker] = field(default_factory=dict)
    unheld: dict[str, Worker] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)  # by us; what the user had stopped stays so


class Contract:
    """The resume contract. All calls come from the agent's main thread."""

    def __init__(self, settings: Settings, processes_: Processes, contexts: Contexts, stopwatch: Stopwatch) -> None:
        self.generation = 0
        self._settings = settings
        self._processes = processes_
        self._contexts = contexts
        self._stopwatch = stopwatch
        self._parked: _Parked | None = None
        self._failure: str | None = None

    @property
    def is_parked(self) -> bool:
        """No user instruction runs."""
        return self._parked is not None

    def quiesce(self) -> dict[str, Any]:
        """Stop everything; the QUIESCED fields. Idempotent. Raises: Refused; then everything goes on."""
        start_s = time.monotonic()
        if self._parked is None:
            self._processes.lock.acquire()  # nobody forks or reaps until proceed: a vfork would stop with its child
            self._stopwatch.park()
            self._parked = parked = _Parked()
            try:
                theirs = {row.pid for row in self._rows() if row.is_stopped}
                self._park(parked, theirs)
                self._stop(parked, theirs)
            except Refused:
                self._release_held(lambda _: bytes(SEED_BYTES), reseed=False)
                self._go_on()
                raise
        return {
            "took_ms": (time.monotonic() - start_s) * 1000,
            "stopped_count": len(self._parked.stopped),
            "unparked": [worker.process.pid for worker in self._parked.unheld.values()],
        }

    def proceed(self, notice: Notice, dropped: list[str]) -> dict[str, Any]:
        """Carry out the contract and let everything go on; the READY fields. Raises: Refused; nothing goes on."""
        steps_ms: dict[str, float] = {}
        if self._failure is not None:
            raise Refused("guest_error", self._failure)
        if self._parked is None:
            if notice.cause == "aborted" or notice.generation == self.generation:
                return self._ready(steps_ms, (), dropped, 0.0)  # a repeat: it has been done
            raise Refused("conflict", "cannot proceed: the guest is not quiesced", reason="not_quiesced")
        aborted = notice.cause == "aborted"
        skew_ms = 0.0
        reseeded: tuple[str, ...] = ()
        try:
            skew_ms = 0.0 if aborted else self._become(notice, steps_ms)
            with _timed(steps_ms, "contexts"):
                reseeded = self._release_held(lambda name: self._randomness(notice, name), reseed=not aborted)
                if not aborted:
                    dropped += self._reseed_later(notice)
        except (OSError, Refused) as error:
            self._fail(f"cannot carry out the resume contract: {error}; user code stays stopped")
        with _timed(steps_ms, "continue"):
            self._go_on()
        return self._ready(steps_ms, reseeded, dropped, skew_ms)

    def _ready(
        self, steps_ms: dict[str, float], reseeded: tuple[str, ...], dropped: list[str], skew_ms: float
    ) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "steps_ms": steps_ms,
            "reseeded": list(reseeded),
            "dropped": dropped,
            "clock_skew_ms": skew_ms,
        }

    def _become(self, notice: Notice, steps_ms: dict[str, float]) -> float:
        """Clock, agent, identity, environment. Returns the clock's skew in ms. Raises: OSError."""
        now_s = time.time()  # noqa: TID251 - the guest's own wall clock is what is being measured
        skew_ms = (now_s - notice.wall_time_s) * 1000
        with _timed(steps_ms, "agent"):
            random.seed(self._randomness(notice, "agent"))
            with suppress(OSError), open("/dev/urandom", "wb", buffering=0) as kernel:
                kernel.write(self._randomness(notice, "kernel")[:64])  # engines with a kernel of their own mix it in
        with _timed(steps_ms, "identity"):
            if notice.clone:
                take_identity(self._settings, notice)
        with _timed(steps_ms, "generation"):
            self.generation = notice.generation
            tell_generation(self._settings, notice, now_s)
        self._settings.environment.update(notice.env)
        return skew_ms

    def _randomness(self, notice: Notice, name: str) -> bytes:
        """SEED_BYTES for one use: from the host and from the kernel, so that either alone suffices."""
        return hashlib.shake_256(notice.entropy + os.urandom(32) + name.encode("utf-8", "replace")).digest(SEED_BYTES)

    def _rows(self) -> list[ProcessRow]:
        return processes(descendants_of=os.getpid() if self._settings.contained else None)

    def _park(self, parked: _Parked, theirs: set[int]) -> None:
        """Every context that can parks; the others are listed."""
        asked = {name: worker for name, worker in self._contexts.living() if worker.process.pid not in theirs}
        for worker in asked.values():
            worker.parking.ask()
            self._processes.kill(worker.process, PARK_SIGNAL)
        deadline_s = time.monotonic() + self._settings.park_timeout_s
        for name, worker in asked.items():
            (parked.held if worker.parking.answered(deadline_s) else parked.unheld)[name] = worker
        for name, worker in self._contexts.living():
            if name not in asked:
                parked.unheld[name] = worker

    def _stop(self, parked: _Parked, theirs: set[int]) -> None:
        """SIGSTOP until nothing but us can run. A forking process cannot outrun it: what is stopped does not fork."""
        deadline_s = time.monotonic() + self._settings.stop_timeout_s
        while True:
            self._signal_all(signal.SIGSTOP)
            rows = self._rows()
            running = [row.pid for row in rows if row.runs]
            parked.stopped = [
                row.pid for row in rows if not row.runs and row.state not in DEAD and row.pid not in theirs
            ]
            if not running:
                break
            if time.monotonic() > deadline_s:
                parked.stopped += running
                raise Refused("guest_error", f"cannot stop processes {running} in {self._settings.stop_timeout_s:g} s")
            threading.Event().wait(ROUND_S)
        for name, worker in list(parked.unheld.items()):
            # Its request was read just before it stopped: it is in its hold or about to enter it.
            if worker.process.pid not in theirs and not worker.parking.take_back():
                parked.held[name] = parked.unheld.pop(name)

    def _signal_all(self, number: int) -> None:
        if self._settings.contained:
            for row in self._rows():
                _signal(row.pid, number)
            return
        # SAFETY: -1 means every process that we may signal: all of the sandbox if we are its PID 1, and all of the
        # machine otherwise.
        if os.getpid() != 1:
            raise Refused("guest_error", "cannot stop processes: the agent is not PID 1 (tests: --contained DIR)")
        with suppress(ProcessLookupError):
            os.kill(-1, number)

    def _release_held(self, randomness: Callable[[str], bytes], *, reseed: bool) -> tuple[str, ...]:
        """Seed contexts inside their hold; they go on only after all have. Raises: Refused if one does not answer."""
        assert self._parked is not None
        held = {name: each for name, each in self._parked.held.items() if state_of(each.process.pid) not in DEAD}
        for name, worker in held.items():
            worker.parking.seed(randomness(name), reseed=reseed)
            _signal(worker.process.pid, signal.SIGCONT)  # it runs nothing but the chain: its GIL is kept
        deadline_s = time.monotonic() + self._settings.reseed_timeout_s
        for name, worker in held.items():
            if not worker.parking.answered(deadline_s):
                raise Refused("guest_error", f"context {name!r} (pid {worker.process.pid}) did not take its seed")
        return tuple(held) if reseed else ()

    def _reseed_later(self, notice: Notice) -> list[str]:
        """Leave seeds for contexts that did not park; one sentence each."""
        assert self._parked is not None
        for name, worker in self._parked.unheld.items():
            worker.parking.reseed_later(self._randomness(notice, name))
            self._processes.kill(worker.process, PARK_SIGNAL)
        return [
            f"context {name!r} (pid {worker.process.pid}) was busy in native code and could not park: "
            "its generators are reseeded when its main thread next runs Python"
            for name, worker in self._parked.unheld.items()
        ]

    def _go_on(self) -> None:
        """Continue what we stopped, children first so that no shell sees a stopped child, then the contexts."""
        assert self._parked is not None
        parked, self._parked = self._parked, None
        for pid in sorted(parked.stopped, reverse=True):
            _signal(pid, signal.SIGCONT)
        for worker in parked.held.values():
            worker.parking.go()
        self._stopwatch.proceed()
        self._processes.lock.release()

    def _fail(self, why: str) -> NoReturn:
        """Fail closed. Raises: Refused, always."""
        self._failure = why
        print(why, file=sys.stderr, flush=True)
        self._signal_all(signal.SIGSTOP)
        raise Refused("guest_error", why)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def _timed(steps_ms: dict[str, float], name: str) -> Iterator[None]:
    start_s = time.monotonic()
    yield
    steps_ms[name] = (time.monotonic() - start_s) * 1000
