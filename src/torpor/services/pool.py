"""Created sandboxes ahead of need, frozen so that they use no CPU: creation is off the path of a resume."""

from __future__ import annotations

from torpor.domain.errors import TorporError
from torpor.domain.ids import InstanceId, id_from_entropy
from torpor.ports.engine import Engine, InstanceShape
from torpor.ports.entropy import Entropy
from torpor.services.patience import destroy_surely
from torpor.services.supervisor import Supervisor


class Pool:
    """At most ``size`` ready instances per shape and at most ``size_total`` in all, the newest shapes first."""

    def __init__(self, supervisor: Supervisor, entropy: Entropy, *, size: int = 1, size_total: int = 4) -> None:
        self._supervisor = supervisor
        self._entropy = entropy
        self._size = size
        self._size_total = size_total
        self._ready: dict[tuple[int, InstanceShape], list[InstanceId]] = {}
        self._making: dict[InstanceId, tuple[int, InstanceShape]] = {}
        self._engines: dict[InstanceId, Engine] = {}
        self._dropped: dict[InstanceId, Engine] = {}  # ours until they are gone

    async def claim(self, engine: Engine, shape: InstanceShape) -> InstanceId:
        """A created, thawed instance of ``shape``: a ready one, else a new one."""
        ready = self._ready.get((id(engine), shape))
        if ready:
            instance = ready.pop()
            self._engines.pop(instance, None)
            try:
                await engine.thaw(instance)
            except TorporError:
                await destroy_surely(engine, instance)  # it died while it waited; a new one is as good
            else:
                return instance
        instance = self.new_id()
        await engine.create(instance, shape)
        return instance

    def refill(self, engine: Engine, shape: InstanceShape) -> None:
        """Make one more in the background. Called when a placement is over, not before.

        If there is no room, one goes of the shape that was asked for longest ago; if all are in the making, nothing is
        made.
        """
        key = (id(engine), shape)
        held = len(self._ready.get(key, ())) + sum(1 for made in self._making.values() if made == key)
        self._ready[key] = self._ready.pop(key, [])  # last in order: the latest that was asked for
        if held >= self._size:
            return
        if len(self._engines) + len(self._making) >= self._size_total:
            oldest = next((ready for ready in self._ready.values() if ready), None)
            if oldest is None:
                return
            dropped = oldest.pop(0)
            self._dropped[dropped] = self._engines.pop(dropped)
            self._supervisor.start(self._drop(dropped), name=f"pool:{dropped}")
        instance = self.new_id()
        self._making[instance] = key
        self._supervisor.start(self._make(engine, shape, instance), name=f"pool:{instance}")

    async def _drop(self, instance: InstanceId) -> None:
        await destroy_surely(self._dropped[instance], instance)
        self._dropped.pop(instance, None)

    async def _make(self, engine: Engine, shape: InstanceShape, instance: InstanceId) -> None:
        try:
            await engine.create(instance, shape)
            await engine.freeze(instance)
            self._ready.setdefault((id(engine), shape), []).append(instance)
            self._engines[instance] = engine
        except TorporError:
            await destroy_surely(engine, instance)
            raise
        finally:
            self._making.pop(instance, None)

    def instances(self) -> frozenset[InstanceId]:
        """All that the pool holds, is making or destroys."""
        return frozenset(self._engines) | frozenset(self._making) | frozenset(self._dropped)

    async def drain(self) -> None:
        """Destroy what is ready."""
        held, self._engines, self._ready = {**self._engines, **self._dropped}, {}, {}
        self._dropped.clear()
        for instance, engine in held.items():
            await destroy_surely(engine, instance)

    def new_id(self) -> InstanceId:
        """An id for an instance that is not of the pool."""
        return InstanceId(id_from_entropy(self._entropy.bytes(20)))
