"""One history: faults first, for safety; then none, for liveness."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from torpor.adapters.catalog.memory import MemoryCatalog
from torpor.domain.ids import SessionId
from torpor.domain.lifecycle import Command, Delete, Pause, Report, Resume, Snapshot, Wake
from torpor.domain.session import Session, Status
from torpor.testing.world.conditions import NO_FAULTS, Faults, Safeguards
from torpor.testing.world.control import TENANT, ControlPlane, Surroundings
from torpor.testing.world.messages import Network, Order, Told, name_of
from torpor.testing.world.node import Node
from torpor.testing.world.shelf import Shelf
from torpor.testing.world.witness import Violation, Witness

FAULTY_TICKS = 80
QUIET_TICKS_MAX = 120
SETTLED_TICKS = 6
SESSIONS_MAX = 4
HEARTBEAT_TICKS = 5
DRIVE_TICKS = 4
COMMAND_CHANCE = 0.25

_COMMANDS: tuple[Callable[[], Command], ...] = (
    Pause,
    Pause,
    Pause,
    Wake,
    Wake,
    Wake,
    Snapshot,
    Resume,
    lambda: Resume(allow_older=True),
)
DELETE_CHANCE = 0.05
CREATE_CHANCE = 0.1


class World:
    """Two control planes, two nodes, a few sessions; everything follows from ``seed``. ``tell`` hears the story."""

    def __init__(
        self,
        seed: int,
        *,
        faults: Faults | None = None,
        safeguards: Safeguards | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._random = Random(seed)
        self._faults = faults or Faults()
        self._tell = tell
        guards = safeguards or Safeguards()
        network, shelf = Network(self._random, self._faults), Shelf()
        self.nodes = tuple(Node(name, shelf, self._random, guards) for name in ("n1", "n2"))
        self.witness = Witness(shelf, self.nodes, self._story)
        names = tuple(node.name for node in self.nodes)
        self._around = Surroundings(MemoryCatalog(), network, shelf, self.witness, guards, self._random, names)
        self.planes = tuple(ControlPlane(self._around, skew_s=skew_s) for skew_s in (0.0, -3.0))
        for node in self.nodes:
            node.starts, node.tell = self.witness.starts, self._report
        self._created_count = 0

    def run(self) -> None:
        """The whole history. Raises: Violation."""
        for _ in range(FAULTY_TICKS):
            self._commands()
            self._crashes()
            self._step()
        self._faults = self._around.network.faults = NO_FAULTS
        self._story("no more faults")
        settled_ticks = 0
        for _ in range(QUIET_TICKS_MAX):
            self._step()
            settled_ticks = settled_ticks + 1 if self.witness.unsettled() is None else 0
            if settled_ticks == SETTLED_TICKS:
                return
        raise self.witness.unsettled() or Violation("the world does not come to rest")

    def _commands(self) -> None:
        chance = self._random.random
        plane = self._random.choice(self.planes)
        if not self._created_count or (self._created_count < SESSIONS_MAX and chance() < CREATE_CHANCE):
            session = SessionId(f"s{self._created_count:019d}")
            self._created_count += 1
            plane.create(Session(session, TENANT, "data", "b3:0", created_at_s=self._around.tick))
        elif self.witness.records and chance() < COMMAND_CHANCE:
            # Twice as likely to one that is there; a deleted one is asked too.
            alive = [record.id for record in self.witness.records.values() if record.status is not Status.DELETED]
            session = self._random.choice([*alive, *self.witness.records])
            command = Delete() if chance() < DELETE_CHANCE else self._random.choice(_COMMANDS)()
            self._story("client: %s %s", session, command)
            plane.command(session, command)

    def _crashes(self) -> None:
        for plane in self.planes:
            if self._random.random() < self._faults.control_crash:
                self._story("a control plane crashes")
                plane.crash()
        for node in self.nodes:
            if self._random.random() < self._faults.node_crash:
                self._story("%s crashes", node.address)
                node.crash()

    def _step(self) -> None:
        self._around.tick += 1
        tick = self._around.tick
        for message in self._around.network.arrivals(tick):
            self._story("arrives: %s", message)
            if isinstance(message, Order):
                for node in self.nodes:
                    if node.name == name_of(message.node):
                        node.receive(message, tick=tick)
            else:
                self.planes[message.plane].hear(message)
        for node in self.nodes:
            node.step(self._faults, tick=tick)
        if tick % HEARTBEAT_TICKS == 0:
            self._beat(tick)
        for index, plane in enumerate(self.planes):
            if (tick + index * 2) % DRIVE_TICKS == 0:
                plane.drive()
            plane.step()
        self.witness.check()

    def _beat(self, tick: int) -> None:
        for node in self.nodes:
            for index in range(len(self.planes)):
                self._around.network.send(node.heartbeat(index), tick=tick)

    def _report(self, session: SessionId, report: Report) -> None:
        plane = self._random.randrange(len(self.planes))
        self._around.network.send(Told(plane, session, report), tick=self._around.tick)

    def _story(self, line: str, *details: object) -> None:
        if self._tell is not None:
            self._tell(f"{self._around.tick:4} {line % details if details else line}")
