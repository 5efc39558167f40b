"""The four clocks, driven: looks at what is due and asks for what the lifecycle then allows. Decides nothing itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from torpor.domain.activity import Sample, verdict
from torpor.domain.clocks import Due, due, expires_at_s
from torpor.domain.errors import Conflict, NotFound, TorporError
from torpor.domain.ids import SessionId
from torpor.domain.lifecycle import IDLE, RUN_DEADLINE, SetClocks, WarnExpiry
from torpor.domain.session import Session, Status
from torpor.ports.catalog import Catalog
from torpor.ports.clock import Clock
from torpor.services.live import Live, Runtime, Runtimes
from torpor.services.records import Records
from torpor.services.sessions import Sessions
from torpor.services.supervisor import Supervisor

log = structlog.get_logger()

TICK_S = 0.25
DUE_EVERY_S = 1.0
LEFT_EVERY_S = 10.0
RETRY_S = 5.0  # after a pause or a deletion that could not be carried out


class Clockwork:
    """Runs for as long as the server serves; every step of it may be repeated or cut off anywhere."""

    def __init__(
        self,
        catalog: Catalog,
        records: Records,
        runtimes: Runtimes,
        sessions: Sessions,
        driven_by: tuple[Supervisor, Clock],
        upkeep: tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]],
    ) -> None:
        """``upkeep``: gives memory back where it is short, and drops clones that no template needs any more."""
        self._catalog = catalog
        self._records = records
        self._runtimes = runtimes
        self._sessions = sessions
        self._supervisor, self._clock = driven_by
        self._relieve, self._sweep_clones = upkeep
        self._busy: dict[SessionId, float] = {}  # under way, or not to be tried again before an instant
        self._beside: set[str] = set()  # what goes on beside the ticks, by name

    async def run(self) -> None:
        """Tick for ever; ends by cancellation."""
        looked_at_s, left_at_s = float("-inf"), self._clock.monotonic_s()
        while True:
            now_s = self._clock.monotonic_s()
            if now_s - left_at_s >= LEFT_EVERY_S:
                left_at_s = now_s
                await self.look_at_deletions()
                self._start_beside("clones", self._sweep_clones)
            if now_s - looked_at_s >= DUE_EVERY_S:
                looked_at_s = now_s
                await self.look_at_records()
                self._start_beside("relieve", self._relieve)
            await self.look_at_activity()
            await self._clock.sleep(TICK_S)

    async def look_at_records(self) -> None:
        """Start what the records' own clocks ask for."""
        now_s = self._clock.monotonic_s()
        self._busy = {session: until_s for session, until_s in self._busy.items() if until_s > now_s}
        try:
            sessions = await self._catalog.due(self._clock.wall_s())
        except TorporError as error:  # the catalog may answer at the next look
            log.warning("due sessions not read", code=error.code, error=error.message)
            return
        for session in sessions:
            self._begin(session.id, partial(self._ended, session))

    async def look_at_deletions(self) -> None:
        """Go on with deletions that failed half-way: nobody else may ever ask for them again."""
        try:
            unfinished = await self._catalog.unfinished()
        except TorporError as error:
            log.warning("unfinished sessions not read", code=error.code, error=error.message)
            return
        for session in unfinished:
            if session.status is Status.DELETING:
                self._begin(session.id, partial(self._sessions.delete, session.tenant, session.id))

    async def look_at_activity(self) -> None:
        """Sample instances whose totals are worth a look, and pause those that are idle.

        A guest that does not answer holds up its own clock only.
        """
        now_s = self._clock.monotonic_s()
        for session, runtime in self._runtimes.watched():
            if runtime.idle_s is None:
                continue
            if runtime.activity.sample_due(now_s, window_s=runtime.idle_s):
                self._start_beside(f"sample:{session}", partial(self._sample_and_judge, session, runtime))
            else:
                self._judge(session, runtime)

    async def _sample_and_judge(self, session: SessionId, runtime: Runtime) -> None:
        window_s, live = runtime.idle_s, runtime.live
        if window_s is None or live is None:
            return
        await self._sample(session, runtime, live, window_s)
        if runtime.live is live and runtime.idle_s == window_s:  # unchanged while the sample was taken
            self._judge(session, runtime)

    def _judge(self, session: SessionId, runtime: Runtime) -> None:
        """Pause it if it is idle."""
        window_s, owner = runtime.idle_s, runtime.owner
        if window_s is None or owner is None or runtime.live is None:
            return
        if verdict(runtime.activity, self._clock.monotonic_s(), window_s=window_s).idle:
            self._begin(session, partial(self._sessions.pause, owner, session, wait=None, reason=IDLE))

    async def _sample(self, session: SessionId, runtime: Runtime, live: Live, window_s: float) -> None:
        try:
            seen = await live.guest.activity()
        except TorporError as error:  # it is being paused, or it died: whoever uses it finds out
            log.debug("no activity sample", session=session, code=error.code)
            return
        moved_bytes = seen.stream_in_bytes + seen.stream_out_bytes
        busiest = tuple(f"{process.name} ({process.pid})" for process in seen.busiest)
        if runtime.live is live:
            sample = Sample(self._clock.monotonic_s(), seen.cpu_s, moved_bytes, busiest)
            runtime.activity.note(sample, window_s=window_s)

    async def _ended(self, session: Session) -> None:
        """Ask for what ``due`` says; the lifecycle refuses it if the clock was set anew meanwhile."""
        match due(session, self._clock.wall_s()):
            case None:  # a record of before this index: writing it anew files it under its next instant
                await self._records.apply(session.tenant, session.id, SetClocks())
            case Due.WARNING:
                await self._records.apply(session.tenant, session.id, WarnExpiry())
                log.warning("session expires soon", session=session.id, expires_at_s=expires_at_s(session))
            case Due.RUN_DEADLINE_PAUSES:
                await self._sessions.pause(session.tenant, session.id, wait=None, reason=RUN_DEADLINE)
            case Due.HARD_DEADLINE | Due.RUN_DEADLINE_KILLS | Due.RETENTION as ended:
                await self._sessions.expire(session.tenant, session.id)
                log.info("session expired", session=session.id, clock=ended)

    def _begin(self, session: SessionId, work: Callable[[], Awaitable[object]]) -> None:
        """Do it in the background, one thing at a time for a session; a failure is tried again after a while."""
        if self._busy.get(session, 0.0) > self._clock.monotonic_s():
            return
        self._busy[session] = float("inf")
        self._supervisor.start(self._carry_out(session, work), name=f"clock:{session}")

    async def _carry_out(self, session: SessionId, work: Callable[[], Awaitable[object]]) -> None:
        wait_s = RETRY_S  # also after an error that has no type: the supervisor logs it, and the clock goes on
        try:
            await work()
            wait_s = 0.0
        except (Conflict, NotFound):  # somebody was faster, or a burst arrived
            wait_s = 0.0
        except TorporError as error:
            log.warning("clock not obeyed", session=session, code=error.code, error=error.message)
        finally:
            self._busy[session] = self._clock.monotonic_s() + wait_s

    def _start_beside(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do it in the background unless it is under way: no tick waits for what may take its time."""
        if name not in self._beside:
            self._beside.add(name)
            self._supervisor.start(self._perform_beside(name, work), name=name)

    async def _perform_beside(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        finally:
            self._beside.remove(name)
