"""From a request to a started process with the agent's ends of its input and output."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from torpor_guest.bursts import Burst
from torpor_guest.processes import Launch, Process, Processes, account_of
from torpor_guest.settings import Refused, Settings
from torpor_guest.terminals import LAUNCHER, TERM, Size, open_terminal
from torpor_wire import optional_text, text, text_mapping, texts

PIPE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Ends:
    """``stdin`` is written, ``stdout`` and ``stderr`` (None: the same terminal) are read. The caller owns them."""

    process: Process
    stdin: int
    stdout: int
    stderr: int | None


def launch(burst: Burst, settings: Settings, processes: Processes, size: Size | None = None) -> Ends:
    """Start what the fields ``argv``, ``env``, ``cwd``, ``user`` say, on a terminal if there is a size.

    An empty ``user`` and no ``cwd`` mean the template's.

    Raises: Refused (invalid_argument, not_found, unsupported, guest_error), BadMessage.
    """
    user, argv = text(burst.fields, "user") or settings.user, texts(burst.fields, "argv")
    if not argv:
        raise Refused("invalid_argument", "cannot start a process: argv is empty", field="argv")
    account = account_of(user)
    env = {**settings.environment.values(), **(account.env if account else {})}
    if size is not None:
        env["TERM"] = TERM
    env |= text_mapping(burst.fields, "env")
    cwd = _directory(optional_text(burst.fields, "cwd"), settings, env)
    if size is None:
        return _piped(Launch(argv, env, -1, -1, -1, cwd, user), processes)
    _require_program(argv[0], env, cwd)
    if not os.path.exists(LAUNCHER[0]):
        raise Refused("unsupported", f"cannot start on a terminal: the template has no {LAUNCHER[0]}")
    master, path = open_terminal(size, (account.uid, account.gid) if account else None)
    # Kept open until the process has opened it: a terminal whose last end closes hangs up.
    slave = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        process = processes.start(Launch((*LAUNCHER, path, *argv), env, slave, slave, slave, cwd, user))
    except Refused:
        os.close(master)
        raise
    finally:
        os.close(slave)
    return Ends(process, os.dup(master), master, None)


def _directory(wanted: str | None, settings: Settings, env: Mapping[str, str]) -> str:
    if not wanted:
        return settings.folder_for(env)
    if not os.path.isdir(wanted):
        raise Refused("invalid_argument", f"cannot start in {wanted!r}: it is no directory", field="cwd")
    return wanted


def _require_program(name: str, env: Mapping[str, str], cwd: str) -> None:
    """The launcher could only say so on the terminal."""
    found = os.path.exists(os.path.join(cwd, name)) if "/" in name else shutil.which(name, path=env.get("PATH"))
    if not found:
        raise Refused("not_found", f"cannot start {name!r}: there is no such program", field="argv")


def _piped(order: Launch, processes: Processes) -> Ends:
    with ExitStack() as children, ExitStack() as ours:
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        with suppress(OSError):  # room for a writer to go on while we are at its last piece
            fcntl.fcntl(stdout[0], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        for fd in (stdin[0], stdout[1], stderr[1]):
            children.callback(os.close, fd)
        for fd in (stdin[1], stdout[0], stderr[0]):
            ours.callback(os.close, fd)
        argv, env, cwd, user = order.argv, order.env, order.cwd, order.user
        process = processes.start(Launch(argv, env, stdin[0], stdout[1], stderr[1], cwd, user))
        ours.pop_all()
        return Ends(process, stdin[1], stdout[0], stderr[0])
