"""The agent's side of a hold: ask a worker to park, see that it has, seed it, let it go. Messages: hold.py."""

from __future__ import annotations

import os
import select
import threading
import time

from torpor_guest.hold import PARK, REFUSED, RESEED, SEED_BYTES, TOKEN_BYTES, seed_message


class Parking:
    """Three pipes to one worker. Calls come from one thread, but for ``close``."""

    def __init__(self) -> None:
        self._ask, self._hold, self._answer = os.pipe(), os.pipe(), os.pipe()
        for fd in (*self._ask, self._answer[0]):
            os.set_blocking(fd, False)
        self._token = b""
        self.refused = False
        self._closed = False
        self._lock = threading.Lock()  # held while a descriptor is in use: a closed number is soon somebody else's

    @property
    def child_fds(self) -> tuple[int, int, int]:
        """What the worker is given. The agent keeps them too, so that it can take back what was not read."""
        return self._ask[0], self._hold[0], self._answer[1]

    def close(self) -> None:
        """The worker has ended."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for fd in (*self._ask, *self._hold, *self._answer):
                    os.close(fd)

    def ask(self) -> None:
        """Leave the request to park; the worker's signal has to follow."""
        with self._lock:
            if not self._closed:
                self._drain()
                self.refused = False
                self._token = os.urandom(TOKEN_BYTES)
                os.write(self._ask[1], seed_message(PARK, self._token, bytes(SEED_BYTES), reseed=False))

    def answered(self, deadline_s: float) -> bool:
        """Whether the last request or seed is acknowledged by ``deadline_s`` (monotonic)."""
        with self._lock:
            while not self._closed:
                poller = select.poll()
                poller.register(self._answer[0], select.POLLIN)
                left_ms = max(0.0, (deadline_s - time.monotonic()) * 1000)
                if not poller.poll(left_ms):
                    return False
                answer = os.read(self._answer[0], TOKEN_BYTES)
                self.refused = answer == REFUSED
                if answer == self._token or self.refused:
                    return not self.refused
            return False

    def take_back(self) -> bool:
        """Withdraw a request; the worker must be stopped. True if it will never park for it."""
        with self._lock:
            try:
                return self._closed or self.refused or bool(os.read(self._ask[0], SEED_BYTES))
            except BlockingIOError:
                return False

    def seed(self, randomness: bytes, *, reseed: bool) -> None:
        """Give a parked worker its seed; ``answered`` tells when it has taken it."""
        self._token = os.urandom(TOKEN_BYTES)
        self._write(self._hold[1], seed_message(PARK, self._token, randomness, reseed=reseed))

    def reseed_later(self, randomness: bytes) -> None:
        """Leave a seed for a worker that did not park: it takes it before its next byte code in the main thread."""
        self._write(self._ask[1], seed_message(RESEED, os.urandom(TOKEN_BYTES), randomness, reseed=True))

    def go(self) -> None:
        """Let a seeded worker go on."""
        self._write(self._hold[1], b"G")

    def _write(self, fd: int, message: bytes) -> None:
        with self._lock:
            if not self._closed:
                os.write(fd, message)

    def _drain(self) -> None:
        """Forget an unread request and late answers of earlier rounds."""
        for fd in (self._ask[0], self._answer[0]):
            try:
                while os.read(fd, SEED_BYTES):
                    pass
            except BlockingIOError:
                continue
