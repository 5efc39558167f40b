"""Output that is kept, bounded and numbered by its bytes, so that any number of readers can come, go and come back.

Writers never wait. A reader that was away or is too slow learns which bytes are kept no more.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from torpor_guest.outbox import Stream
from torpor_wire import DataChannel

KEPT_BYTES_MAX = 1024 * 1024
MERGED_BYTES_MAX = 4096  # small pieces are joined: a ring of single bytes would cost a hundred times their number
TAKEN_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Some output. ``sequence``: number of its first byte. ``at_s``: wall clock when it came."""

    sequence: int
    at_s: float
    channel: DataChannel
    data: bytes

    @property
    def end(self) -> int:
        """Number of the byte after it."""
        return self.sequence + len(self.data)

    def since(self, sequence: int) -> Piece:
        """What of it is not before ``sequence``."""
        skipped = max(0, sequence - self.sequence)
        return Piece(self.sequence + skipped, self.at_s, self.channel, self.data[skipped:]) if skipped else self


class Journal:
    """One source's output. ``changed``: notified at every change; journals that are read together share it."""

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.exit_code: int | None = None
        self.sequence = 0
        self._pieces: deque[Piece] = deque()
        self._kept_bytes = 0

    @property
    def oldest_sequence(self) -> int:
        """Number of the oldest byte that is kept, or of the next one."""
        with self.changed:
            return self._pieces[0].sequence if self._pieces else self.sequence

    def put(self, channel: DataChannel, data: bytes) -> None:
        """Keep it, dropping the oldest."""
        at_s = time.time()  # noqa: TID251 - the guest's own wall clock stands in its log
        with self.changed:
            last = self._pieces[-1] if self._pieces else None
            merges = last is not None and last.channel is channel and len(last.data) + len(data) <= MERGED_BYTES_MAX
            if last is not None and merges and at_s - last.at_s < 1.0:
                self._pieces[-1] = Piece(last.sequence, last.at_s, channel, last.data + data)
            else:
                self._pieces.append(Piece(self.sequence, at_s, channel, data))
            self.sequence += len(data)
            self._kept_bytes += len(data)
            while self._kept_bytes > KEPT_BYTES_MAX and len(self._pieces) > 1:
                self._kept_bytes -= len(self._pieces.popleft().data)
            self.changed.notify_all()

    def end(self, exit_code: int) -> None:
        """Its process has ended; descendants may still write."""
        with self.changed:
            self.exit_code = exit_code
            self.changed.notify_all()

    def since(self, sequence: int) -> list[Piece]:
        """What is kept from ``sequence`` on, at most TAKEN_BYTES_MAX and one piece more."""
        with self.changed:
            found: deque[Piece] = deque()
            for piece in reversed(self._pieces):
                if piece.end <= sequence:
                    break
                found.appendleft(piece)
        taken, count = [], 0
        while found and count < TAKEN_BYTES_MAX:
            taken.append(found.popleft().since(sequence))
            count += len(taken[-1].data)
        return taken

    def follow(self, stream: Stream, sequence: int) -> Iterator[list[Piece]]:
        """What is kept from ``sequence`` on, then as it comes, until its process has ended or nobody reads any more."""
        stream.on_gone(self.wake)
        while not stream.gone:
            over = self.exit_code is not None
            if pieces := self.since(sequence):
                sequence = pieces[-1].end
                yield pieces
                continue
            if over:
                return
            with self.changed:
                while self.sequence <= sequence and self.exit_code is None and not stream.gone:
                    self.changed.wait()

    def wake(self) -> None:
        """Let readers look whether they are still wanted."""
        with self.changed:
            self.changed.notify_all()
