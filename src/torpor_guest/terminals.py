"""Pseudo-terminals: made here, opened by the process itself so that it controls its own."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torpor_guest.settings import Refused
from torpor_wire import integer

END_OF_FILE = b"\x04"
SIZE_MAX = 10_000
TERM = "xterm-256color"
# A session leader that opens a terminal controls it; no code of ours runs between fork and exec.
LAUNCHER = ("/bin/sh", "-c", 'exec 0<>"$0" 1>&0 2>&0 && exec "$@"')


@dataclass(frozen=True, slots=True)
class Size:
    """In characters."""

    columns: int
    rows: int


def size_from(fields: Mapping[str, Any]) -> Size:
    """Raises: Refused (invalid_argument), BadMessage."""
    size = Size(integer(fields, "columns"), integer(fields, "rows"))
    for name, count in (("columns", size.columns), ("rows", size.rows)):
        if not 1 <= count <= SIZE_MAX:
            raise Refused("invalid_argument", f"cannot use {count} {name}: give 1 to {SIZE_MAX}", field=name)
    return size


def set_size(fd: int, size: Size) -> None:
    """Of the terminal behind either end; its foreground gets SIGWINCH."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


def open_terminal(size: Size, owner: tuple[int, int] | None) -> tuple[int, str]:
    """The master's descriptor and the path of the other end. Raises: Refused (unsupported)."""
    try:
        master, slave = os.openpty()
    except OSError as error:
        raise Refused("unsupported", f"cannot make a terminal: {error}") from error
    try:
        set_size(master, size)
        path = os.ttyname(slave)
        if owner is not None:
            os.chown(path, *owner)
        return master, path
    finally:
        os.close(slave)
