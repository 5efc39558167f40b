"""Threads that are kept for the next task: in gVisor starting one takes as long as a whole small burst.

Idle ones wait in a queue of their own, so a snapshot may hold them: nothing is registered anywhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

KEPT_MAX = 8  # idle ones; a burst takes one, a process three

Task = Callable[[], object]


class Crew:
    """Runs tasks at once, each in a thread of its own. A task must not raise."""

    def __init__(self, kept_count: int = KEPT_MAX) -> None:
        self._kept_count = kept_count
        self._lock = threading.Lock()
        self._idle: deque[SimpleQueue[Task]] = deque()

    def run(self, task: Task) -> None:
        """Run ``task`` in a thread that nobody else uses meanwhile."""
        with self._lock:
            waiting = self._idle.pop() if self._idle else None  # the last to rest: its memory is still warm
        if waiting is not None:
            waiting.put(task)
        else:
            threading.Thread(target=self._serve, args=(task,), name="crew", daemon=True).start()

    def _serve(self, task: Task) -> None:
        tasks: SimpleQueue[Task] = SimpleQueue()
        while True:
            task()
            del task  # what it refers to must not live until the next one
            with self._lock:
                if len(self._idle) >= self._kept_count:
                    return
                self._idle.append(tasks)
            task = tasks.get()


CREW = Crew()
