"""Clones of golden snapshots, restored ahead of need: a create only has to tell one of them whose it is.

A golden snapshot holds a parked guest. A clone of it that was greeted and not told to go on runs no user code, holds
public template bytes alone, and is nobody's. It is handed over once; all that must be fresh comes with the notice.
It is never frozen, for what runs may not survive the freezer (``Engine.freeze``): it waits, parked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import chain

import structlog

from torpor.domain.errors import TorporError
from torpor.domain.ids import InstanceId, TenantId, id_from_entropy
from torpor.ports.clock import Clock
from torpor.ports.crash_points import CrashPoint, reach
from torpor.ports.engine import InstanceShape, InstanceStatus
from torpor.ports.entropy import Entropy
from torpor.ports.guest import Notice
from torpor.services.admission import Admission
from torpor.services.doomed import Doomed, first_for
from torpor.services.live import Live
from torpor.services.patience import destroy_surely
from torpor.services.placement import OF_THE_MOMENT, REPLENISH_DELAY_S, Placed, Placement, node_bytes
from torpor.services.supervisor import Supervisor
from torpor.store.snapshots import SnapshotRef, SnapshotStore

log = structlog.get_logger()

Key = tuple[SnapshotRef, InstanceShape]
"""What a clone is of. The engine follows from it: a snapshot restores only under the build that made it."""


@dataclass(frozen=True, slots=True)
class Clone:
    """A parked instance that nobody has yet. ``size_bytes``: of its memory image."""

    key: Key
    live: Live
    size_bytes: int


@dataclass(slots=True)
class _Making:
    """One that is being made. ``wanted`` False: destroy it as soon as it is there."""

    instance: InstanceId
    size_bytes: int = 0
    wanted: bool = True


class Clones:
    """At most one clone for each golden snapshot and shape, at most ``budget_bytes`` in all. Budget 0: none, ever.

    A clone is in the making, held, or doomed (to be destroyed); each counts until it is handed over or gone.
    """

    def __init__(
        self,
        placement: Placement,
        store: SnapshotStore,
        admission: Admission,
        origin: tuple[Supervisor, Clock, Entropy],
        *,
        budget_bytes: int,
    ) -> None:
        self._placement = placement
        self._store = store
        self._admission = admission
        self._supervisor, self._clock, self._entropy = origin
        self._budget_bytes = budget_bytes
        self._making: dict[Key, _Making] = {}
        self._held: dict[Key, Clone] = {}  # the longest held first
        self._doomed: Doomed[Clone] = Doomed("clone")  # one that cannot be destroyed stays: ``drain`` tries again
        self._is_closed = False

    @property
    def bytes_held(self) -> int:
        """Memory of everything that is here, also of what is being made or could not be destroyed yet."""
        making_bytes = sum(one.size_bytes for one in self._making.values())
        return making_bytes + sum(one.size_bytes for one in chain(self._held.values(), self._doomed))

    def instances(self) -> frozenset[InstanceId]:
        """All that are here, for reconciliation."""
        making = (one.instance for one in self._making.values())
        return frozenset((*making, *(live.instance for live in self.all_live())))

    def all_live(self) -> tuple[Live, ...]:
        """Instances and guests of those that are made."""
        return tuple(one.live for one in chain(self._held.values(), self._doomed))

    async def place(
        self, tenant: TenantId, ref: SnapshotRef, shape: InstanceShape, notice_at: Callable[[float], Notice]
    ) -> Placed:
        """``Placement.place`` for a golden ``ref``, from a clone if there is a good one. The next one is made later.

        Errors and promises as there. A clone asks for no room: its memory is in the node's figure already, and no image
        lies beside it. It also opens nothing of the store, for its key says all that the manifest would.
        """
        began_s = self._clock.monotonic_s()
        clone = self._held.pop((ref, shape), None)  # without an await: it is handed over once
        placed = None if clone is None else await self._gone_on(clone, notice_at, began_s)
        if placed is None:
            placed = await self._placement.place(tenant, ref, shape, notice_at)
        self.refill(ref, shape, delay_s=REPLENISH_DELAY_S)
        return placed

    def refill(self, ref: SnapshotRef, shape: InstanceShape, *, delay_s: float = 0.0) -> None:
        """Make one in the background after ``delay_s``, unless there is one. Idempotent."""
        key = (ref, shape)
        if self._is_closed or not self._budget_bytes or key in self._held or key in self._making:
            return
        making = self._making[key] = _Making(InstanceId(id_from_entropy(self._entropy.bytes(20))))
        self._supervisor.start(self._make(key, making, delay_s), name=f"clone:{making.instance}")

    async def give_back(self, wanted_bytes: int) -> int:
        """Destroy the longest held until ``wanted_bytes`` are freed, or all; the bytes freed. For admission to ask.

        If all were not enough, what is being made is not kept either.
        """
        if wanted_bytes > sum(one.size_bytes for one in self._held.values()):
            self._unwant(self._making)
        return await self._let_go(first_for(wanted_bytes, self._held.values()))

    async def keep_only(self, goldens: Collection[SnapshotRef]) -> None:
        """Destroy the clones of all other snapshots: their templates were removed, or captured anew since."""
        self._unwant(key for key in self._making if key[0] not in goldens)
        await self._let_go(one for one in self._held.values() if one.key[0] not in goldens)

    async def drain(self) -> None:
        """Destroy everything and make no more. What is being made destroys itself: settle the supervisor after this.

        Residents are dropped only then: a clone that is being made reads from them.
        """
        self._is_closed = True
        self._unwant(self._making)
        self._doom(self._held.values())
        await self._doomed.destroy(self._doomed)

    async def _gone_on(self, clone: Clone, notice_at: Callable[[float], Notice], began_s: float) -> Placed | None:
        """The clone as a session's instance; None, with nothing left of it, if it is good for nothing."""
        live = clone.live
        try:
            if not await self._runs(live):
                self._doomed.add(clone)
                self._supervisor.start(self._doomed.destroy((clone,)), name=f"clone:{live.instance}")
                return None  # it was told nothing: a create need not wait until it is gone
            reach(CrashPoint.RESUME_RESTORED)
            notice = notice_at(self._clock.wall_s())
            ready = await live.guest.proceed(notice)
        except BaseException as error:
            await live.guest.close()
            await destroy_surely(live.engine, live.instance)  # it may have gone on: two of one session must not be
            if not isinstance(error, OF_THE_MOMENT):
                raise
            log.warning("clone not used", instance=live.instance, code=error.code, error=error.message)
            return None
        took_ms = round((self._clock.monotonic_s() - began_s) * 1000, 3)
        timings_ms = {"ready": took_ms, "total": took_ms}
        return Placed(Live(live.instance, live.engine, live.guest, notice.generation), ready, 1, timings_ms)

    async def _runs(self, live: Live) -> bool:
        try:
            return await live.engine.inspect(live.instance) is InstanceStatus.RUNNING
        except TorporError as error:
            log.warning("clone not inspected", instance=live.instance, code=error.code, error=error.message)
            return False

    async def _make(self, key: Key, making: _Making, delay_s: float) -> None:
        try:
            await self._clock.sleep(delay_s)  # the burst that the placement before was for comes first
            clone = await self._made(key, making) if making.wanted else None
        except TorporError as error:  # the next create is placed without
            log.warning("clone not made", instance=making.instance, code=error.code, error=error.message)
            clone = None
        finally:
            del self._making[key]
        if clone is None:
            return
        self._held[key] = clone
        if not making.wanted or self._admission.waiting_count:  # somebody came to need this memory meanwhile
            await self._let_go((clone,))

    async def _made(self, key: Key, making: _Making) -> Clone | None:
        """None if the budget or the node has no room for it: then nothing was started."""
        ref, shape = key
        manifest = await self._store.open(ref)
        making.size_bytes = node_bytes(manifest)  # its bytes count from here on
        if not await self._has_made_room(making):
            return None
        with self._admission.spare(making.size_bytes) as is_granted:
            if not is_granted:
                return None
            live = await self._placement.prepare(making.instance, ref, manifest, shape)
        return Clone(key, live, making.size_bytes)

    async def _has_made_room(self, making: _Making) -> bool:
        """Let the longest held go as far as the budget asks for it; False, with none gone, if that is not enough."""
        excess_bytes = self.bytes_held - self._budget_bytes
        if excess_bytes > sum(one.size_bytes for one in self._held.values()):
            return False
        await self._let_go(first_for(excess_bytes, self._held.values()))
        return making.wanted and self.bytes_held <= self._budget_bytes

    def _unwant(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._making[key].wanted = False

    async def _let_go(self, chosen: Iterable[Clone]) -> int:
        """Destroy some that are held; the bytes freed."""
        return await self._doomed.destroy(self._doom(chosen))

    def _doom(self, chosen: Iterable[Clone]) -> tuple[Clone, ...]:
        """Before the first await: nobody can be given them any more, and they stay known until they are gone."""
        doomed = tuple(chosen)
        for clone in doomed:
            del self._held[clone.key]
            self._doomed.add(clone)
        return doomed
