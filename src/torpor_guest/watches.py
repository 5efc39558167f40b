"""Watching files: inotify through the C library, bounded, with the number of events that were dropped."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from torpor_guest.bursts import Burst
from torpor_guest.files import absolute, translated
from torpor_guest.settings import Refused
from torpor_wire import flag

WAITING_MAX = 4096
EVENT = struct.Struct("iIII")
ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, OVERFLOW, IGNORED, IS_DIR, ONLYDIR = 0x400, 0x800, 0x4000, 0x8000, 0x40000000, 0x1000000
CHANGES = {
    CREATE: "created",
    CLOSE_WRITE: "written",
    DELETE: "removed",
    MOVED_FROM: "moved_from",
    MOVED_TO: "moved_to",
    ATTRIB: "attributes",
}
MASK = ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF | ONLYDIR


def watch(burst: Burst) -> dict[str, Any]:
    """The operation ``watch``; ends with the directory. Raises: Refused, BadMessage."""
    path = absolute(burst, "watch").rstrip("/") or "/"
    with translated("watch", path):
        if not os.path.isdir(path):
            os.stat(path)
            raise Refused("invalid_argument", f"cannot watch {path!r}: it is no directory", field="path")
        watching = Watching(path, recursive=flag(burst.fields, "recursive"))
    queue = Waiting()
    wake_read, wake_write = os.pipe()
    gone = threading.Event()
    burst.stream.on_gone(gone.set)
    burst.stream.on_gone(lambda: os.write(wake_write, b"x"))
    sender = threading.Thread(target=_send, args=(burst, queue), name=f"watch-{burst.id}", daemon=True)
    try:
        burst.stream.event({"state": "watching"})
        sender.start()
        while not gone.is_set() and watching.is_alive:
            poller = select.poll()
            poller.register(watching.fd, select.POLLIN)
            poller.register(wake_read, select.POLLIN)
            if any(fd == watching.fd for fd, _ in poller.poll()):
                for change, changed in watching.read():
                    queue.put(change, changed)
    finally:
        queue.end()
        watching.close()
        burst.stream.clear_on_gone()
        os.close(wake_read)
        os.close(wake_write)
    sender.join()
    return {}


class Watching:
    """One inotify instance. ``recursive``: directories that come later are watched from then on."""

    def __init__(self, path: str, *, recursive: bool) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "no inotify instance is left")
        self._recursive = recursive
        self._paths: dict[int, str] = {}
        self._root = self._add(path)
        self.is_alive = True
        if recursive:
            self._add_below(path)

    def close(self) -> None:
        """End all watches."""
        os.close(self.fd)

    def read(self) -> Iterator[tuple[str | None, str]]:
        """Changes with their paths; None where the kernel has dropped an unknown number."""
        try:
            data = os.read(self.fd, 256 * 1024)
        except BlockingIOError:
            return
        place = 0
        while place < len(data):
            watch_id, mask, _, length = EVENT.unpack_from(data, place)
            name = os.fsdecode(data[place + EVENT.size : place + EVENT.size + length].rstrip(b"\0"))
            place += EVENT.size + length
            yield from self._event(watch_id, mask, name)

    def _event(self, watch_id: int, mask: int, name: str) -> Iterator[tuple[str | None, str]]:
        if mask & OVERFLOW:
            yield None, ""
            return
        folder = self._paths.get(watch_id)
        if folder is None:
            return
        if mask & IGNORED:
            del self._paths[watch_id]
        if mask & (IGNORED | DELETE_SELF | MOVE_SELF):
            self.is_alive = self.is_alive and watch_id != self._root
            return
        path = os.path.join(folder, name)
        for bit, change in CHANGES.items():
            if mask & bit and name:
                yield change, path
        if self._recursive and mask & IS_DIR and mask & (CREATE | MOVED_TO):
            for found in self._add_tree(path):
                yield "created", found

    def _add(self, path: str) -> int:
        watch_id: int = self._libc.inotify_add_watch(self.fd, os.fsencode(path), MASK)
        if watch_id < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._paths[watch_id] = path
        return watch_id

    def _add_below(self, path: str) -> None:
        for folder, names, _ in os.walk(path):
            for name in names:
                self._add_late(os.path.join(folder, name))

    def _add_tree(self, path: str) -> Iterator[str]:
        """Watch a new directory; what came into it before that is told as well."""
        self._add_late(path)
        for folder, names, files in os.walk(path):
            for name in names:
                self._add_late(os.path.join(folder, name))
            for name in (*names, *files):
                yield os.path.join(folder, name)

    def _add_late(self, path: str) -> None:
        try:
            self._add(path)
        except OSError:
            return  # it has gone again, or is a link


class Waiting:
    """Events on their way out, at most WAITING_MAX; further ones are counted."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[dict[str, Any]] = deque()
        self._dropped_count = 0
        self._ended = False

    def put(self, change: str | None, path: str) -> None:
        """Add one, or count it."""
        with self._changed:
            if change is None or len(self._events) >= WAITING_MAX:
                self._dropped_count += 1
                return
            self._events.append({"change": change, "path": path, "dropped_count": self._dropped_count})
            self._dropped_count = 0
            self._changed.notify_all()

    def end(self) -> None:
        """No more will come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def take(self) -> dict[str, Any] | None:
        """The next one, None at the end. Waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._ended)
            return self._events.popleft() if self._events else None


def _send(burst: Burst, queue: Waiting) -> None:
    while not burst.stream.gone and (event := queue.take()) is not None:
        burst.stream.event(event)
