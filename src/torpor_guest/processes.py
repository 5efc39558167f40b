"""Starting and reaping: the only place that forks, and the only one that waits.

One thread starts everything. Capability bounding sets belong to threads: that thread alone gives up CAP_SYS_ADMIN and
every child inherits the smaller set, without code of ours between fork and exec. Another thread reaps everything,
orphans that fell to PID 1 too. Both hold ``lock`` while a pid may change its meaning.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from torpor_guest.settings import Refused

PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: a session leader with these descriptors and no others."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: int
    stdout: int
    stderr: int
    cwd: str | None = None
    user: str = "root"
    pass_fds: tuple[int, ...] = ()


@dataclass(eq=False)
class Process:
    """A started process. ``exit_code``: None while it lives, negative signal number if a signal ended it."""

    pid: int
    exit_code: int | None = None
    on_exit: list[Callable[[int], None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Account:
    """Another user to run as, with the variables that go with it."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    env: Mapping[str, str]


def account_of(user: str) -> Account | None:
    """None if it is the user we are. Raises: Refused (invalid_argument) if there is no such user."""
    entry = entry_of(user)
    if entry.pw_uid == os.geteuid():
        return None
    env = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell or "/bin/sh"}
    return Account(entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)), env)


def entry_of(user: str) -> pwd.struct_passwd:
    """By name, or uid in decimal. Raises: Refused (invalid_argument) if there is no such user."""
    try:
        return pwd.getpwuid(int(user)) if user.isascii() and user.isdigit() else pwd.getpwnam(user)
    except (KeyError, OverflowError, ValueError):
        known = ", ".join(sorted(row.pw_name for row in pwd.getpwall())[:20])
        raise Refused(
            "invalid_argument", f"cannot run as {user!r}: no such user; there are {known}", field="user"
        ) from None


class Processes:
    """All children. ``on_exit`` callbacks run in the reaper thread and must not block."""

    def __init__(self, *, contained: bool) -> None:
        self.lock = threading.RLock()
        self._contained = contained
        self._orders: queue.SimpleQueue[tuple[Launch, Future[Process]]] = queue.SimpleQueue()
        self._living: dict[int, Process] = {}
        self._born = threading.Event()

    def run(self) -> None:
        """Start both threads."""
        if self._contained:
            # A test's agent is not PID 1: as subreaper it still gets the orphans of what it started.
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for target in (self._start_all, self._reap_all):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()

    def start(self, launch: Launch) -> Process:
        """Start a process. Raises: Refused (invalid_argument, not_found, guest_error)."""
        order: Future[Process] = Future()
        self._orders.put((launch, order))
        return order.result()

    def kill(self, process: Process, signal_number: int, *, group: bool = False) -> bool:
        """Send a signal if it still lives; the pid cannot have been given to another meanwhile."""
        with self.lock:
            if process.exit_code is not None:
                return False
            try:
                (os.killpg if group else os.kill)(process.pid, signal_number)
            except ProcessLookupError:
                return False
            return True

    def watch(self, process: Process, on_exit: Callable[[int], None]) -> None:
        """Call ``on_exit`` with the exit code, at once if it has ended."""
        with self.lock:
            if process.exit_code is None:
                process.on_exit.append(on_exit)
                return
        on_exit(process.exit_code)

    def _start_all(self) -> None:
        if not self._contained:
            # SAFETY: only this thread's bounding set; PID 1's main thread keeps CAP_SYS_ADMIN for the identity.
            ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)
        while True:
            launch, order = self._orders.get()
            try:
                with self.lock:
                    order.set_result(self._spawn(launch))
            except Refused as refusal:
                order.set_exception(refusal)

    def _spawn(self, launch: Launch) -> Process:
        account = account_of(launch.user)
        try:
            child = subprocess.Popen(
                launch.argv,
                stdin=launch.stdin,
                stdout=launch.stdout,
                stderr=launch.stderr,
                env=launch.env,
                cwd=launch.cwd,
                pass_fds=launch.pass_fds,
                start_new_session=True,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=account.groups if account else None,
            )
        except FileNotFoundError as error:
            raise Refused("not_found", f"cannot start {launch.argv[0]!r}: {error}") from error
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            code = (
                "invalid_argument"
                if isinstance(error, ValueError | PermissionError | NotADirectoryError)
                else "guest_error"
            )
            raise Refused(code, f"cannot start {launch.argv[0]!r}: {error}") from error
        child.returncode = 0  # the reaper waits for it; this keeps subprocess from doing so as well
        process = self._living[child.pid] = Process(child.pid)
        self._born.set()
        return process

    def _reap_all(self) -> None:
        while True:
            self._born.clear()
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                self._born.wait()
                continue
            if ended is not None:
                self._reap(ended.si_pid)

    def _reap(self, pid: int) -> None:
        """Only a look was taken so far: until it is reaped here, under the lock, its pid is not given away."""
        with self.lock:
            try:
                _, status = os.waitpid(pid, 0)
            except ChildProcessError:
                return  # it could not exec, and who started it has waited for it
            process = self._living.pop(pid, None)
            if process is None:
                return  # an orphan of a user's process
            process.exit_code = os.waitstatus_to_exitcode(status)
            callbacks, process.on_exit = process.on_exit, []
        for callback in callbacks:
            callback(process.exit_code)


def signal_name(exit_code: int) -> str:
    """``"signal 11 (SIGSEGV)"`` for -11, ``"exit code 3"`` for 3."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"signal {-exit_code}"
