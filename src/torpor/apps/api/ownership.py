"""Who owns a home: one process at a time, held by a file lock that dies with it, described by ``server.json``."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from torpor.apps.config import Config, home_failure, make_home, read_server_file
from torpor.domain.errors import Conflict, DeadlineExceeded

STOP_TIMEOUT_S = 120.0  # a server that stops finishes the pauses it has begun


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """What ``server.json`` holds. ``start_ticks`` tells our process from a later one of the same pid."""

    pid: int
    start_ticks: int
    url: str
    started_at: str


class Stopped(StrEnum):
    """What ``stop`` found."""

    STOPPED = "stopped"
    DEAD = "dead"  # it had died before; its record was removed
    ABSENT = "absent"


@contextmanager
def owned(config: Config) -> Iterator[None]:
    """Own the home while inside, made with mode 0700 if it is new.

    Raises: Conflict naming the process that owns it; StorageFull, InvalidArgument if the home cannot be written.
    """
    make_home(config)
    try:
        handle = os.open(config.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise home_failure(config, error) from error
    try:
        if not _lock(handle):
            raise _taken(config)
        yield
    finally:
        os.close(handle)


def write_record(config: Config, record: ServerRecord) -> None:
    """Say where the server is; replaced at once, so that readers never see half of it."""
    scratch = config.server_file.with_suffix(".json.new")
    scratch.write_text(json.dumps(asdict(record)) + "\n", encoding="utf-8")
    scratch.replace(config.server_file)


def remove_record(config: Config) -> None:
    """Idempotent."""
    config.server_file.unlink(missing_ok=True)


def start_ticks(pid: int) -> int | None:
    """When the process was started, in clock ticks since boot; None if there is none (a zombie counts as none)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def running(config: Config) -> ServerRecord | None:
    """The home's live server, by its record and its process."""
    said = read_server_file(config.server_file)
    try:
        record = ServerRecord(int(said["pid"]), int(said["start_ticks"]), str(said["url"]), str(said["started_at"]))
    except (KeyError, TypeError, ValueError):
        return None
    return record if start_ticks(record.pid) == record.start_ticks else None


def stop(config: Config, *, timeout_s: float = STOP_TIMEOUT_S) -> tuple[Stopped, int | None]:
    """Ask the home's server to stop, and wait until it has; with its pid.

    The signal goes to a descriptor of the checked process, so a reused pid is never hit. Idempotent.
    Raises: DeadlineExceeded if it still runs after ``timeout_s``; Conflict if the home is owned but its owner unknown.
    """
    record = running(config)
    if record is None:
        return _clean_up(config)
    try:
        process = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return _clean_up(config)
    try:
        if start_ticks(record.pid) != record.start_ticks:
            return _clean_up(config)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGTERM)
        if not _ended(process, timeout_s):
            raise DeadlineExceeded(
                f"cannot see the server (pid {record.pid}) stop within {timeout_s:.0f} s: it may still be pausing "
                f"sessions; look at {config.log_file}, repeat `torpor down`, or end it with `kill -9 {record.pid}`",
                pid=record.pid,
            )
    finally:
        os.close(process)
    with suppress(Conflict), owned(config):  # it removes its record itself, unless it was killed; never a successor's
        remove_record(config)
    return Stopped.STOPPED, record.pid


def _clean_up(config: Config) -> tuple[Stopped, int | None]:
    left_behind = config.server_file.exists()
    pid = read_server_file(config.server_file).get("pid")
    if not config.home.is_dir():
        return Stopped.ABSENT, None
    with owned(config):  # nobody starts meanwhile; a Conflict here means that a server is just starting
        remove_record(config)
    return (Stopped.DEAD if left_behind else Stopped.ABSENT), pid if isinstance(pid, int) else None


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _taken(config: Config) -> Conflict:
    record = running(config)
    if record is None:
        return Conflict(
            f"cannot own {config.home}: a server is just starting or stopping on it; repeat in a moment",
            reason="home_in_use",
            home=str(config.home),
        )
    return Conflict(
        f"cannot own {config.home}: a server runs on it already (pid {record.pid}, {record.url}, since "
        f"{record.started_at}); use it, stop it with `torpor down`, or set TORPOR_HOME to another folder",
        reason="home_in_use",
        home=str(config.home),
        pid=record.pid,
        url=record.url,
    )


def _ended(process: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
