"""What was answered to a request that carried an idempotency key, so that its repetition does nothing again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torpor.domain.ids import TenantId

KEPT_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Keyed:
    """A request: whose, under which key, and the digest of what it asks for."""

    tenant: TenantId
    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer as it was given."""

    status: int
    body: bytes


class AnswerBook(Protocol):
    """Answers by tenant and key, kept for ``KEPT_S``, over restarts. Errors of every method: Unavailable, StorageFull.

    A request that a dead server had begun is neither done nor undone for the book: its repetition is a Conflict.
    """

    async def begin(self, request: Keyed, *, now_s: float) -> StoredAnswer | None:
        """The answer given before; None if the request is new, and begun from here on.

        Raises: Conflict with the reason ``key_reused`` (for another request), ``in_progress`` or ``outcome_unknown``.
        """
        ...

    async def finish(self, request: Keyed, answer: StoredAnswer) -> None:
        """What later repetitions get."""
        ...

    async def forget(self, request: Keyed) -> None:
        """The request failed and did nothing: its repetition is a new one. Idempotent."""
        ...

    async def doubt(self, request: Keyed) -> None:
        """Nobody knows what the request did: its repetition is ``outcome_unknown``."""
        ...
