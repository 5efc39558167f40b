"""How a session comes back: the highest rung that holds, each step down said in the result.

warm → memory (one retry in a fresh sandbox, in ``Placement``) → the memory of the snapshot before, only where the
caller allows it → filesystem. An error of the moment, such as a full disk or a store that does not answer, is no reason
to step down: it is raised, and the snapshot waits for the next try.
A session never passes for a state that it is not in: ``Outcome`` says which rung served it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import structlog

from torpor.domain.errors import Corrupt, DeadlineExceeded, EngineError, GuestError, NotFound, TorporError, Unsupported
from torpor.domain.session import Persistence, Session, Status
from torpor.ports.clock import Clock
from torpor.ports.guest import Notice
from torpor.ports.objects import traffic_noted
from torpor.services.blueprint import Blueprint
from torpor.services.clones import Clones
from torpor.services.live import Live
from torpor.services.placement import Placed, Placement, discard
from torpor.services.requests import Outcome, Tier
from torpor.services.templates import Templates
from torpor.services.warm import Warm
from torpor.store.pipeline import task_group
from torpor.store.snapshots import SnapshotRef, SnapshotStore

log = structlog.get_logger()

STORED_IS_BROKEN = (Corrupt, NotFound)
STEPS_DOWN = (*STORED_IS_BROKEN, Unsupported, EngineError, GuestError, DeadlineExceeded)


class Rung(StrEnum):
    """Where a session may come back from, best first."""

    WARM = "warm"
    MEMORY = "memory"
    OLDER = "older"
    FILESYSTEM = "filesystem"
    GOLDEN = "golden"


@dataclass(frozen=True, slots=True)
class Revived:
    """A placed session, and from where. ``fetched_bytes``: read from a shared store.

    ``stepped_down``: why each better rung did not hold, a sentence each. ``instant_s``: of an older snapshot, when it
    was taken. ``distrusts``: some of what is stored of the newest snapshot could not be read.
    """

    placed: Placed
    outcome: Outcome
    tier: Tier
    fetched_bytes: int = 0
    stepped_down: tuple[str, ...] = ()
    instant_s: float | None = None
    distrusts: bool = False


def rungs(session: Session, *, allow_older: bool = False) -> tuple[Rung, ...]:
    """The rungs that a placement of ``session`` may use, in order. Pure."""
    if session.snapshot is None:
        return (Rung.GOLDEN,)
    if session.persistence is Persistence.FILESYSTEM:
        return (Rung.FILESYSTEM,)
    older = (Rung.OLDER,) if allow_older else ()
    return (Rung.WARM, Rung.MEMORY, *older, Rung.FILESYSTEM)


def was_lost(session: Session) -> bool:
    """True if the order brings a lost session back: its newest state died, and its snapshot is an earlier one. Pure."""
    return session.status is Status.RESUMING and session.paused_at_s is None and session.snapshot is not None


class Revival:
    """Places sessions by the best rung there is."""

    def __init__(
        self,
        placement: Placement,
        clones: Clones,
        warm: Warm,
        store: SnapshotStore,
        templates: Templates,
        clock: Clock,
    ) -> None:
        self._placement = placement
        self._clones = clones
        self._warm = warm
        self._store = store
        self._templates = templates
        self._clock = clock

    async def revive(
        self,
        session: Session,
        notice_at: Callable[[float], Notice],
        *,
        source: SnapshotRef | None = None,
        allow_older: bool = False,
    ) -> Revived:
        """Place ``session``, whose order is stored. ``source``: a snapshot of equal content to read instead of its own.

        ``allow_older``: the snapshot before its newest may take the place of a memory that does not come back.
        Raises: the best rung's error, if no rung holds; nothing of the attempts is left, every snapshot is untouched.
        """
        failed: list[TorporError] = []
        for rung in rungs(session, allow_older=allow_older):
            try:
                revived = await self._by(rung, session, notice_at, source)
            except STEPS_DOWN as error:
                log.warning("step down", session=session.id, rung=rung, code=error.code, error=error.message)
                failed.append(error)
                continue
            if revived is not None:
                distrusts = any(isinstance(error, STORED_IS_BROKEN) for error in failed)
                return replace(revived, stepped_down=tuple(error.message for error in failed), distrusts=distrusts)
        raise failed[0]

    async def _by(
        self,
        rung: Rung,
        session: Session,
        notice_at: Callable[[float], Notice],
        source: SnapshotRef | None,
    ) -> Revived | None:
        """None if there is nothing on this rung."""
        if rung is Rung.WARM:
            return await self._thawed(session, notice_at)
        blueprint = await self._templates.blueprint_of(session)
        if rung is Rung.OLDER:
            return await self._older(session, blueprint, notice_at)
        way = self._placement.boot if rung is Rung.FILESYSTEM else self._placement.place
        if rung is Rung.GOLDEN:
            ref, way = blueprint.golden, self._clones.place
            outcome = Outcome.CREATED if session.status is Status.CREATING else Outcome.STATE_LOST
        else:
            assert session.snapshot is not None
            ref = source or SnapshotRef.from_json(session.snapshot.ref)
            whole = Outcome.RESTORED_OLDER if was_lost(session) else Outcome.RESUMED
            outcome = Outcome.RESTORED_FILESYSTEM if rung is Rung.FILESYSTEM else whole
        with traffic_noted() as traffic:
            placed = await way(session.tenant, ref, blueprint.shape, notice_at)
        return Revived(placed, outcome, Tier.COLD if traffic.is_cold else Tier.LOCAL, traffic.fetched_bytes)

    async def _older(
        self, session: Session, blueprint: Blueprint, notice_at: Callable[[float], Notice]
    ) -> Revived | None:
        """The memory of the snapshot before the newest; the guest is told how long ago that one was taken."""
        assert session.snapshot is not None
        newest = session.snapshot.sequence
        kept = await self._store.history(session.tenant, session.id)
        ref = next((each for each in kept if each.sequence < newest), None)
        if ref is None:
            return None
        instant_s = float((await self._store.open(ref)).meta["instant_s"])

        def older_notice_at(wall_s: float) -> Notice:
            return replace(notice_at(wall_s), paused_at_s=instant_s, gap_s=max(0.0, wall_s - instant_s))

        with traffic_noted() as traffic:
            placed = await self._placement.place(session.tenant, ref, blueprint.shape, older_notice_at)
        tier = Tier.COLD if traffic.is_cold else Tier.LOCAL
        return Revived(placed, Outcome.RESTORED_OLDER, tier, traffic.fetched_bytes, instant_s=instant_s)

    async def _thawed(self, session: Session, notice_at: Callable[[float], Notice]) -> Revived | None:
        """The instance that was kept in memory; only now, after the new generation was stored, does it run again."""
        assert session.snapshot is not None
        began_s = self._clock.monotonic_s()
        kept = await self._warm.take(session.id, sequence=session.snapshot.sequence)
        if kept is None:
            return None
        notice = notice_at(self._clock.wall_s())
        try:
            # The guest finds its notice when it wakes, and carries it out while the engine still notes that it runs.
            async with task_group() as group:
                group.create_task(kept.engine.thaw(kept.instance))
                ready = await kept.guest.proceed(notice)
        except BaseException:
            await discard(kept)
            raise
        live = Live(kept.instance, kept.engine, kept.guest, notice.generation)
        took_ms = round((self._clock.monotonic_s() - began_s) * 1000, 3)
        return Revived(Placed(live, ready, 1, {"ready": took_ms, "total": took_ms}), Outcome.RESUMED, Tier.WARM)
