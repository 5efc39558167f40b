"""Files, streamed with credit. Writes replace atomically; what is not a regular file is refused."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from torpor_guest.bursts import Burst
from torpor_guest.processes import entry_of
from torpor_guest.settings import Refused
from torpor_wire import BULK_PAYLOAD_BYTES_MAX, DataChannel, integer, optional_text, text

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
WRONG_PATH = frozenset(
    {
        errno.EEXIST,
        errno.ENOTDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EISDIR,
        errno.EINVAL,
        errno.ENXIO,
        errno.ENOTEMPTY,
        errno.EBUSY,
    }
)


@contextmanager
def translated(deed: str, path: str) -> Iterator[None]:
    """OSError → Refused, with the path and why."""
    try:
        yield
    except FileNotFoundError as error:
        raise Refused("not_found", f"cannot {deed} {path!r}: there is no such file", field="path") from error
    except OSError as error:
        if error.errno in FULL:
            raise Refused(
                "storage_full", f"cannot {deed} {path!r}: the session's disk is full; remove files"
            ) from error
        code = "invalid_argument" if error.errno in WRONG_PATH or isinstance(error, PermissionError) else "guest_error"
        raise Refused(code, f"cannot {deed} {path!r}: {error.strerror}", field="path") from error


def absolute(burst: Burst, deed: str, name: str = "path") -> str:
    """A field that holds a path. Raises: Refused (invalid_argument), BadMessage."""
    path = text(burst.fields, name)
    if not path.startswith("/") or "\0" in path:
        raise Refused("invalid_argument", f"cannot {deed} {path!r}: give an absolute path", field=name)
    return path


def owner_of(burst: Burst) -> tuple[int, int] | None:
    """Uid and gid of the field ``user``, None without one. Raises: Refused (invalid_argument), BadMessage."""
    user = optional_text(burst.fields, "user")
    if user is None:
        return None
    entry = entry_of(user)
    return entry.pw_uid, entry.pw_gid


def make_folders(path: str, owner: tuple[int, int] | None) -> None:
    """A directory and its parents; what is made belongs to ``owner``. Raises: OSError."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path.rstrip("/"))
    if parent and parent != path:
        make_folders(parent, owner)
    with suppress(FileExistsError):
        os.mkdir(path)
        if owner is not None:
            os.chown(path, *owner)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, "something else is there", path)


def _require_regular(mode: int, deed: str, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise Refused("invalid_argument", f"cannot {deed} {path!r}: it is a directory", field="path")
    if not stat.S_ISREG(mode):
        raise Refused("invalid_argument", f"cannot {deed} {path!r}: it is no regular file", field="path")


def read(burst: Burst) -> int:
    """Stream a file as body; its size. Raises: Refused (not_found, invalid_argument)."""
    path = absolute(burst, "read")
    with translated("read", path):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # non-blocking: a FIFO must not hold us up
    try:
        _require_regular(os.fstat(fd).st_mode, "read", path)
        size = 0
        while not burst.stream.gone:
            with translated("read", path):
                piece = os.read(fd, BULK_PAYLOAD_BYTES_MAX)
            if not piece:
                break
            size += len(piece)
            burst.stream.put(DataChannel.BODY, piece)
        return size
    finally:
        os.close(fd)


def write(burst: Burst) -> int:
    """Write the body as a whole file; its size. On failure the file is as it was. Raises: Refused."""
    path, mode = absolute(burst, "write"), integer(burst.fields, "mode") & 0o7777
    owner = owner_of(burst)
    target = os.path.realpath(path)  # through a link the file it names is replaced, not the link
    with translated("write", path):
        if os.path.exists(target):
            there = os.stat(target)
            _require_regular(there.st_mode, "write", path)
            owner = owner or (there.st_uid, there.st_gid)
        elif path.endswith("/"):
            raise Refused("invalid_argument", f"cannot write {path!r}: it names a directory", field="path")
        make_folders(os.path.dirname(target), owner)
        part = os.path.join(os.path.dirname(target), f".torpor-{burst.id}.part")
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with translated("write", path):
            size = _fill(fd, burst)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(fd, *owner)
            os.fchmod(fd, mode)
            os.replace(part, target)
    except (Refused, OSError):
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise
    finally:
        os.close(fd)
    return size


def _fill(fd: int, burst: Burst) -> int:
    size = 0
    for piece in burst.body:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(fd, rest) :]
        size += len(piece)
    return size
