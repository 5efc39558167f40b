"""The snapshot store's model: commits are atomic, sequences grow, a shredded session keeps nothing."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.domain.ids import SessionId


@dataclass(frozen=True, slots=True)
class Kept:
    """A committed snapshot: the order that made it, and the counter that stands for the whole memory."""

    sequence: int
    generation: int
    operation: int
    counter: int


class Shelf:
    """Snapshots by session."""

    def __init__(self) -> None:
        self.kept: dict[SessionId, dict[int, Kept]] = {}
        self._sequences: dict[SessionId, int] = {}
        self._shredded: set[SessionId] = set()

    def next_sequence(self, session: SessionId) -> int:
        """What the next commit will be numbered."""
        return self._sequences.get(session, 0) + 1

    def commit(self, session: SessionId, generation: int, operation: int, counter: int) -> Kept | None:
        """Move the pointer; None once the key is shredded."""
        if session in self._shredded:
            return None
        kept = Kept(self.next_sequence(session), generation, operation, counter)
        self._sequences[session] = kept.sequence
        self.kept.setdefault(session, {})[kept.sequence] = kept
        return kept

    def counter_at(self, session: SessionId, sequence: int | None) -> int | None:
        """What a restore shows; ``sequence`` None is the template. None if it cannot be read."""
        if session in self._shredded:
            return None
        if sequence is None:
            return 0
        kept = self.kept.get(session, {}).get(sequence)
        return None if kept is None else kept.counter

    def commit_of(self, session: SessionId, generation: int, operation: int) -> Kept | None:
        """The snapshot that one order made, if it came to that."""
        for kept in self.kept.get(session, {}).values():
            if (kept.generation, kept.operation) == (generation, operation):
                return kept
        return None

    def sweep(self, session: SessionId, *, before_sequence: int) -> None:
        """Remove what is older than the record's snapshot."""
        held = self.kept.get(session, {})
        for sequence in [sequence for sequence in held if sequence < before_sequence]:
            del held[sequence]

    def erase(self, session: SessionId) -> None:
        """Shred the key, remove the objects. Idempotent."""
        self._shredded.add(session)
        self.kept.pop(session, None)
