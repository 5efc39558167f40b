"""Sessions as callers see them: create, burst, pause, resume, delete, files. Wakes what sleeps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace

from torpor.domain.activity import verdict
from torpor.domain.errors import (
    Conflict,
    GuestError,
    InvalidArgument,
    NotFound,
    TorporError,
    Unsupported,
    error_for,
)
from torpor.domain.ids import SessionId, TenantId, id_from_entropy, is_id
from torpor.domain.lifecycle import (
    HARD_DEADLINE,
    IDLE,
    INSTANCE_LOST,
    Accepted,
    Delete,
    Expire,
    Pause,
    Release,
    Resume,
    SetClocks,
    Snapshot,
    is_paused,
)
from torpor.domain.session import Durability, Persistence, Session, Status
from torpor.ports.catalog import Catalog, Page
from torpor.ports.clock import Clock
from torpor.ports.crash_points import CrashPoint, reach
from torpor.ports.entropy import Entropy
from torpor.ports.guest import BurstResult, Guest, OnOutput, Output, ProcessSpec
from torpor.ports.keys import KeyStore
from torpor.services.births import bear
from torpor.services.checks import check_create, check_policy, limits_of, name_taken
from torpor.services.driver import Driver
from torpor.services.live import Live, Runtimes
from torpor.services.records import Records, conflict
from torpor.services.requests import Burst, ClockChange, CreateRequest, Resumption
from torpor.services.templates import Templates

ASKED = "asked"

Run = Callable[[Guest, OnOutput], Awaitable[BurstResult]]


class Sessions:
    """The use cases. Every method takes the tenant, and a session by id or by name."""

    def __init__(
        self,
        catalog: Catalog,
        keys: KeyStore,
        records: Records,
        runtimes: Runtimes,
        driver: Driver,
        templates: Templates,
        origin: tuple[Clock, Entropy],
    ) -> None:
        self._catalog = catalog
        self._keys = keys
        self._records = records
        self._runtimes = runtimes
        self._driver = driver
        self._templates = templates
        self._clock, self._entropy = origin

    async def create(self, tenant: TenantId, request: CreateRequest) -> tuple[Session, Resumption]:
        """A new running session, a clone of its template's golden snapshot.

        It goes on to its end although the caller is cancelled.
        Raises: InvalidArgument, NotFound (the template), Conflict (the name), Unsupported. Leaves nothing on failure.
        """
        check_create(request)
        blueprint = await self._templates.blueprint(tenant, request.template)
        now_s = self._clock.wall_s()
        session = Session(
            id=SessionId(id_from_entropy(self._entropy.bytes(20))),
            tenant=tenant,
            template=blueprint.template.name,
            template_digest=blueprint.template.digest,
            created_at_s=now_s,
            name=request.name,
            persistence=request.persistence,
            limits=limits_of(request, blueprint.template),
            metadata=dict(request.metadata),
            env=dict(request.env),
            policy=request.policy,
            hard_deadline_at_s=None if request.ttl_s is None else now_s + request.ttl_s,
        )
        if request.name is not None and await self._catalog.find(tenant, request.name) is not None:
            raise name_taken(request.name)
        return await self._driver.finish(self._born(session), name=f"create:{session.id}")

    async def _born(self, session: Session) -> tuple[Session, Resumption]:
        stored = await bear(self._catalog, self._keys, session)
        reach(CrashPoint.CREATE_INSERTED)
        return await self._driver.create(stored)

    async def get(self, tenant: TenantId, ref: str) -> Session:
        """The record. Raises: NotFound."""
        if is_id(ref):
            session: Session | None = await self._catalog.get(tenant, SessionId(ref))
        else:
            session = await self._catalog.find(tenant, ref)
        if session is None or session.status is Status.DELETED:
            raise NotFound(f"no session {ref!r}: list those that exist with `torpor ls`", session=ref)
        return session

    async def page(self, tenant: TenantId, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Sessions, newest first."""
        return await self._catalog.page(tenant, cursor=cursor, limit=limit)

    async def pause(
        self, tenant: TenantId, ref: str, *, wait: Durability | None = Durability.DISK, reason: str = ASKED
    ) -> Session:
        """Snapshot, store and release. Returns once the snapshot is as durable as ``wait`` says; None: at once.

        Idempotent; concurrent callers share one capture. An ephemeral session is let go, with nothing kept.
        Raises: Conflict (a burst arrived, or not possible now), StorageFull and others: it goes on running.
        """
        if wait is Durability.OBJECT and self._driver.durability is not Durability.OBJECT:
            raise Unsupported(
                "cannot wait for durability object: this server stores in a local folder, which is disk; wait for disk",
                offered=[Durability.DISK.value],
            )
        session = await self.get(tenant, ref)
        blueprint = await self._templates.blueprint_of(session)
        runtime = self._runtimes.of(session.id)
        async with runtime.placing:  # a pause right after a wake waits until it is placed
            if session.persistence is Persistence.EPHEMERAL:
                return await self._let_go(session, reason)
            await self._driver.end_left_capture(session)
            decided = await self._records.apply(tenant, session.id, Pause(reason))
            is_left = decided.session.status is Status.PAUSING and runtime.capturing is None  # by a cancelled caller
            if isinstance(decided.decision, Accepted) or is_left:
                self._driver.begin_capture(decided.session, blueprint)
        if reason == IDLE and runtime.activity.bursts_count:  # it came between the verdict and the order
            await self._driver.ensure_running(session)
        if wait is None:
            return decided.session
        await self._driver.settled(session)
        after = await self.get(tenant, session.id)
        if not is_paused(after):
            raise not_paused(after)
        return after

    async def _let_go(self, session: Session, reason: str) -> Session:
        decided = await self._records.apply(session.tenant, session.id, Release(reason))
        if isinstance(decided.decision, Accepted):
            await self._driver.let_go(decided.session)
        return decided.session

    async def snapshot(self, tenant: TenantId, ref: str) -> Session:
        """Store what it is now, and let it go on; of one that rests, its last snapshot is what it is now.

        Concurrent callers share one capture. Raises: Conflict, Unsupported (ephemeral), StorageFull and others: it
        goes on running.
        """
        session = await self.get(tenant, ref)
        if is_paused(session) and session.snapshot is not None:
            return session
        blueprint = await self._templates.blueprint_of(session)
        async with self._runtimes.of(session.id).placing:
            await self._driver.end_left_capture(session)
            decided = await self._records.apply(tenant, session.id, Snapshot())
            if isinstance(decided.decision, Accepted):
                self._driver.begin_capture(decided.session, blueprint)
        await self._driver.settled(session)
        after = await self.get(tenant, session.id)
        if after.snapshot is None or after.snapshot.sequence < decided.session.operation:
            raise not_captured(after)
        return after

    async def set_clocks(self, tenant: TenantId, ref: str, change: ClockChange) -> Session:
        """Set its clocks anew; the run deadline starts over if ``timeout_s`` is among them. Wakes nothing."""
        session = await self.get(tenant, ref)
        check_policy(change.policy, change.ttl_s)
        hard_deadline_at_s = None if change.ttl_s is None else self._clock.wall_s() + change.ttl_s
        fields = change.fields - {"ttl_s"} | ({HARD_DEADLINE} if "ttl_s" in change.fields else set())
        event = SetClocks(change.policy, hard_deadline_at_s, fields)
        decided = await self._records.apply(tenant, session.id, event)
        self._runtimes.of(session.id).idle_s = decided.session.policy.idle_s
        return decided.session

    async def expire(self, tenant: TenantId, session: SessionId) -> Session:
        """Delete it because a clock has ended. Raises: Conflict if none has (it may have been set anew)."""
        decided = await self._records.apply(tenant, session, Expire())
        return await self._driver.erase(decided.session)

    async def resume(
        self, tenant: TenantId, ref: str, *, allow_older: bool = False
    ) -> tuple[Session, Resumption | None]:
        """Bring it back; None if it was running. ``allow_older``: a lost session may go back to its last snapshot."""
        session = await self.get(tenant, ref)
        running, _, resumption = await self._driver.ensure_running(session, resume=Resume(allow_older=allow_older))
        return running, resumption

    async def delete(self, tenant: TenantId, ref: str) -> Session:
        """Destroy it, shred its key, remove its objects; all done on return. Works in every status."""
        session = await self.get(tenant, ref)
        decided = await self._records.apply(tenant, session.id, Delete())
        return await self._driver.erase(decided.session)

    async def code(
        self,
        tenant: TenantId,
        ref: str,
        source: str,
        *,
        context: str = "default",
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Burst:
        """Run Python in a context of the session. An exception in it is a value."""
        return await self._burst(
            tenant,
            ref,
            lambda guest, output: guest.code(source, context=context, timeout_s=timeout_s, on_output=output),
            on_output,
        )

    async def shell(
        self,
        tenant: TenantId,
        ref: str,
        command: str,
        *,
        shell: str = "default",
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Burst:
        """Run a command in a persistent shell of the session."""
        return await self._burst(
            tenant,
            ref,
            lambda guest, output: guest.shell(command, shell=shell, timeout_s=timeout_s, on_output=output),
            on_output,
        )

    async def execute(
        self, tenant: TenantId, ref: str, process: ProcessSpec, *, on_output: OnOutput | None = None
    ) -> Burst:
        """Run a process in the session."""
        if not process.argv:
            raise InvalidArgument("cannot run an empty command: give argv at least one word", field="argv")
        return await self._burst(tenant, ref, lambda guest, output: guest.execute(process, on_output=output), on_output)

    async def interrupt(self, tenant: TenantId, ref: str, *, context: str = "default") -> None:
        """KeyboardInterrupt in a running burst; does not wake a sleeping session, which runs none."""
        session = await self.get(tenant, ref)
        live = self._runtimes.of(session.id).live
        if live is not None and session.status is Status.RUNNING:
            await live.guest.interrupt(context=context)

    async def read_file(self, tenant: TenantId, ref: str, path: str) -> AsyncIterator[bytes]:
        """Stream a file out of the session."""
        session, live, resumption = await self._awake(tenant, ref)
        self._keep_for_a_burst(session, resumption)
        try:
            async for piece in live.guest.read_file(path):
                yield piece
        except GuestError as error:
            await self._explain(session, live, error)
            raise

    async def write_file(
        self, tenant: TenantId, ref: str, path: str, data: AsyncIterator[bytes], *, mode: int = 0o644
    ) -> int:
        """Stream a file into the session; replaced atomically."""
        session, live, resumption = await self._awake(tenant, ref)
        self._keep_for_a_burst(session, resumption)
        try:
            return await live.guest.write_file(path, data, mode=mode)
        except GuestError as error:
            await self._explain(session, live, error)
            raise

    async def usage(self, tenant: TenantId, ref: str) -> Mapping[str, float]:
        """What its instance uses now; zeros while it has none."""
        session = await self.get(tenant, ref)
        live = self._runtimes.of(session.id).live
        if live is None:
            return {"cpu_s": 0.0, "memory_bytes": 0.0}
        return await live.engine.usage(live.instance)

    async def pause_all(self) -> int:
        """Pause every running session, for a shutdown; those that cannot be paused go on. How many were paused."""
        running = [session for session in await self._catalog.unfinished() if session.status is Status.RUNNING]
        outcomes = await asyncio.gather(
            *(self.pause(session.tenant, session.id) for session in running), return_exceptions=True
        )
        return sum(isinstance(outcome, Session) for outcome in outcomes)

    @contextlib.asynccontextmanager
    async def guest(self, tenant: TenantId, ref: str) -> AsyncIterator[tuple[Guest, Resumption | None]]:
        """The session's guest, woken if need be, for calls that are no bursts: files, terminals, forwards, logs.

        They do not keep it awake by themselves; the bytes they move do (domain.activity).
        """
        session, live, resumption = await self._awake(tenant, ref)
        self._keep_for_a_burst(session, resumption)
        try:
            yield live.guest, resumption
        except GuestError as error:
            await self._explain(session, live, error)
            raise

    def awake_because(self, session: SessionId) -> tuple[str, ...]:
        """What keeps it awake now, a phrase each; nothing if it has no instance here, or is idle."""
        runtime = self._runtimes.of(session)
        if runtime.live is None:
            return ()
        if runtime.idle_s is None:
            return ("it has no idle window",)
        return verdict(runtime.activity, self._clock.monotonic_s(), window_s=runtime.idle_s).reasons

    def _keep_for_a_burst(self, session: Session, resumption: Resumption | None) -> None:
        """Only a burst's result has a place for it; what woke the session just now may be no burst."""
        if resumption is not None:
            self._runtimes.of(session.id).untold = resumption

    async def _awake(self, tenant: TenantId, ref: str) -> tuple[Session, Live, Resumption | None]:
        session = (is_id(ref) and self._records.last(tenant, SessionId(ref))) or await self.get(tenant, ref)
        runtime = self._runtimes.of(session.id)
        if session.status is Status.RUNNING and runtime.live is not None and runtime.capturing is None:
            return session, runtime.live, None
        return await self._driver.ensure_running(session)

    async def _burst(self, tenant: TenantId, ref: str, run: Run, on_output: OnOutput | None) -> Burst:
        began_s = self._clock.monotonic_s()
        session, live, resumption = await self._awake(tenant, ref)
        runtime = self._runtimes.of(session.id)
        resumption, runtime.untold = resumption or runtime.untold, None
        activity = runtime.activity
        activity.begin(self._clock.monotonic_s())
        first_output_ms: list[float] = []

        async def output(piece: Output) -> None:
            if not first_output_ms:
                first_output_ms.append((self._clock.monotonic_s() - began_s) * 1000)
            if on_output is not None:
                await on_output(piece)

        try:
            result = await run(live.guest, output)
        except BaseException as error:
            runtime.untold = resumption or runtime.untold  # for the next burst to tell
            if isinstance(error, GuestError):
                await self._explain(session, live, error)
            raise
        finally:
            activity.end(self._clock.monotonic_s())
        if resumption is not None:
            first_ms = first_output_ms[0] if first_output_ms else (self._clock.monotonic_s() - began_s) * 1000
            timings = {**resumption.timings_ms, "first_output": round(first_ms, 3)}
            resumption = replace(resumption, timings_ms=timings)
        return Burst(session, result, resumption)

    async def _explain(self, session: Session, live: Live, error: GuestError) -> None:
        """Turn "the channel ended" into what happened: paused, deleted, or dead."""
        runtime = self._runtimes.of(session.id)
        if runtime.live is not live:
            raise Conflict(
                f"session {session.id} was paused or removed while this burst ran: what it started goes on at the next "
                "resume, its remaining output is not delivered",
                reason="paused_during_burst",
                session=session.id,
            ) from error
        await self._driver.lost_if_dead(session, live, error)


def _has_died(session: Session) -> bool:
    """While it was captured; it may be being brought back already."""
    return session.status is Status.LOST or session.last_error_code == INSTANCE_LOST


def not_captured(session: Session) -> TorporError:
    """Why a live snapshot was not stored."""
    if _has_died(session):
        return conflict(session, "lost_while_captured")
    code = session.last_error_code or Conflict.code
    return error_for(
        code,
        f"session {session.name or session.id} is {session.status.public} and was not captured: "
        f"{session.last_error or 'it was paused, resumed or removed meanwhile'}; take the snapshot again",
        reason="snapshot_given_up" if code == Conflict.code else code,
        session=session.id,
        status=session.status.public,
    )


def not_paused(session: Session) -> TorporError:
    """Why a pause did not end paused: the capture's own error, or a burst that arrived."""
    if _has_died(session):
        return conflict(session, "lost_while_captured")
    said = session.last_error or "a burst arrived before its snapshot was committed, so it goes on in place"
    code = session.last_error_code or Conflict.code
    return error_for(
        code,
        f"session {session.name or session.id} was not paused and is {session.status.public}, nothing of it was lost: "
        f"{said}; pause it again",
        reason="pause_given_up" if code == Conflict.code else code,
        session=session.id,
        status=session.status.public,
    )
