"""One session's transitions, performed: the only writer of its record and the only holder of its instance.

Order of every step: decide and store (``Records``), then act, then report what happened by deciding again. A report
that is no longer current changes nothing, and what was done under it is undone here.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import structlog

from torpor.domain.errors import Conflict, TorporError, Unavailable
from torpor.domain.lifecycle import (
    Accepted,
    Create,
    Delete,
    Deleted,
    Effect,
    InstanceLost,
    OperationFailed,
    Report,
    Resume,
    SnapshotStored,
    Started,
    Wake,
)
from torpor.domain.session import Durability, Persistence, Session, Status
from torpor.ports.clock import Clock
from torpor.ports.crash_points import CrashPoint, reach
from torpor.ports.engine import InstanceStatus
from torpor.ports.entropy import Entropy
from torpor.ports.guest import Cause, Notice
from torpor.services.blueprint import Blueprint
from torpor.services.capture import Capture, CaptureOrder, GivenUpError
from torpor.services.live import Capturing, Live, Runtimes
from torpor.services.placement import discard
from torpor.services.records import Decided, Records, conflict
from torpor.services.requests import Resumption
from torpor.services.revival import Revival, Revived
from torpor.services.supervisor import Supervisor
from torpor.services.warm import Warm
from torpor.store.snapshots import SnapshotRef, SnapshotStore

log = structlog.get_logger()

Made = TypeVar("Made")

WAKE_ROUNDS_MAX = 8
GO_ON_ATTEMPTS_MAX = 5
GO_ON_PAUSE_S = 0.5


class Driver:
    """Performs the lifecycle's effects on this node. ``durability``: what a write to its store is worth."""

    def __init__(
        self,
        records: Records,
        runtimes: Runtimes,
        revival: Revival,
        warm: Warm,
        capture: Capture,
        storage: tuple[SnapshotStore, Durability],
        origin: tuple[Supervisor, Clock, Entropy],
    ) -> None:
        self._records = records
        self._runtimes = runtimes
        self._revival = revival
        self._warm = warm
        self._capture = capture
        self._store, self.durability = storage
        self._supervisor, self._clock, self._entropy = origin

    async def finish(self, work: Coroutine[Any, Any, Made], *, name: str) -> Made:
        """Carry ``work`` to its end although its caller is cancelled: half of it would be nobody's."""
        return await self._supervisor.finish(work, name=name)

    async def create(self, session: Session, *, source: SnapshotRef | None = None) -> tuple[Session, Resumption]:
        """Place a stored, new record for the first time. On failure nothing of the session is left.

        A fork's record holds its own snapshot already; ``source`` is what it was copied from, shared by all its forks.
        """
        cause = Cause.CREATED if session.snapshot is None else Cause.FORKED
        runtime = self._runtimes.of(session.id)
        async with runtime.placing:
            try:
                decided = await self._records.apply(session.tenant, session.id, Create())
                placed_session, _, resumption = await self._place(decided.session, cause, source=source)
            except TorporError:
                await self._erase_stored(session)
                raise
            return placed_session, resumption

    async def ensure_running(
        self, session: Session, *, resume: Resume | None = None
    ) -> tuple[Session, Live, Resumption | None]:
        """The session's live instance, woken if need be. Concurrent callers share one resume.

        ``resume``: an explicit request instead of a burst's. It goes on to its end although the caller is cancelled.
        Raises: Conflict; whatever a placement raises.
        """
        return await self.finish(self._ensure_running(session, resume), name=f"wake:{session.id}")

    async def _ensure_running(self, session: Session, resume: Resume | None) -> tuple[Session, Live, Resumption | None]:
        runtime = self._runtimes.of(session.id)
        async with runtime.placing:
            seen: Session | None = session
            for _ in range(WAKE_ROUNDS_MAX):
                decided = await self._records.apply(session.tenant, session.id, resume or Wake(), seen=seen)
                seen = None
                if _has(decided, Effect.RESTORE):
                    if runtime.capturing is not None and self._warm.enabled:  # its instance may just be being kept
                        await runtime.capturing.ended.wait()
                    allow_older = resume is not None and resume.allow_older
                    return await self._place(decided.session, Cause.RESUMED, allow_older=allow_older)
                if runtime.capturing is not None:
                    if _has(decided, Effect.THAW):
                        runtime.capturing.give_up.set()
                    await runtime.capturing.ended.wait()
                    continue
                if await self.end_left_capture(decided.session):
                    continue
                live = runtime.live
                if live is not None and _has(decided, Effect.THAW):  # its capture ended, and could not be recorded
                    await self.go_on(decided.session, live)
                    continue
                if live is not None and _is_placed(decided.session, live):  # and that could not be recorded
                    order = decided.session.operation
                    ready = Started(live.generation, order, live.instance, distrusts=live.distrusts)
                    await self._report(decided.session, ready)
                    continue
                if decided.session.status is Status.RUNNING and live is not None:
                    return decided.session, live, None
                await self.lose(decided.session, "this server holds no instance of it")
        raise Unavailable(
            f"cannot wake session {session.id}: its status kept changing; repeat the call", retry_after_s=1
        )

    async def _place(
        self,
        session: Session,
        cause: Cause,
        *,
        source: SnapshotRef | None = None,
        allow_older: bool = False,
    ) -> tuple[Session, Live, Resumption]:
        """Perform RESTORE for a stored order, and report."""
        reach(CrashPoint.RESUME_ORDERED)
        try:
            revived = await self._revival.revive(
                session,
                lambda wall_s: self._notice(session, cause, wall_s),
                source=source,
                allow_older=allow_older,
            )
        except BaseException as error:
            code = error.code if isinstance(error, TorporError) else TorporError.code
            await asyncio.shield(self._report(session, _failed(session, str(error) or repr(error), code)))
            raise
        placed = revived.placed
        placed.live.distrusts = revived.distrusts
        reach(CrashPoint.RESUME_READY)
        started = Started(
            session.generation, session.operation, placed.live.instance, placed.timings_ms, revived.distrusts
        )
        try:
            decided = await asyncio.shield(self._report(session, started))
        except BaseException:  # it may be stored or not: the instance stays held, for the next call or the erasure
            self._runtimes.of(session.id).attach(placed.live, session, now_s=self._clock.monotonic_s())
            raise
        if not isinstance(decided.decision, Accepted):
            await discard(placed.live)
            raise conflict(decided.session, "placed_too_late")
        reach(CrashPoint.RESUME_RECORDED)
        self._runtimes.of(session.id).attach(placed.live, decided.session, now_s=self._clock.monotonic_s())
        return decided.session, placed.live, self._resumption(session, cause, revived)

    def begin_capture(self, session: Session, blueprint: Blueprint) -> None:
        """Perform CHECKPOINT for a stored order, in the background; ``settled`` waits for it.

        An earlier capture that was given up may still be letting the instance go on: this one starts after its end.
        """
        reach(CrashPoint.PAUSE_ORDERED)
        runtime = self._runtimes.of(session.id)
        earlier, runtime.capturing = runtime.capturing, Capturing()
        work = self._capture_and_report(session, blueprint, runtime.capturing, earlier)
        self._supervisor.start(work, name=f"capture:{session.id}")

    async def settled(self, session: Session) -> None:
        """Wait for the capture under way, if any."""
        capturing = self._runtimes.of(session.id).capturing
        if capturing is not None:
            await capturing.ended.wait()

    async def end_left_capture(self, session: Session) -> bool:
        """Let a session go on whose live capture nobody performs any more; True if it was one. Needs ``placing``.

        Its caller was cancelled before it began, or its end could not be recorded. The instance has the newest state.
        """
        runtime = self._runtimes.of(session.id)
        live = runtime.live
        if session.status is not Status.SNAPSHOTTING or runtime.capturing is not None or live is None:
            return False
        reason = "its capture was cut short, or its end could not be recorded"
        decided = await self._report(session, _failed(session, reason, Unavailable.code))
        if _has(decided, Effect.THAW):
            await self.go_on(decided.session, live)
        return True

    async def _capture_and_report(
        self, session: Session, blueprint: Blueprint, capturing: Capturing, earlier: Capturing | None
    ) -> None:
        runtime = self._runtimes.of(session.id)
        try:
            if earlier is not None:
                await earlier.ended.wait()
            live = runtime.live
            if live is None:
                await self.lose(session, "this server holds no instance of it")
                return
            try:
                outcome = await self._captured(session, blueprint, live, capturing.give_up)
            except BaseException as error:  # a fault of ours must not leave the session parked for ever
                await self._conclude(session, live, _failed(session, repr(error)))
                raise
            await self._conclude(session, live, outcome)
        finally:
            if runtime.capturing is capturing:
                runtime.capturing = None
            capturing.ended.set()

    async def _conclude(self, session: Session, live: Live, outcome: SnapshotStored | OperationFailed) -> None:
        """Report how a capture ended, and do with the parked instance what the lifecycle then says."""
        decided = await self._report(session, outcome)
        if _has(decided, Effect.RELEASE):
            reach(CrashPoint.COMMIT_RECORD)
            self._runtimes.of(session.id).live = None
            if not await self._kept_warm(decided.session, live):
                await self._release(session, live)
                reach(CrashPoint.RELEASE_DONE)
        elif decided.session.status in {Status.RUNNING, Status.PAUSING}:  # pausing: a next capture waits for us
            await self.go_on(decided.session, live)

    async def _captured(
        self, session: Session, blueprint: Blueprint, live: Live, give_up: asyncio.Event
    ) -> SnapshotStored | OperationFailed:
        order = CaptureOrder(
            tenant=session.tenant,
            subject=session.id,
            sequence=session.operation,
            wrapped_key=base64.b64decode(session.wrapped_key),
            parent=_parent(session),
            template=blueprint.golden,
            meta=session_meta(session),
            memory=session.persistence is Persistence.MEMORY,
        )
        try:
            usage = await live.engine.usage(live.instance)  # before: once the snapshot is committed nothing may fail
            snapshot = await self._capture.take(live, order, give_up)
        except GivenUpError:
            return _failed(session, "a burst arrived", Conflict.code)
        except TorporError as error:
            log.warning("capture failed", session=session.id, code=error.code, error=error.message)
            return _failed(session, error.message, error.code)
        return SnapshotStored(
            session.generation, session.operation, snapshot, self.durability, cpu_s=usage.get("cpu_s", 0.0)
        )

    async def _kept_warm(self, session: Session, live: Live) -> bool:
        """Keep a captured instance in memory, if its whole state is in the store and there is room."""
        if not self._warm.enabled or session.snapshot is None or session.persistence is not Persistence.MEMORY:
            return False
        if self._runtimes.of(session.id).activity.bursts_count:
            return False  # whoever waits for a burst is told by the end of the channel, which a kept instance keeps
        try:
            usage = await live.engine.usage(live.instance)
        except TorporError as error:
            log.warning("not kept warm", session=session.id, code=error.code, error=error.message)
            return False
        return await self._warm.keep(
            session.id,
            live,
            generation=session.generation,
            sequence=session.snapshot.sequence,
            size_bytes=int(usage["memory_bytes"]),
        )

    async def let_go(self, session: Session) -> None:
        """Perform the RELEASE of a session of which nothing is kept. It goes on to its end as a wake does."""
        await self.finish(self._let_go(session), name=f"release:{session.id}")

    async def _let_go(self, session: Session) -> None:
        runtime = self._runtimes.of(session.id)
        live, runtime.live = runtime.live, None
        if live is not None:
            await self._release(session, live)

    async def go_on(self, session: Session, live: Live) -> None:
        """Let an instance go on in place; harmless if it does. If it cannot, it is gone, and the record says so.

        Tried again while it lives: all that it had since its last snapshot is at stake.
        """
        for attempt in range(1, GO_ON_ATTEMPTS_MAX + 1):
            try:
                await live.engine.thaw(live.instance)
                await live.guest.proceed(self._notice(session, Cause.ABORTED, self._clock.wall_s()))
            except TorporError as error:
                log.warning("does not go on", session=session.id, code=error.code, error=error.message)
                if attempt == GO_ON_ATTEMPTS_MAX or await self._is_dead(live):
                    await self.lose(session, f"{error.code}: {error.message}", live)
                    return
                await self._clock.sleep(GO_ON_PAUSE_S)
            else:
                return

    async def _is_dead(self, live: Live) -> bool:
        try:
            return await live.engine.inspect(live.instance) in {InstanceStatus.STOPPED, InstanceStatus.ABSENT}
        except TorporError:
            return False

    async def lost_if_dead(self, session: Session, live: Live, error: TorporError) -> None:
        """After a guest error: if the sandbox died, say so in the record, also if the caller is cancelled over it."""
        status = await live.engine.inspect(live.instance)
        if status in {InstanceStatus.STOPPED, InstanceStatus.ABSENT}:
            reason = f"its sandbox died: {error.message}"
            await self.finish(self.lose(session, reason, live), name=f"lose:{session.id}")

    async def lose(self, session: Session, reason: str, which: Live | None = None) -> None:
        """Record a certain loss: destroy what is left of the instance first, then say so.

        ``which``: the instance that was seen dead; nothing is done if the session has another by now.
        """
        runtime = self._runtimes.of(session.id)
        if which is not None and runtime.live is not which:
            return
        live, runtime.live = runtime.live, None
        if live is not None:
            await discard(live)
        with contextlib.suppress(Conflict):
            await self._report(session, InstanceLost(session.generation, session.operation, reason))

    async def _release(self, session: Session, live: Live) -> None:
        error = await discard(live)
        if error is not None:
            log.error("released instance was not destroyed", session=session.id, error=error.message)

    async def erase(self, session: Session) -> Session:
        """Perform ERASE: wait out what is under way, destroy, shred, remove. Repeatable until it succeeds.

        It goes on to its end although the caller is cancelled: an instance that is half destroyed has no other owner.
        """
        return await self.finish(self._erase(session), name=f"erase:{session.id}")

    async def _erase(self, session: Session) -> Session:
        runtime = self._runtimes.of(session.id)
        if runtime.capturing is not None:
            runtime.capturing.give_up.set()
        await self.settled(session)
        async with runtime.placing:
            return await self._erase_stored(session)

    async def _erase_stored(self, session: Session) -> Session:
        decided = await self._records.apply(session.tenant, session.id, Delete())
        if decided.session.status is Status.DELETED:
            return decided.session
        reach(CrashPoint.DELETE_ORDERED)
        runtime = self._runtimes.of(session.id)
        live, runtime.live = runtime.live, None
        if live is not None and (error := await discard(live)) is not None:
            runtime.live = live  # for the next try
            raise error
        await self._warm.drop(session.id)
        reach(CrashPoint.DELETE_INSTANCE_GONE)
        await self._store.delete_subject(session.tenant, session.id)
        record = decided.session
        done = await self._report(record, Deleted(record.generation, record.operation))
        self._runtimes.forget(session.id)
        return done.session

    async def _report(self, session: Session, report: Report) -> Decided:
        return await self._records.apply(session.tenant, session.id, report, seen=session)

    def _notice(self, session: Session, cause: Cause, wall_s: float) -> Notice:
        paused_at_s = _away_since_s(session)
        return Notice(
            session=session.id,
            generation=session.generation,
            cause=cause,
            clone=cause is not Cause.ABORTED and _is_anothers_image(session),
            wall_time_s=wall_s,
            gap_s=0.0 if paused_at_s is None else max(0.0, wall_s - paused_at_s),
            paused_at_s=paused_at_s,
            entropy=self._entropy.bytes(32),
            hostname=session.hostname,
            machine_id=session.machine_id,
            env=dict(session.env),
        )

    def _resumption(self, session: Session, cause: Cause, revived: Revived) -> Resumption:
        wall_s, away_since_s = self._clock.wall_s(), _away_since_s(session)
        if revived.instant_s is not None:
            away_since_s = revived.instant_s
        placed = revived.placed
        return Resumption(
            cause=cause,
            gap_s=0.0 if away_since_s is None else max(0.0, wall_s - away_since_s),
            wall_time_s=wall_s,
            tier=revived.tier,
            outcome=revived.outcome,
            stepped_down=revived.stepped_down,
            fetched_bytes=revived.fetched_bytes,
            generation=session.generation,
            attempts=placed.attempts,
            dropped=placed.ready.dropped,
            timings_ms=placed.timings_ms,
        )


def _failed(session: Session, reason: str, code: str = TorporError.code) -> OperationFailed:
    return OperationFailed(session.generation, session.operation, reason, code)


def _is_placed(session: Session, live: Live) -> bool:
    """Its order to be placed was carried out already."""
    return session.status in {Status.CREATING, Status.RESUMING} and live.generation == session.generation


def _has(decided: Decided, effect: Effect) -> bool:
    return isinstance(decided.decision, Accepted) and effect in decided.decision.effects


def _is_anothers_image(session: Session) -> bool:
    """What it is restored from was captured under another identity: the template's, or that of a fork's source."""
    return session.snapshot is None or session.snapshot.sequence == 0


def _parent(session: Session) -> SnapshotRef | None:
    """Whose chunks its next snapshot may name. A snapshot that could not be read hands its damage to nobody."""
    if session.snapshot is None or session.distrusts_snapshot:
        return None
    return SnapshotRef.from_json(session.snapshot.ref)


def _away_since_s(session: Session) -> float | None:
    """When user code last ran: for a fork, when its source was captured."""
    if session.paused_at_s is not None or session.snapshot is None:
        return session.paused_at_s
    return session.snapshot.instant_s if session.status in {Status.CREATING, Status.RESUMING} else None


def session_meta(session: Session) -> Mapping[str, Any]:
    """What a rebuilt catalog needs to know of the session, sealed with its snapshot."""
    return {
        "name": session.name,
        "template": session.template,
        "template_digest": session.template_digest,
        "generation": session.generation,
        "operation": session.operation,
        "created_at_s": session.created_at_s,
        "persistence": session.persistence.value,
        "metadata": dict(session.metadata),
        "env": dict(session.env),
        "limits": asdict(session.limits),
        "policy": asdict(session.policy),  # its enumerations are strings
        "hard_deadline_at_s": session.hard_deadline_at_s,
        "forked_from": session.forked_from,
    }
