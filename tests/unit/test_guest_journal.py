"""What a reader of a process's output is told, while the process writes on and on."""

import threading
from types import SimpleNamespace

from torpor_guest.journal import KEPT_BYTES_MAX, Journal
from torpor_guest.kept import KeptProcesses
from torpor_wire import DataChannel

BLOCK_BYTES = 100_000


class WritingStream:
    """Takes what is sent; the process writes two more blocks with each of the first few events, as a fast one may."""

    gone = False

    def __init__(self, journal: Journal, more_count: int) -> None:
        self.said: list[tuple[int, bytes]] = []
        self._journal = journal
        self._more_count = more_count
        self._sequence = 0

    def on_gone(self, act) -> None:
        pass

    def event(self, fields) -> None:
        self._sequence = fields["sequence"]
        for _ in range(self._more_count):
            write_block(self._journal)
        self._more_count = 0
        self._journal.end(0)

    def put(self, _channel, data: bytes) -> None:
        self.said.append((self._sequence, data))
        self._sequence += len(data)


def write_block(journal: Journal) -> None:
    """Bytes that say where they are: eight digits each, of their own number."""
    first = journal.sequence
    journal.put(DataChannel.STDOUT, b"".join(b"%08d" % at for at in range(first, first + BLOCK_BYTES, 8)))


def test_what_is_dropped_while_a_reader_is_told_where_it_begins_is_not_told_as_something_else():
    journal = Journal(threading.Condition())
    while journal.oldest_sequence == 0:
        write_block(journal)
    stream = WritingStream(journal, more_count=2 + KEPT_BYTES_MAX // BLOCK_BYTES)
    kept = KeptProcesses.__new__(KeptProcesses)
    kept._of = lambda _burst: SimpleNamespace(journal=journal)
    answer = kept.attach(SimpleNamespace(fields={"sequence": 0}, stream=stream))
    assert answer["sequence"] == journal.sequence
    assert stream.said
    for sequence, data in stream.said:
        assert data[:8] == b"%08d" % sequence
