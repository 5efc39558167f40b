"""Decide and store: the only way a session's record changes."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.domain.errors import Conflict, StaleRevision
from torpor.domain.ids import SessionId, TenantId
from torpor.domain.lifecycle import Accepted, Denied, Event, Ignored, decide
from torpor.domain.session import Session
from torpor.ports.catalog import Catalog
from torpor.ports.clock import Clock

RACES_MAX = 20


@dataclass(frozen=True, slots=True)
class Decided:
    """The stored record after an event, and whether the event changed it."""

    session: Session
    decision: Accepted | Ignored


class Records:
    """Applies events by compare-and-swap, before any effect runs."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock

    async def apply(self, tenant: TenantId, session: SessionId, event: Event) -> Decided:
        """Store what ``event`` does. Raises: Conflict with the lifecycle's reason; NotFound."""
        for _ in range(RACES_MAX):
            record = await self._catalog.get(tenant, session)
            decision = decide(record, event, now_s=self._clock.wall_s())
            match decision:
                case Ignored():
                    return Decided(record, decision)
                case Denied(reason):
                    raise conflict(record, reason)
                case Accepted():
                    try:
                        return Decided(await self._catalog.replace(decision.session), decision)
                    except StaleRevision:
                        continue
        raise StaleRevision(f"cannot change session {session}: lost {RACES_MAX} races for its record; repeat the call")


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
