"""One server of a world: the real services, composed over ports that fail, in a process that may die."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from torpor.adapters.engines.fake import FakeEngine
from torpor.domain.session import Session
from torpor.ports.catalog import Catalog
from torpor.services.composition import Services
from torpor.services.supervisor import Supervisor
from torpor.testing.fake_guest import FakeGuestProgram
from torpor.testing.node import PROGRAM, FakeMachine, Outside, assemble
from torpor.testing.world.loop import LoopClock
from torpor.testing.world.ports import Fate, FatedStaging, behind
from torpor.testing.world.process import Process
from torpor.testing.world.witness import Witness

LOOK_EVERY_S = 2.0


class WitnessedCatalog:
    """A catalog that tells the witness of every record that was written, also of one whose answer is lost."""

    def __init__(self, catalog: Catalog, witness: Witness) -> None:
        self._catalog = catalog
        self._witness = witness

    async def insert(self, session: Session) -> Session:
        """See the port."""
        stored = await self._catalog.insert(session)
        await self._witness.stored(stored)
        return stored

    async def replace(self, session: Session) -> Session:
        """See the port."""
        stored = await self._catalog.replace(session)
        await self._witness.stored(stored)
        return stored

    def __getattr__(self, name: str) -> object:
        return getattr(self._catalog, name)


class Server:
    """``services`` serve once ``boot`` has returned."""

    def __init__(
        self,
        process: Process,
        machine: FakeMachine,
        witness: Witness,
        place: tuple[Fate, Path],
        settings: tuple[LoopClock, int, int],
    ) -> None:
        fate, staging = place
        clock, warm_bytes, clone_bytes = settings
        self.process = process
        self.clock = clock
        self._supervisor = Supervisor()
        engine = FakeEngine({PROGRAM: FakeGuestProgram}, clock, host=machine.host)
        self.outside = Outside(
            engine=behind(fate, "engine", engine),
            objects=behind(fate, "objects", machine.objects),
            keys=behind(fate, "keys", machine.key_store()),
            catalog=behind(fate, "catalog", cast("Catalog", WitnessedCatalog(machine.catalog, witness))),
            staging=FatedStaging(fate, staging),
            clock=clock,
            entropy=machine.entropy,
            build="fake-1",
            store_workers=0,
            warm_bytes=warm_bytes,
            clone_bytes=clone_bytes,
        )
        self.services: Services = assemble(self.outside, self._supervisor)

    async def boot(self) -> None:
        """What a start does before it serves. Raises: TorporError: the server does not come up."""
        await self.services.reconciler.run()

    async def serve(self) -> None:
        """The clocks are looked at for as long as the process lives; less often than in earnest, which costs seeds."""
        while True:
            await self.services.clockwork.look_at_records()
            await self.services.clockwork.look_at_activity()
            await self.clock.sleep(LOOK_EVERY_S)
