"""Sessions that have an instance on this node now."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from torpor.domain.activity import Activity
from torpor.domain.ids import InstanceId, SessionId, TenantId
from torpor.domain.session import Session
from torpor.ports.engine import Engine
from torpor.ports.guest import Guest
from torpor.services.requests import Resumption


@dataclass(slots=True)
class Live:
    """A placed session: its instance, and the guest in it. ``generation`` is the one it was placed under.

    ``distrusts``: some of what is stored of its newest snapshot could not be read for it.
    """

    instance: InstanceId
    engine: Engine
    guest: Guest
    generation: int
    distrusts: bool = False


@dataclass(frozen=True, slots=True)
class Capturing:
    """A pause or snapshot under way, to the very end: also while a captured instance is let go on.

    ``give_up`` ends it early, in place. ``ended`` is set once nothing of it is left to do.
    """

    give_up: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Runtime:
    """What this process holds of one session besides its record.

    ``placing``: held while the session is placed, so that concurrent wakes share one resume. ``untold``: how it came
    back, if no burst's result has said so yet. ``owner`` and ``idle_s``: the record's, for who watches its idle window.
    """

    live: Live | None = None
    owner: TenantId | None = None
    idle_s: float | None = None
    activity: Activity = field(default_factory=Activity)
    untold: Resumption | None = None
    placing: asyncio.Lock = field(default_factory=asyncio.Lock)
    capturing: Capturing | None = None

    def attach(self, live: Live, session: Session, *, now_s: float) -> None:
        """The session has this instance from now on; ``now_s``: monotonic."""
        self.live = live
        self.owner = session.tenant
        self.idle_s = session.policy.idle_s
        self.activity.restart(now_s)


class Runtimes:
    """One ``Runtime`` per session that this process has touched and that is not deleted."""

    def __init__(self) -> None:
        self._of: dict[SessionId, Runtime] = {}

    def of(self, session: SessionId) -> Runtime:
        """The session's runtime, made on first use."""
        return self._of.setdefault(session, Runtime())

    def forget(self, session: SessionId) -> None:
        """Drop it once the session is deleted."""
        self._of.pop(session, None)

    def instances(self) -> frozenset[InstanceId]:
        """All instances that sessions hold."""
        return frozenset(runtime.live.instance for runtime in self._of.values() if runtime.live is not None)

    def watched(self) -> tuple[tuple[SessionId, Runtime], ...]:
        """Sessions with an instance that is not being captured."""
        held = self._of.items()
        return tuple((session, found) for session, found in held if found.live is not None and not found.capturing)

    def all_live(self) -> tuple[Live, ...]:
        """Every placed session's instance and guest."""
        return tuple(runtime.live for runtime in self._of.values() if runtime.live is not None)
