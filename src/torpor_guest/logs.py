"""The in-guest log: what the agent did and what started processes wrote. In memory, hence kept across pauses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from torpor_guest.bursts import Burst
from torpor_guest.journal import Journal, Piece
from torpor_guest.settings import Refused
from torpor_wire import DataChannel, flag, integer, optional_text

AGENT = "agent"


class Log:
    """The agent's own journal, and the condition that all journals share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.journal = Journal(self.changed)

    def note(self, text: str) -> None:
        """One line."""
        self.journal.put(DataChannel.STDERR, text.encode("utf-8", "replace") + b"\n")


class Reader:
    """The operation ``logs``: entries of all sources in the order in which they came, then as they come."""

    def __init__(self, burst: Burst, log: Log, kept: Callable[[], Mapping[str, Journal]]) -> None:
        self._burst = burst
        self._log = log
        self._kept = kept
        self._source = optional_text(burst.fields, "source")
        self._reached: dict[str, int] = {}
        if self._source is not None:
            self._reached[self._source] = integer(burst.fields, "sequence")
            if self._source not in self._journals():
                raise Refused("not_found", f"cannot read the log of {self._source!r}: no such source", field="source")

    def run(self) -> None:
        """Write entries to the burst's stream. Raises: Refused (not_found), BadMessage."""
        stream = self._burst.stream
        stream.on_gone(self._log.journal.wake)
        while not stream.gone:
            entries = self._entries()
            for source, piece in entries:
                self._send(source, piece)
            if entries:
                continue
            if not flag(self._burst.fields, "follow"):
                return
            with self._log.changed:
                self._log.changed.wait_for(lambda: stream.gone or self._is_news())

    def _journals(self) -> dict[str, Journal]:
        journals = {AGENT: self._log.journal, **self._kept()}
        return {name: journal for name, journal in journals.items() if self._source in {None, name}}

    def _is_news(self) -> bool:
        return any(journal.sequence > self._reached.get(name, 0) for name, journal in self._journals().items())

    def _entries(self) -> list[tuple[str, Piece]]:
        """The next ones. A source that has more to give than was taken holds back what came after it elsewhere."""
        entries, horizon_s = [], float("inf")
        for name, journal in self._journals().items():
            pieces = journal.since(self._reached.get(name, 0))
            entries += [(name, piece) for piece in pieces]
            if pieces and pieces[-1].end < journal.sequence:
                horizon_s = min(horizon_s, pieces[-1].at_s)
        return sorted((pair for pair in entries if pair[1].at_s <= horizon_s), key=lambda pair: pair[1].at_s)

    def _send(self, source: str, piece: Piece) -> None:
        lost_bytes = piece.sequence - self._reached.get(source, 0)
        head = {"source": source, "at_s": piece.at_s, "sequence": piece.sequence, "lost_bytes": lost_bytes}
        self._burst.stream.event(head)
        self._burst.stream.put(piece.channel, piece.data)
        self._reached[source] = piece.end
