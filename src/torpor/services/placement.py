"""A snapshot becomes a running instance: claim, fetch, restore, contract. Done only on READY."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torpor.domain.errors import DeadlineExceeded, EngineError, GuestError, NotFound, TorporError, Unsupported
from torpor.domain.ids import InstanceId, TenantId
from torpor.ports.clock import Clock
from torpor.ports.crash_points import CrashPoint, reach
from torpor.ports.engine import Engine, InstanceShape
from torpor.ports.guest import Guest, GuestDialer, Notice, ReadyReport
from torpor.ports.staging import Staging
from torpor.services.admission import Admission
from torpor.services.images import Fetched, Images
from torpor.services.live import Live
from torpor.services.patience import destroy_surely
from torpor.services.pool import Pool
from torpor.services.snapshot_parts import filesystem_file, memory_build, memory_files
from torpor.services.supervisor import Supervisor
from torpor.store.snapshots import Manifest, SnapshotRef, SnapshotStore

ATTEMPTS_MAX = 2  # one retry in a fresh sandbox: restores fail now and then for reasons of the moment
OF_THE_MOMENT = (EngineError, GuestError, DeadlineExceeded)
RESTORE_TIMEOUT_S = 120.0
REPLENISH_DELAY_S = 0.2
QUEUE_PATIENCE_S = 30.0  # for this node's memory
BOOT_BYTES = 128 * 1024 * 1024  # what a template's program and its first context take when they start cold


@dataclass(frozen=True, slots=True)
class Engines:
    """The engine builds installed on this node. A snapshot restores only under the build that made it."""

    by_build: Mapping[str, Engine]
    preferred: str

    def of(self, build: str) -> Engine:
        """Raises: Unsupported naming the missing build and those that are there."""
        engine = self.by_build.get(build)
        if engine is None:
            raise Unsupported(
                f"cannot restore here: the snapshot needs engine build {build}, installed are "
                f"{', '.join(sorted(self.by_build)) or 'none'}; install that build, it restores under no other",
                needed=build,
                installed=sorted(self.by_build),
            )
        return engine

    def newest(self) -> Engine:
        """The build that new templates are made with."""
        return self.of(self.preferred)


@dataclass(frozen=True, slots=True)
class Placed:
    """A placed session, what its guest reported, and what each step took."""

    live: Live
    ready: ReadyReport
    attempts: int
    timings_ms: Mapping[str, float]


class Placement:
    """Places sessions on this node."""

    def __init__(
        self,
        store: SnapshotStore,
        engines: Engines,
        dialer: GuestDialer,
        supply: tuple[Pool, Images, Staging, Admission],
        clock: Clock,
        supervisor: Supervisor,
    ) -> None:
        self._store = store
        self._engines = engines
        self._dialer = dialer
        self._pool, self._images, self._staging, self._admission = supply
        self._clock = clock
        self._supervisor = supervisor

    async def place(
        self, tenant: TenantId, ref: SnapshotRef, shape: InstanceShape, notice_at: Callable[[float], Notice]
    ) -> Placed:
        """Restore ``ref`` into an instance of ``shape`` and carry out the contract.

        ``notice_at``: the notice for a given wall time, asked for at the last moment. The snapshot is untouched
        whatever happens; on failure nothing of the attempt is left.
        Raises: Unsupported (nothing was started), Corrupt, KeyDestroyed, EngineError, GuestError.
        """
        began_s = self._clock.monotonic_s()
        manifest = await self._store.open(ref)
        if not memory_files(manifest.meta):
            raise Unsupported(f"cannot restore snapshot {ref.snapshot}: it holds no memory part", snapshot=ref.snapshot)
        engine = self._engines.of(memory_build(manifest))
        timings: dict[str, float] = {"open": self._ms_since(began_s)}
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._room(tenant, node_bytes(manifest)))
            timings["queue"] = self._ms_since(began_s) - timings["open"]
            instance, fetched = await self._fetch_and_claim(ref, manifest, (engine, shape), stack, timings)
            for attempt in range(1, ATTEMPTS_MAX + 1):
                if attempt > 1:
                    instance = await self._pool.claim(engine, shape)
                try:
                    live, ready = await self._revive(
                        instance, engine, fetched.folder, manifest.requirements, notice_at, timings
                    )
                    break
                except BaseException as error:
                    await destroy_surely(engine, instance)
                    if attempt == ATTEMPTS_MAX or not isinstance(error, OF_THE_MOMENT):
                        raise
            else:
                raise AssertionError("unreachable: the last attempt returns or raises")
            self._supervisor.start(_release_loaded(live, stack.pop_all()), name=f"load:{instance}")
        timings["total"] = self._ms_since(began_s)
        self._supervisor.start(self._replenish(engine, shape), name=f"replenish:{instance}")
        return Placed(live, ready, attempt, timings)

    async def _fetch_and_claim(
        self,
        ref: SnapshotRef,
        manifest: Manifest,
        target: tuple[Engine, InstanceShape],
        stack: contextlib.AsyncExitStack,
        timings: dict[str, float],
    ) -> tuple[InstanceId, Fetched]:
        """Both at once: one waits for the engine, the other for disk and CPU."""
        began_s = self._clock.monotonic_s()
        engine, shape = target

        async def claim() -> InstanceId:
            instance = await self._pool.claim(engine, shape)
            timings["claim"] = self._ms_since(began_s)
            return instance

        async def fetch() -> Fetched:
            fetched = await stack.enter_async_context(self._images.memory(ref, manifest))
            timings["fetch"] = self._ms_since(began_s)
            reach(CrashPoint.RESUME_FETCHED)
            timings.update(fetched.timings_ms)
            return fetched

        claimed, fetched = await asyncio.gather(claim(), fetch(), return_exceptions=True)
        if isinstance(fetched, BaseException):
            if not isinstance(claimed, BaseException):
                await destroy_surely(engine, claimed)
            raise fetched
        if isinstance(claimed, BaseException):
            raise claimed
        return claimed, fetched

    async def _revive(
        self,
        instance: InstanceId,
        engine: Engine,
        folder: Path,
        requirements: Mapping[str, Any],
        notice_at: Callable[[float], Notice],
        timings: dict[str, float],
    ) -> tuple[Live, ReadyReport]:
        """Restore in the background: the guest repairs itself while its last pages are still being loaded."""
        began_s = self._clock.monotonic_s()
        guest = await self._restored(instance, engine, folder, requirements)
        try:
            timings["restore"] = self._ms_since(began_s)
            reach(CrashPoint.RESUME_RESTORED)
            notice = notice_at(self._clock.wall_s())
            ready = await guest.proceed(notice)
        except BaseException:
            await guest.close()
            raise
        timings["ready"] = self._ms_since(began_s) - timings["restore"]
        return Live(instance, engine, guest, notice.generation), ready

    async def _restored(
        self, instance: InstanceId, engine: Engine, folder: Path, requirements: Mapping[str, Any]
    ) -> Guest:
        """The guest of an instance that was just restored, parked; connected before, so that nothing is lost."""
        guest = self._dialer.connect(instance, await engine.attach(instance))
        try:
            async with asyncio.timeout(RESTORE_TIMEOUT_S):
                await engine.restore(instance, folder, requirements=requirements, background=True)
        except BaseException as error:
            await guest.close()
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(f"cannot restore: no answer within {RESTORE_TIMEOUT_S} s") from error
            raise
        return guest

    async def prepare(self, instance: InstanceId, ref: SnapshotRef, manifest: Manifest, shape: InstanceShape) -> Live:
        """A new ``instance`` with ``ref`` restored into it and greeted, of no generation: its guest stays parked.

        All of its memory is loaded on return. It is made beside the pool, whose sandboxes are for those who wait.
        On failure nothing of it is left. Raises: as ``place``.
        """
        engine = self._engines.of(memory_build(manifest))
        async with self._images.memory(ref, manifest) as fetched:
            await engine.create(instance, shape)
            try:
                guest = await self._restored(instance, engine, fetched.folder, manifest.requirements)
                try:
                    await engine.loaded(instance)
                    await guest.hello()
                except BaseException:
                    await guest.close()
                    raise
            except BaseException:
                await destroy_surely(engine, instance)
                raise
        return Live(instance, engine, guest, 0)

    async def boot(
        self, tenant: TenantId, ref: SnapshotRef, shape: InstanceShape, notice_at: Callable[[float], Notice]
    ) -> Placed:
        """Start the template's program over the filesystem part of ``ref``: its processes are new, its disk is not.

        Works under any engine build and processor. Errors and promises as ``place``.
        Raises: Unsupported if the snapshot, or the engine, has no filesystem part.
        """
        began_s = self._clock.monotonic_s()
        manifest = await self._store.open(ref)
        file = filesystem_file(manifest.meta)
        if file is None:
            raise Unsupported(
                f"cannot boot snapshot {ref.snapshot}: it holds no filesystem part", snapshot=ref.snapshot
            )
        engine, instance = self._engines.newest(), self._pool.new_id()
        timings = {"open": self._ms_since(began_s)}
        need_bytes = 2 * manifest.part(file).size_bytes + BOOT_BYTES
        async with self._room(tenant, need_bytes), self._images.filesystem(ref, manifest, file) as part:
            timings["fetch"] = self._ms_since(began_s)
            await engine.create(instance, shape, filesystem=part)
            try:
                live, ready = await self._booted(instance, engine, notice_at)
            except BaseException:
                await destroy_surely(engine, instance)
                raise
        timings["ready"] = self._ms_since(began_s) - timings["fetch"]
        timings["total"] = self._ms_since(began_s)
        return Placed(live, ready, 1, timings)

    def _room(self, tenant: TenantId, need_bytes: int) -> contextlib.AbstractAsyncContextManager[None]:
        """This node's memory for a placement, until its image is loaded: then the sandbox itself shows it as used."""
        return self._admission.room(tenant, need_bytes, deadline_s=self._clock.monotonic_s() + QUEUE_PATIENCE_S)

    async def _booted(
        self, instance: InstanceId, engine: Engine, notice_at: Callable[[float], Notice]
    ) -> tuple[Live, ReadyReport]:
        guest = self._dialer.connect(instance, await engine.attach(instance))
        try:
            await engine.start(instance)
            await guest.hello()
            await guest.quiesce()  # the contract is carried out on a parked guest, whatever made it
            # A new program has nobody's identity yet: it is given the session's, as a clone is.
            notice = replace(notice_at(self._clock.wall_s()), clone=True)
            return Live(instance, engine, guest, notice.generation), await guest.proceed(notice)
        except BaseException:
            await guest.close()
            raise

    async def _replenish(self, engine: Engine, shape: InstanceShape) -> None:
        """Make ready for the next placement, a little later: the burst that this one was for comes first."""
        await self._clock.sleep(REPLENISH_DELAY_S)
        self._pool.refill(engine, shape)
        await self._staging.replenish()

    def _ms_since(self, began_s: float) -> float:
        return round((self._clock.monotonic_s() - began_s) * 1000, 3)


def node_bytes(manifest: Manifest) -> int:
    """The image twice: as files to restore from, and as the sandbox's memory. A golden image lies there already."""
    size_bytes = sum(manifest.part(name).size_bytes for name in memory_files(manifest.meta))
    return size_bytes if manifest.template is None else 2 * size_bytes


async def _release_loaded(live: Live, stack: contextlib.AsyncExitStack) -> None:
    """Remove the image from memory once the engine has read all of it, or the instance is gone."""
    async with stack:
        with contextlib.suppress(NotFound):
            await live.engine.loaded(live.instance)


async def discard(live: Live) -> TorporError | None:
    """Destroy a placed instance; the error if the engine could not, for the caller to report."""
    await live.guest.close()
    try:
        await destroy_surely(live.engine, live.instance)
    except TorporError as error:
        return error
    return None
