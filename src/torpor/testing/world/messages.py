"""Orders down, reports and heartbeats up, over a network that promises nothing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from torpor.domain.ids import SessionId
from torpor.domain.lifecycle import Effect, Report
from torpor.testing.world.conditions import Faults


@dataclass(frozen=True, slots=True)
class Order:
    """``node`` is an address: a node's name and its incarnation. ``sequence``: the snapshot to restore, if any."""

    node: str
    effect: Effect
    session: SessionId
    generation: int
    operation: int
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """A report on its way to one control plane."""

    plane: int
    session: SessionId
    report: Report


@dataclass(frozen=True, slots=True)
class Holding:
    """What a node holds of one session. ``frozen`` None: no instance. ``works``: an order is under way."""

    session: SessionId
    generation: int
    frozen: bool | None
    works: bool
    reports: tuple[Report, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A node's whole condition."""

    plane: int
    node: str
    holdings: tuple[Holding, ...]


Message = Order | Told | Heartbeat


def name_of(address: str) -> str:
    """The node's name in an address."""
    return address.partition(".")[0]


def incarnation_of(address: str) -> int:
    """How often the node had restarted."""
    return int(address.partition(".")[2])


class Network:
    """Loses, delays, repeats and reorders."""

    def __init__(self, random: Random, faults: Faults) -> None:
        self.faults = faults
        self._random = random
        self._due: dict[int, list[Message]] = {}

    def send(self, message: Message, *, tick: int) -> None:
        """On its way; what was sent is not what will arrive."""
        faults, chance = self.faults, self._random.random
        if chance() < faults.loss:
            return
        for _ in range(2 if chance() < faults.repetition else 1):
            late = self._random.randint(1, faults.delay_ticks_max) if chance() < faults.delay else 0
            self._due.setdefault(tick + 1 + late, []).append(message)

    def arrivals(self, tick: int) -> list[Message]:
        """What arrives at ``tick``, in any order."""
        arriving = self._due.pop(tick, [])
        if len(arriving) > 1:
            self._random.shuffle(arriving)
        return arriving
