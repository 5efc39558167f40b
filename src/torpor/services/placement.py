"""A snapshot becomes a running instance: claim, fetch, restore, contract. Done only on READY."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.domain.errors import DeadlineExceeded, EngineError, GuestError, TorporError, Unsupported
from torpor.domain.ids import InstanceId
from torpor.ports.clock import Clock
from torpor.ports.engine import Engine, InstanceShape
from torpor.ports.guest import GuestDialer, Notice, ReadyReport
from torpor.ports.staging import Staging
from torpor.services.live import Live
from torpor.services.pool import Pool
from torpor.store.snapshots import SnapshotRef, SnapshotStore

ATTEMPTS_MAX = 2  # one retry in a fresh sandbox: restores fail now and then for reasons of the moment
RESTORE_TIMEOUT_S = 120.0


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
    timings_ms: Mapping[str, float]


class Placement:
    """Places sessions on this node."""

    def __init__(
        self,
        store: SnapshotStore,
        engines: Engines,
        dialer: GuestDialer,
        staging: Staging,
        pool: Pool,
        clock: Clock,
    ) -> None:
        self._store = store
        self._engines = engines
        self._dialer = dialer
        self._staging = staging
        self._pool = pool
        self._clock = clock

    async def place(self, ref: SnapshotRef, shape: InstanceShape, notice_at: Callable[[float], Notice]) -> Placed:
        """Restore ``ref`` into an instance of ``shape`` and carry out the contract.

        ``notice_at``: the notice for a given wall time, asked for at the last moment. The snapshot is untouched
        whatever happens; on failure nothing of the attempt is left.
        Raises: Unsupported (nothing was started), Corrupt, KeyDestroyed, EngineError, GuestError.
        """
        began_s = self._clock.monotonic_s()
        manifest = await self._store.open(ref)
        engine = self._engines.of(str(manifest.requirements["build"]))
        timings: dict[str, float] = {"open": self._ms_since(began_s)}
        async with self._staging.folder() as folder:
            claim = await self._fetch_and_claim(ref, engine, shape, folder, timings)
            for attempt in range(1, ATTEMPTS_MAX + 1):
                instance = claim if attempt == 1 else await self._pool.claim(engine, shape)
                try:
                    live, ready = await self._revive(
                        instance, engine, folder, manifest.requirements, notice_at, timings
                    )
                    break
                except (EngineError, GuestError, DeadlineExceeded):
                    await engine.destroy(instance)
                    if attempt == ATTEMPTS_MAX:
                        raise
                except BaseException:
                    await engine.destroy(instance)
                    raise
            else:
                raise AssertionError("unreachable: the last attempt returns or raises")
        timings["attempts"] = float(attempt)
        timings["total"] = self._ms_since(began_s)
        self._pool.refill(engine, shape)
        return Placed(live, ready, timings)

    async def _fetch_and_claim(
        self, ref: SnapshotRef, engine: Engine, shape: InstanceShape, folder: Path, timings: dict[str, float]
    ) -> InstanceId:
        """Both at once: one waits for the engine, the other for disk and CPU."""
        began_s = self._clock.monotonic_s()

        async def claim() -> InstanceId:
            instance = await self._pool.claim(engine, shape)
            timings["claim"] = self._ms_since(began_s)
            return instance

        async def fetch() -> None:
            manifest = await self._store.open(ref)
            await self._store.read(ref, folder, parts=memory_files(manifest.meta))
            timings["fetch"] = self._ms_since(began_s)

        claimed, fetched = await asyncio.gather(claim(), fetch(), return_exceptions=True)
        if isinstance(fetched, BaseException):
            if not isinstance(claimed, BaseException):
                await engine.destroy(claimed)
            raise fetched
        if isinstance(claimed, BaseException):
            raise claimed
        return claimed

    async def _revive(
        self,
        instance: InstanceId,
        engine: Engine,
        folder: Path,
        requirements: Mapping[str, Any],
        notice_at: Callable[[float], Notice],
        timings: dict[str, float],
    ) -> tuple[Live, ReadyReport]:
        began_s = self._clock.monotonic_s()
        guest = self._dialer.connect(instance, await engine.attach(instance))
        try:
            try:
                async with asyncio.timeout(RESTORE_TIMEOUT_S):
                    await engine.restore(instance, folder, requirements=requirements)
                    await engine.loaded(instance)
            except TimeoutError as error:
                raise DeadlineExceeded(f"cannot restore: no answer within {RESTORE_TIMEOUT_S} s") from error
            timings["restore"] = self._ms_since(began_s)
            notice = notice_at(self._clock.wall_s())
            ready = await guest.proceed(notice)
        except BaseException:
            await guest.close()
            raise
        timings["ready"] = self._ms_since(began_s) - timings["restore"]
        return Live(instance, engine, guest, notice.generation), ready

    def _ms_since(self, began_s: float) -> float:
        return round((self._clock.monotonic_s() - began_s) * 1000, 3)


def memory_files(meta: Mapping[str, Any]) -> frozenset[str]:
    """The parts that a memory restore reads, as the capture noted them."""
    return frozenset(str(name) for name in meta["memory_files"])


async def discard(live: Live) -> TorporError | None:
    """Destroy a placed instance; the error if the engine could not, for the caller to report."""
    await live.guest.close()
    try:
        await live.engine.destroy(live.instance)
    except TorporError as error:
        return error
    return None
