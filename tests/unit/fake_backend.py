"""A backend over a whole fake node: real services, store and catalog; the engine and its guests are fakes."""

from __future__ import annotations

from torpor.adapters.clock.system import SystemClock
from torpor.domain.session import Durability
from torpor.services.maintenance import Maintenance
from torpor.services.shelf import Shelf


class FakeBackend:
    """``apps.api.backend.Backend``, as ``apps.node.Node`` is over a real node."""

    def __init__(self, node, machine) -> None:
        self._node = node
        self.fork = node.services.forks.fork
        origin = (SystemClock(), machine.entropy)
        self.maintenance = Maintenance(node.store, machine.catalog, machine.keys, Durability.DISK, origin)
        self.shelf = Shelf(machine.catalog, machine.catalog, node.store, self._forget)
        self.removed: list[str] = []

    def __getattr__(self, name):
        return getattr(self._node.sessions, name)

    async def templates(self, _tenant):
        return await self._node.templates.list()

    async def health(self):
        return {}

    async def _forget(self, digest):
        self.removed.append(digest)
