"""Decide and store: the only way a session's record changes."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from torpor.domain.errors import Conflict, StaleRevision, Unavailable
from torpor.domain.ids import SessionId, TenantId
from torpor.domain.lifecycle import Accepted, Denied, Event, Ignored, decide
from torpor.domain.session import Session, Status
from torpor.ports.catalog import Catalog
from torpor.ports.clock import Clock
from torpor.services.patience import patiently

RACES_MAX = 20


@dataclass(frozen=True, slots=True)
class Decided:
    """The stored record after an event, and whether the event changed it."""

    session: Session
    decision: Accepted | Ignored


class Records:
    """Applies events by compare-and-swap, before any effect runs.

    One event at a time for each session, so that a write whose answer was lost can be told from another's.
    The one writer of records while its server owns the home: what it stored last is what the catalog holds.
    """

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._turns: WeakValueDictionary[SessionId, asyncio.Lock] = WeakValueDictionary()
        self._last: dict[SessionId, Session] = {}

    def last(self, tenant: TenantId, session: SessionId) -> Session | None:
        """The record as it was last stored here; None if it was not yet, is deleted, or is being written."""
        record = self._last.get(session)
        return record if record is not None and record.tenant == tenant else None

    async def apply(
        self, tenant: TenantId, session: SessionId, event: Event, *, seen: Session | None = None
    ) -> Decided:
        """Store what ``event`` does; a catalog that does not answer is waited for.

        ``seen``: the record as the caller last saw it. If it still stands, a read is saved; if not, the swap says so.
        Raises: Conflict with the lifecycle's reason; NotFound; Unavailable: it may or may not be stored.
        """
        turn = self._turns.setdefault(session, asyncio.Lock())
        async with turn:
            unanswered: list[Accepted] = []
            if seen is not None and (decided := await self._foreseen(seen, event, unanswered)) is not None:
                return decided
            return await patiently(
                lambda: self._attempt(tenant, session, event, unanswered),
                Unavailable,
                deed=f"store {type(event).__name__} of {session}",
            )

    async def _foreseen(self, seen: Session, event: Event, unanswered: list[Accepted]) -> Decided | None:
        """Decided on ``seen``; None if that says nothing: only a swap that succeeds shows that it still stands."""
        decision = decide(seen, event, now_s=self._clock.wall_s())
        if not isinstance(decision, Accepted):
            return None
        try:
            return await self._stored(decision, unanswered)
        except (StaleRevision, Unavailable):
            return None

    async def _attempt(self, tenant: TenantId, session: SessionId, event: Event, unanswered: list[Accepted]) -> Decided:
        for _ in range(RACES_MAX):
            record = await self._catalog.get(tenant, session)
            for written in unanswered:
                if record == replace(written.session, revision=written.session.revision + 1):
                    return Decided(record, written)
            decision = decide(record, event, now_s=self._clock.wall_s())
            match decision:
                case Ignored():
                    return Decided(record, decision)
                case Denied(reason):
                    raise conflict(record, reason)
                case Accepted():
                    with contextlib.suppress(StaleRevision):
                        return await self._stored(decision, unanswered)
        raise StaleRevision(f"cannot change session {session}: lost {RACES_MAX} races for its record; repeat the call")

    async def _stored(self, decision: Accepted, unanswered: list[Accepted]) -> Decided:
        """Swap the record; what may have been stored without an answer is noted. Raises: StaleRevision, Unavailable."""
        self._last.pop(decision.session.id, None)
        try:
            stored = await self._catalog.replace(decision.session)
        except Unavailable:
            unanswered.append(decision)
            raise
        if stored.status is not Status.DELETED:
            self._last[stored.id] = stored
        return Decided(stored, decision)


def conflict(session: Session, reason: str) -> Conflict:
    """The typed refusal: what the session is, why not, and what to do."""
    remedy = {
        "lost": "its instance died; resume with allow_older to go back to its last snapshot, or delete it",
        "deleting": "it is being deleted; create a new one",
        "deleted": "it was deleted; create a new one",
    }.get(session.status.public, "wait until it is running or paused, then repeat the call")
    return Conflict(
        f"session {session.name or session.id} is {session.status.public}: {reason.replace('_', ' ')}; {remedy}",
        reason=reason,
        status=session.status.public,
        session=session.id,
    )
