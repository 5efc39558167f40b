"""The process's own streams: there, UTF-8, and with failures that say which of them failed."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys

from torpor.domain.errors import InvalidArgument, StorageFull, TorporError

LENIENT = "torpor-lenient"
NAMES = {0: ("stdin", "r"), 1: ("stdout", "w"), 2: ("stderr", "w")}


class ReaderGone(Exception):
    """Nobody reads stdout any more, as after ``| head -1``. No failure of ours, and not one to tell of."""


def prepare() -> None:
    """Once, before anything is read or written.

    A stream that was closed at the start is opened on /dev/null: otherwise the next file or socket would take its
    number, and be written into. Reading a closed stdin still fails, and does not pass for an empty one.
    """
    codecs.register_error(LENIENT, _lenient)
    for number, (name, mode) in NAMES.items():
        if getattr(sys, name) is None:
            _fill(number)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=LENIENT)


def put(data: str | bytes, *, at_once: bool = False) -> None:
    """Write a result to stdout. Raises: ReaderGone, StorageFull, InvalidArgument."""
    with _named():
        if isinstance(data, str):
            sys.stdout.write(data)
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        if at_once:
            sys.stdout.flush()


def tell(data: str | bytes) -> None:
    """Write to stderr at once. Never fails: what nobody can be told must not change how a command ends."""
    with contextlib.suppress(OSError, ValueError):
        if isinstance(data, str):
            sys.stderr.write(data)
        else:
            sys.stderr.flush()
            sys.stderr.buffer.write(data)
        sys.stderr.flush()


def finish() -> None:
    """All that was put is out. Raises: as ``put``."""
    with _named():
        sys.stdout.flush()


def _abandon() -> None:
    """What was put and is not out yet goes nowhere: the interpreter would try again at its end, and complain."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        sys.stdout.flush()


def stdin_failure(error: OSError) -> TorporError:
    """What it means that stdin cannot be read."""
    why = "it is closed" if error.errno == errno.EBADF else error.strerror
    return InvalidArgument(f"cannot read stdin: {why}; pipe something in, or name a file", field="stdin")


class _named(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a function where it is used
    """Failures of stdout as ours. A class: a generator costs more than the write."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, OSError):
            return
        _abandon()
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from error
        said = f"cannot write to stdout: {error.strerror}; what the command did holds"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageFull(f"{said}, free some space for its output") from error
        raise InvalidArgument(said, field="stdout") from error


def _fill(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)  # for stdin as well, so that reading it fails
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def _lenient(error: UnicodeError) -> tuple[str | bytes, int]:
    """Bytes of a file's name go out as they came in, what else is no character is spelt out."""
    assert isinstance(error, UnicodeEncodeError)
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)
