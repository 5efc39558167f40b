"""The warm tier: instances that stay in memory, frozen, after their snapshot is durable.

A cache and nothing more: whatever is dropped here comes back from the store. It holds an instance only as that one
snapshot's equal, hands it over once, and gives it to nobody who asks for another snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from torpor.domain.errors import TorporError
from torpor.domain.ids import InstanceId, SessionId
from torpor.ports.engine import InstanceStatus
from torpor.services.doomed import Doomed, first_for
from torpor.services.live import Live

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Kept:
    """One frozen instance: its session's state at ``sequence``, captured under ``generation``."""

    session: SessionId
    live: Live
    generation: int
    sequence: int
    size_bytes: int
    entered: asyncio.Event = field(default_factory=asyncio.Event)


class Warm:
    """At most ``budget_bytes`` of frozen instances, at most one per session. Budget 0: nothing is ever kept.

    An instance is in one of three places: entering (being frozen), kept, or doomed (to be destroyed, and tried again
    until it is). All three count. A cancelled call loses track of none.
    """

    def __init__(self, *, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._entering: dict[SessionId, Kept] = {}
        self._kept: dict[SessionId, Kept] = {}  # the longest kept first
        self._doomed: Doomed[Kept] = Doomed("warm instance")

    @property
    def enabled(self) -> bool:
        """True if anything can be kept at all."""
        return self._budget_bytes > 0

    @property
    def bytes_held(self) -> int:
        """Memory of everything that is here, also of what could not be destroyed yet."""
        return sum(one.size_bytes for one in self._everything())

    def instances(self) -> frozenset[InstanceId]:
        """All that are here, for reconciliation."""
        return frozenset(one.live.instance for one in self._everything())

    def all_live(self) -> tuple[Live, ...]:
        """Their instances and guests."""
        return tuple(one.live for one in self._everything())

    async def keep(self, session_id: SessionId, live: Live, *, generation: int, sequence: int, size_bytes: int) -> bool:
        """Freeze a captured instance and hold it; the longest kept of others make room. Its snapshot must be durable.

        False: it does not fit or does not freeze, and it is still the caller's, to destroy.
        """
        await self.drop(session_id)  # an earlier state of the same session
        kept = Kept(session_id, live, generation, sequence, size_bytes)
        if not self.enabled or size_bytes > self._budget_bytes:
            return False
        if session_id in self._entering or session_id in self._kept:  # another of the same session came in meanwhile
            return False
        self._entering[session_id] = kept  # its bytes count from here on: two that enter cannot both take the last room
        try:
            if not await self._has_made_room():
                return False
            await live.engine.freeze(live.instance)
        except TorporError as error:
            log.warning("not kept warm", session=session_id, code=error.code, error=error.message)
            return False
        else:
            self._kept[session_id] = kept
            return True
        finally:
            del self._entering[session_id]
            kept.entered.set()

    async def take(self, session_id: SessionId, *, sequence: int) -> Live | None:
        """The frozen instance of this very snapshot, handed over once; None if there is none.

        Thaw it only after the new generation is stored. One of another snapshot, or one that died, is destroyed. One
        that was killed while frozen may look alive: if the thaw fails, destroy it and place the session from the store.
        """
        await self._wait_entered(session_id)
        kept = self._kept.get(session_id)
        if kept is None:
            return None
        if kept.sequence == sequence and await self._is_frozen(kept):
            if self._kept.get(session_id) is not kept:
                return None  # taken or dropped meanwhile
            del self._kept[session_id]
            return kept.live
        if self._kept.get(session_id) is kept:
            await self._doomed.destroy(self._doom((kept,)))
        return None

    async def drop(self, session_id: SessionId) -> None:
        """Destroy what is kept of a session: it is removed, shredded, or its memory must not be copied."""
        await self._wait_entered(session_id)
        doomed = [one for one in self._doomed if one.session == session_id]
        kept = self._kept.get(session_id)
        await self._doomed.destroy([*doomed, *self._doom(() if kept is None else (kept,))])

    async def drop_all(self) -> None:
        """Destroy everything."""
        for session_id in tuple(self._entering):
            await self._wait_entered(session_id)
        await self.shrink(0)

    async def shrink(self, to_bytes: int) -> int:
        """Destroy the longest kept until at most ``to_bytes`` are held, then what earlier could not be destroyed.

        Returns: bytes that were given back.
        """
        before_bytes = self.bytes_held
        stuck = tuple(self._doomed)
        await self._doomed.destroy(self._doom(first_for(before_bytes - to_bytes, self._kept.values())))
        if self.bytes_held > to_bytes:  # only now: each may take as long as patience lasts
            await self._doomed.destroy(stuck)
        return max(0, before_bytes - self.bytes_held)

    async def give_back(self, wanted_bytes: int) -> int:
        """Shrink by ``wanted_bytes`` or to nothing; the bytes given back. What admission asks for."""
        return await self.shrink(max(0, self.bytes_held - wanted_bytes))

    async def _has_made_room(self) -> bool:
        """Drop what has to go for those that enter; False, with nothing dropped, if that would not be enough."""
        if self._excess_bytes() > sum(one.size_bytes for one in self._kept.values()):
            await self._doomed.destroy(self._doomed)
        if self._excess_bytes() > sum(one.size_bytes for one in self._kept.values()):
            return False
        await self._doomed.destroy(self._doom(first_for(self._excess_bytes(), self._kept.values())))
        return self._excess_bytes() <= 0

    def _excess_bytes(self) -> int:
        return self.bytes_held - self._budget_bytes

    async def _is_frozen(self, kept: Kept) -> bool:
        try:
            return await kept.live.engine.inspect(kept.live.instance) is InstanceStatus.FROZEN
        except TorporError as error:
            log.warning("warm instance not inspected", session=kept.session, code=error.code, error=error.message)
            return False

    async def _wait_entered(self, session_id: SessionId) -> None:
        while (entering := self._entering.get(session_id)) is not None:
            await entering.entered.wait()

    def _doom(self, chosen: Iterable[Kept]) -> tuple[Kept, ...]:
        """Before the first await: nobody can take them any more, and they stay known until they are gone."""
        doomed = tuple(chosen)
        for one in doomed:
            del self._kept[one.session]
            self._doomed.add(one)
        return doomed

    def _everything(self) -> tuple[Kept, ...]:
        return (*self._entering.values(), *self._kept.values(), *self._doomed)
