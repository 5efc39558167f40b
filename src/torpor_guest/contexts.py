"""Python contexts: one worker process each, which keeps its variables from burst to burst."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from torpor_guest.bursts import Alarm, Burst, End, Outcome, Outlet, Place, Stopwatch, Turnstile, follow
from torpor_guest.parking import Parking
from torpor_guest.processes import Launch, Process, Processes, account_of, signal_name
from torpor_guest.pump import Pump, Sink
from torpor_guest.settings import Refused, Settings
from torpor_guest.worker import LENGTH
from torpor_wire import DataChannel, optional_number, text

CONTEXTS_MAX = 64
START_S_MAX = 120.0  # imports of a cold interpreter, and reading 16 MiB of source, on a slow machine
REPORT_BYTES_MAX = 16 * 1024 * 1024
INTERRUPTS_APART_S = 0.05  # those that come faster are one
_BOOT = """
import sys
lib, *fds = sys.argv[1:]
sys.path.insert(0, lib)
from torpor_guest.worker import main
sys.path.remove(lib)
sys.argv[1:] = []
main(fds)
"""


class Worker:
    """One worker process, with its pump. It dies once; the context then makes another."""

    def __init__(self, settings: Settings, processes: Processes, stopwatch: Stopwatch, name: str) -> None:
        self.outlet = Outlet()
        self._stopwatch = stopwatch
        self.env_revision = settings.environment.revision
        self._processes = processes
        self._burst: Burst | None = None
        self._begun = False
        self._interrupt_due = False
        self._interrupted_s = -INTERRUPTS_APART_S
        self._exit_code: int | None = None
        self._report = bytearray()
        self._lock = threading.Lock()
        self.parking = Parking()
        self.process, self._commands, self._placed, pump = self._start(settings, name)
        pump.start()
        processes.watch(self.process, pump.exited)

    def _start(self, settings: Settings, name: str) -> tuple[Process, int, int, Pump]:
        account = account_of(settings.user)
        env = {**settings.environment.values(), **(account.env if account else {}), "TORPOR_CONTEXT": name}
        stdin = os.open(os.devnull, os.O_RDONLY)
        commands, reports, placed, stdout, stderr = (os.pipe() for _ in range(5))
        fds = (commands[0], reports[1], placed[0], *self.parking.child_fds)
        argv = (settings.python, "-c", _BOOT, settings.lib_dir, *(str(fd) for fd in fds))
        launch = Launch(argv, env, stdin, stdout[1], stderr[1], settings.folder_for(env), settings.user, pass_fds=fds)
        try:
            process = self._processes.start(launch)
        except Refused:
            for fd in (commands[1], reports[0], placed[1], stdout[0], stderr[0]):
                os.close(fd)
            raise
        finally:
            for fd in (stdin, commands[0], reports[1], placed[0], stdout[1], stderr[1]):
                os.close(fd)
        sink = Sink(self._on_output, self._on_report, self._on_exit)
        return process, commands[1], placed[1], Pump(stdout=stdout[0], stderr=stderr[0], report=reports[0], sink=sink)

    def begin(self, burst: Burst, source: bytes, env: dict[str, str], *, silent: bool) -> None:
        """Let it run ``source`` for ``burst``, which is told of the end."""
        self.outlet.attach(burst.stream)
        with self._lock:
            self._burst, self._begun, self._interrupt_due = burst, False, False
            self._interrupted_s = -INTERRUPTS_APART_S  # what the last burst was sent has been handled
            if self._exit_code is not None:
                burst.events.put((End.EXITED, self._exit_code))
                return
        header = json.dumps({"source_bytes": len(source), "env": env, "silent": silent}).encode()
        rest = memoryview(LENGTH.pack(len(header)) + header + source)
        try:
            while rest:
                rest = rest[os.write(self._commands, rest) :]
        except BrokenPipeError:
            return  # it has died, and EXITED says so

    def end(self) -> None:
        """The burst has its answer."""
        with self._lock:
            self._burst = None
        self.outlet.detach()

    def interrupt(self) -> None:
        """SIGINT to the burst that runs, as soon as its code does."""
        with self._lock:
            self._interrupt_due = self._burst is not None
            if self._interrupt_due and self._begun:
                self._kill_softly()

    def _kill_softly(self) -> None:
        """SIGINT, unless one was sent just before. The lock is held.

        Python may raise the second of two at the entry of whatever handles the first: nothing can catch it there, and
        the context would be lost with its variables.
        """
        now_s = time.monotonic()
        if now_s - self._interrupted_s >= INTERRUPTS_APART_S:
            self._interrupted_s = now_s
            self._processes.kill(self.process, signal.SIGINT)

    def kill(self) -> None:
        """End it at once. What it started lives on."""
        self._processes.kill(self.process, signal.SIGKILL)

    def discard(self) -> None:
        """It has ended and its burst too: let go of the pipes. Not in the pump: a burst may still be writing."""
        os.close(self._commands)
        os.close(self._placed)
        self.parking.close()

    def _on_output(self, channel: DataChannel, data: bytes) -> None:
        self.outlet.put(channel, data)

    def _on_exit(self, exit_code: int) -> None:
        with self._lock:
            self._exit_code = exit_code
            if self._burst is not None:
                self._burst.events.put((End.EXITED, exit_code))

    def _on_report(self, data: bytes) -> None:
        """Reports come from user territory: one that does not parse ends the worker."""
        self._report += data
        while len(self._report) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._report)
            if length > REPORT_BYTES_MAX:
                self.kill()
                return
            if len(self._report) < LENGTH.size + length:
                return
            body = bytes(self._report[LENGTH.size : LENGTH.size + length])
            del self._report[: LENGTH.size + length]
            try:
                report = json.loads(body)
                kind = report["kind"]
            except (ValueError, KeyError, TypeError):
                self.kill()
                return
            if kind == "display":
                self.outlet.put(DataChannel.DISPLAY, json.dumps(report["data"]).encode())
                with suppress(BrokenPipeError):
                    os.write(self._placed, LENGTH.pack(report["number"]))
            else:
                self._on_progress(report, done=kind == "done")

    def _on_progress(self, report: dict[str, Any], *, done: bool) -> None:
        with self._lock:
            if self._burst is None:
                return
            self._begun = not done
            if done:
                self._burst.events.put((End.DONE, report))
                return
            self._burst.begun_s = self._stopwatch.active_s()
            if self._interrupt_due:
                self._kill_softly()


class Context:
    """A name, its worker, and the queue of its bursts."""

    def __init__(self, settings: Settings, processes: Processes, stopwatch: Stopwatch, name: str) -> None:
        self.name = name
        self.worker: Worker | None = None
        self._settings = settings
        self._processes = processes
        self._stopwatch = stopwatch
        self.turnstile = Turnstile()

    def run(self, burst: Burst, source: bytes, timeout_s: float | None, *, silent: bool = False) -> Outcome:
        """Run source in turn; ``silent``: it is not counted. Raises: Refused."""
        burst.await_turn()
        worker = self._living_worker()
        worker.env_revision, env = self._settings.environment.changes_since(worker.env_revision)
        worker.begin(burst, source, env, silent=silent)
        grace_s = self._settings.grace_s
        alarms = []
        if timeout_s is not None:
            alarms = [Alarm(timeout_s, worker.interrupt), Alarm(timeout_s + grace_s, worker.kill)]
        start = Alarm(START_S_MAX, worker.kill)
        end, value, gone_off = follow(burst, self._stopwatch, alarms, worker.interrupt, start=start)
        worker.end()
        if end is End.DONE:
            return _outcome(value, timed_out=gone_off > 0)
        self._discard(worker)
        why = f"its process ended with {signal_name(value)}"
        if gone_off == 2:
            why = f"the code did not stop within {grace_s:g} s after its time-out of {timeout_s:g} s"
        text = f"{why}; the variables of context {self.name!r} are lost and the next burst starts it afresh"
        error = {"name": "ContextLost", "value": text, "traceback": f"ContextLost: {text}\n"}
        return Outcome(error=error, timed_out=gone_off > 0)

    def _living_worker(self) -> Worker:
        if self.worker is not None and self.worker.process.exit_code is not None:
            self._discard(self.worker)
        if self.worker is None:
            self.worker = Worker(self._settings, self._processes, self._stopwatch, self.name)
        return self.worker

    def _discard(self, worker: Worker) -> None:
        self.worker = None
        worker.discard()


def _outcome(report: dict[str, Any], *, timed_out: bool) -> Outcome:
    return Outcome(
        result=report.get("result"),
        error=report.get("error"),
        execution_count=report.get("execution_count"),
        timed_out=timed_out,
    )


class Contexts:
    """All contexts, by name; one is made when it is first used."""

    def __init__(self, settings: Settings, processes: Processes, stopwatch: Stopwatch) -> None:
        self._settings = settings
        self._processes = processes
        self._stopwatch = stopwatch
        self._contexts: dict[str, Context] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """In order of creation."""
        with self._lock:
            return list(self._contexts)

    def queue(self, fields: dict[str, Any]) -> Place:
        """A place for a request to come. Raises: Refused, BadMessage."""
        return self.context(text(fields, "context")).turnstile.join()

    def run(self, burst: Burst) -> Outcome:
        """The operation ``code``. Raises: Refused, BadMessage."""
        name, timeout_s = text(burst.fields, "context"), optional_number(burst.fields, "timeout_s")
        source = burst.body.whole()
        try:
            source.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused("invalid_argument", f"cannot run source: it is not UTF-8: {error}", field="source") from error
        return self.context(name).run(burst, source, timeout_s)

    def context(self, name: str) -> Context:
        """The context of that name. Raises: Refused if there would be too many."""
        with self._lock:
            context = self._contexts.get(name)
            if context is None:
                if len(self._contexts) >= CONTEXTS_MAX:
                    raise Refused("quota_exceeded", f"cannot make context {name!r}: there are {CONTEXTS_MAX} already")
                context = Context(self._settings, self._processes, self._stopwatch, name)
                self._contexts[name] = context
            return context

    def interrupt(self, burst: Burst) -> None:
        """The operation ``interrupt``; nothing if that context runs nothing."""
        with self._lock:
            context = self._contexts.get(text(burst.fields, "context"))
        if context is not None and context.worker is not None:
            context.worker.interrupt()

    def living(self) -> Iterable[tuple[str, Worker]]:
        """Contexts with a living worker."""
        with self._lock:
            contexts = list(self._contexts.values())
        for context in contexts:
            if context.worker is not None and context.worker.process.exit_code is None:
                yield context.name, context.worker
