"""Persistent shells: one process per name that keeps its directory, variables and functions.

A command is a file that the shell sources, so that it runs in the shell itself and declares globals. A marker tells its
end on a pipe of our own, never by end of file, so a background job holds nothing open. Commands read /dev/null.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import tempfile
import threading
from typing import Any

from torpor_guest.bursts import Alarm, Burst, End, Outcome, Outlet, Place, Stopwatch, Turnstile, follow
from torpor_guest.processes import Launch, Process, Processes, account_of
from torpor_guest.procfs import processes
from torpor_guest.pump import Pump, Sink
from torpor_guest.settings import Refused, Settings
from torpor_wire import optional_number, text

SHELLS_MAX = 64
MARKER_BYTES_MAX = 64 * 1024
HIGH_FD = 190  # above what scripts use by number
NUDGES = 8  # SIGINT ends one function level of a shell at a time

# The status of the last command is restored before the next, so that "$?" goes on. `return` in a trap ends the sourced
# file, loops included, without touching the shell. Our descriptors are closed for the command and its children.
_DRIVER = """
__torpor_status=0
__torpor_last() {{ return "$1"; }}
{prologue}
while IFS= read -r __torpor_file <&{commands}; do
  trap 'return 130' INT
  __torpor_last "$__torpor_status"
  . "$__torpor_file" {commands}<&- {marks}>&-
  __torpor_status=$?
  {{ command printf '%s %s %s\\0' "$__torpor_status" "${{!:-0}}" "$PWD" >&{marks}; }} 2>/dev/null
done
"""
# dash knows descriptors of one digit only.
_SH_PROLOGUE = "exec 8</proc/self/fd/{commands} 9>/proc/self/fd/{marks} {close}"


class Shell:
    """One living shell process."""

    def __init__(self, settings: Settings, processes_: Processes, name: str) -> None:
        self.outlet = Outlet()
        self.background: set[int] = set()
        self.env_revision = settings.environment.revision
        self._processes = processes_
        self._burst: Burst | None = None
        self._exit_code: int | None = None
        self._mark = bytearray()
        self._lock = threading.Lock()
        self.process, self._commands, pump = self._start(settings, name)
        pump.start()
        processes_.watch(self.process, pump.exited)

    def _start(self, settings: Settings, name: str) -> tuple[Process, int, Pump]:
        account = account_of(settings.user)
        env = {**settings.environment.values(), **(account.env if account else {}), "TORPOR_SHELL": name}
        stdin = os.open(os.devnull, os.O_RDONLY)
        commands, marks, stdout, stderr = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        fds = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD) for fd in (commands[0], marks[1]))
        cwd = settings.folder_for(env)
        launch = Launch(_argv(*fds), env, stdin, stdout[1], stderr[1], cwd, settings.user, pass_fds=fds)
        try:
            process = self._processes.start(launch)
        except Refused:
            for fd in (commands[1], marks[0], stdout[0], stderr[0]):
                os.close(fd)
            raise
        finally:
            for fd in (stdin, commands[0], marks[1], stdout[1], stderr[1], *fds):
                os.close(fd)
        sink = Sink(self.outlet.put, self._on_mark, self._on_exit)
        return process, commands[1], Pump(stdout=stdout[0], stderr=stderr[0], report=marks[0], sink=sink)

    def begin(self, burst: Burst, file: str, *, quiet: bool = False) -> None:
        """Let it source ``file``; ``burst`` is told of the end. ``quiet``: not part of the burst's output."""
        if not quiet:
            self.outlet.attach(burst.stream)
        with self._lock:
            self._burst = burst
            if self._exit_code is not None:
                burst.events.put((End.EXITED, self._exit_code))
                return
        try:
            os.write(self._commands, os.fsencode(file) + b"\n")
        except BrokenPipeError:
            return  # it has ended, and EXITED says so

    def end(self) -> None:
        """The burst has its answer."""
        with self._lock:
            self._burst = None
        self.outlet.detach()

    def discard(self) -> None:
        """It has ended and its burst too."""
        os.close(self._commands)

    def interrupt(self) -> None:
        """SIGINT to the shell and what it runs in the foreground; background jobs of a shell ignore it."""
        self._processes.kill(self.process, signal.SIGINT, group=True)

    def kill_foreground(self) -> None:
        """SIGKILL what runs in the foreground, so that the shell itself may live on."""
        rows = [row for row in processes() if row.parent == self.process.pid and row.pid not in self.background]
        with self._processes.lock:
            for row in rows:
                try:
                    os.kill(row.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self.interrupt()

    def kill(self) -> None:
        """End the shell. Its background jobs live on."""
        self._processes.kill(self.process, signal.SIGKILL)

    def _on_exit(self, exit_code: int) -> None:
        with self._lock:
            self._exit_code = exit_code
            if self._burst is not None:
                self._burst.events.put((End.EXITED, exit_code))

    def _on_mark(self, data: bytes) -> None:
        self._mark += data
        while b"\0" in self._mark:
            mark, _, rest = bytes(self._mark).partition(b"\0")
            self._mark[:] = rest
            with self._lock:
                if self._burst is not None:
                    self._burst.events.put((End.DONE, mark))
        if len(self._mark) > MARKER_BYTES_MAX:
            self.kill()


def _argv(commands: int, marks: int) -> tuple[str, ...]:
    """bash, or sh where there is none. Raises: Refused where there is neither."""
    if bash := shutil.which("bash"):
        driver = _DRIVER.format(prologue="shopt -s expand_aliases", commands=commands, marks=marks)
        return (bash, "--noprofile", "--norc", "-c", driver)
    if sh := shutil.which("sh"):
        prologue = _SH_PROLOGUE.format(commands=commands, marks=marks, close="")
        return (sh, "-c", _DRIVER.format(prologue=prologue, commands=8, marks=9))
    raise Refused("unsupported", "cannot run a shell: the template has neither bash nor sh")


class Shells:
    """All shells, by name; one is made when it is first used or after it has ended."""

    def __init__(self, settings: Settings, processes_: Processes, stopwatch: Stopwatch) -> None:
        self._settings = settings
        self._processes = processes_
        self._stopwatch = stopwatch
        self._shells: dict[str, Shell] = {}
        self._turnstiles: dict[str, Turnstile] = {}
        self._lock = threading.Lock()

    def queue(self, fields: dict[str, Any]) -> Place:
        """A place for a request to come. Raises: Refused, BadMessage."""
        name = text(fields, "shell")
        with self._lock:
            if name not in self._turnstiles and len(self._turnstiles) >= SHELLS_MAX:
                raise Refused("quota_exceeded", f"cannot make shell {name!r}: there are {SHELLS_MAX} already")
            turnstile = self._turnstiles.setdefault(name, Turnstile())
        return turnstile.join()

    def run(self, burst: Burst) -> Outcome:
        """The operation ``shell``. Raises: Refused, BadMessage."""
        name, timeout_s = text(burst.fields, "shell"), optional_number(burst.fields, "timeout_s")
        command = burst.body.whole()
        if b"\0" in command:
            raise Refused("invalid_argument", "cannot run a command that holds a NUL byte", field="command")
        burst.await_turn()
        shell = self._living(name)
        if not self._export(burst, shell):
            shell = self._living(name)
        return self._run(burst, shell, name, command, timeout_s)

    def _living(self, name: str) -> Shell:
        shell = self._shells.get(name)
        if shell is not None and shell.process.exit_code is not None:
            shell.discard()
            shell = None
        if shell is None:
            shell = self._shells[name] = Shell(self._settings, self._processes, name)
        return shell

    def _export(self, burst: Burst, shell: Shell) -> bool:
        """Tell the shell of changed variables, apart from the command, whose line numbers hold. True if it lives."""
        shell.env_revision, changes = self._settings.environment.changes_since(shell.env_revision)
        if not changes:
            return True
        lines = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in changes.items())
        with _Command(lines.encode(), self._settings.user) as file:
            shell.begin(burst, file, quiet=True)
            end, _, _ = follow(burst, self._stopwatch, [], lambda: None)
        shell.end()
        return end is End.DONE

    def _run(self, burst: Burst, shell: Shell, name: str, command: bytes, timeout_s: float | None) -> Outcome:
        grace_s, alarms = self._settings.grace_s, []
        if timeout_s is not None:
            step_s = grace_s / NUDGES
            alarms = [Alarm(timeout_s + step_s * nudge, shell.interrupt) for nudge in range(NUDGES)]
            alarms += [
                Alarm(timeout_s + grace_s, shell.kill_foreground),
                Alarm(timeout_s + grace_s + step_s, shell.kill_foreground),
                Alarm(timeout_s + 2 * grace_s, shell.kill),
            ]
        with _Command(command, self._settings.user) as file:
            shell.begin(burst, file)
            end, value, gone_off = follow(burst, self._stopwatch, alarms, shell.interrupt)
        shell.end()
        if end is End.DONE:
            status, background, cwd = os.fsdecode(value).split(" ", 2)
            if background.isdigit():
                shell.background.add(int(background))
            return Outcome(exit_code=int(status), cwd=cwd, timed_out=gone_off > 0)
        outcome = Outcome(exit_code=value, timed_out=gone_off > 0)
        if alarms and gone_off == len(alarms):
            said = f"the command did not stop within {2 * grace_s:g} s after its time-out of {timeout_s:g} s; "
            said += f"the directory and variables of shell {name!r} are lost and the next command starts it afresh"
            outcome.error = {"name": "ShellLost", "value": said, "traceback": f"ShellLost: {said}\n"}
        return outcome


class _Command:
    """The file that a shell sources. It is gone when the command has ended."""

    def __init__(self, command: bytes, user: str) -> None:
        self._command = command
        self._account = account_of(user)

    def __enter__(self) -> str:
        try:
            fd, self._path = tempfile.mkstemp(prefix="torpor-command-")
            with os.fdopen(fd, "wb") as file:
                file.write(self._command)
                if self._account is not None:
                    os.fchown(fd, self._account.uid, self._account.gid)
        except OSError as error:
            raise Refused("storage_full", f"cannot run a command: no room for its text in /tmp: {error}") from error
        return self._path

    def __exit__(self, *_: object) -> None:
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return
