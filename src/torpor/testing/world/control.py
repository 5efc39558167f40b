"""A control plane: the real table on a real catalog. May stop for good between any two of its steps.

Work is a generator; each ``yield`` is a place where others go on, and where a crash may end it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

from torpor.domain.errors import StaleRevision
from torpor.domain.ids import SessionId, TenantId
from torpor.domain.lifecycle import (
    Accepted,
    Create,
    Deleted,
    Denied,
    Effect,
    Event,
    InstanceLost,
    Report,
    SnapshotStored,
    decide,
)
from torpor.domain.session import PAUSED, TRANSIENT, Durability, Session, SnapshotRecord, Status
from torpor.ports.catalog import Catalog
from torpor.testing.world.conditions import Safeguards
from torpor.testing.world.messages import Heartbeat, Holding, Network, Order, Told, incarnation_of, name_of
from torpor.testing.world.shelf import Shelf
from torpor.testing.world.witness import Witness

RACES_MAX = 20
TENANT = TenantId("world")

_ORDERED = {
    Status.CREATING: Effect.RESTORE,
    Status.RESUMING: Effect.RESTORE,
    Status.SNAPSHOTTING: Effect.CHECKPOINT,
    Status.PAUSING: Effect.CHECKPOINT,
    Status.DELETING: Effect.ERASE,
}
_AT_REST = PAUSED | {Status.LOST, Status.DELETED}

Work = Generator[None, None, None]
Value = TypeVar("Value")


@dataclass(slots=True)
class Surroundings:
    """What all control planes share. ``tick`` is the true time."""

    catalog: Catalog
    network: Network
    shelf: Shelf
    witness: Witness
    safeguards: Safeguards
    random: Random
    node_names: tuple[str, ...]
    tick: int = 0


class ControlPlane:
    """``skew_s``: how far its wall clock is off."""

    def __init__(self, surroundings: Surroundings, *, skew_s: float) -> None:
        self._around = surroundings
        self._skew_s = skew_s
        self._works: list[Work] = []
        self._incarnations: dict[str, int] = {}

    def crash(self) -> None:
        """All work and all that is known of nodes is gone."""
        self._works.clear()
        self._incarnations.clear()

    def step(self) -> None:
        """Take each piece of work one step on, in any order."""
        works, self._works = self._works, []
        if len(works) > 1:
            self._around.random.shuffle(works)
        self._works += [work for work in works if next(work, _DONE) is not _DONE]

    def create(self, record: Session) -> None:
        """A client asks for a session."""
        self._works.append(self._create(record))

    def command(self, session: SessionId, event: Event) -> None:
        """A client asks something of a session."""
        self._works.append(self._apply(session, event))

    def hear(self, message: Told | Heartbeat) -> None:
        """A node says something."""
        if isinstance(message, Told):
            self._works.append(self._apply(message.session, message.report))
        else:
            self._works.append(self._heed(message))

    def drive(self) -> None:
        """Repeat what is under way, bury what died with a node, sweep the store."""
        self._works.append(self._drive())

    def _create(self, record: Session) -> Work:
        stored = _now(self._around.catalog.insert(record))
        self._around.witness.stored(stored)
        yield
        yield from self._apply(record.id, Create())

    def _apply(self, session: SessionId, event: Event) -> Work:
        around, guards = self._around, self._around.safeguards
        for _ in range(RACES_MAX):
            record = _now(around.catalog.get(TENANT, session))
            decision = decide(record, self._as_told(record, event), now_s=around.tick + self._skew_s)
            if isinstance(decision, Denied) and isinstance(event, Report) and guards.operation_check:
                around.witness.denied(session, event, decision.reason)
            if not isinstance(decision, Accepted):
                return
            yield
            changed = self._placed(decision)
            if isinstance(event, Deleted):
                around.shelf.erase(session)
            if not guards.record_before_effects:
                self._perform(changed, decision.effects)
                yield
            if not self._store(changed):
                continue
            yield
            if guards.record_before_effects:
                self._perform(changed, decision.effects)
            return

    def _as_told(self, record: Session, event: Event) -> Event:
        """Without its checks a control plane takes every report for a current one."""
        guards = self._around.safeguards
        if isinstance(event, Report) and not guards.generation_check:
            event = replace(event, generation=record.generation)
        if isinstance(event, Report) and not guards.operation_check:
            event = replace(event, operation=record.operation)
        return event

    def _placed(self, decision: Accepted) -> Session:
        if Effect.RESTORE not in decision.effects:
            return decision.session
        name = self._around.random.choice(self._around.node_names)
        return replace(decision.session, node=f"{name}.{self._incarnations.get(name, 1)}")

    def _store(self, changed: Session) -> bool:
        catalog = self._around.catalog
        try:
            stored = _now(catalog.replace(changed))
        except StaleRevision:
            if self._around.safeguards.compare_and_swap:
                return False
            newest = _now(catalog.get(TENANT, changed.id))
            stored = _now(catalog.replace(replace(changed, revision=newest.revision)))
        self._around.witness.stored(stored)
        return True

    def _perform(self, record: Session, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            self._order(record, effect, record.node)

    def _order(self, record: Session, effect: Effect, node: str, *, generation: int | None = None) -> None:
        if not node:
            return
        order = Order(
            node,
            effect,
            record.id,
            record.generation if generation is None else generation,
            record.operation,
            None if record.snapshot is None else record.snapshot.sequence,
        )
        self._around.network.send(order, tick=self._around.tick)

    def _heed(self, heartbeat: Heartbeat) -> Work:
        name = name_of(heartbeat.node)
        self._incarnations[name] = max(self._incarnations.get(name, 1), incarnation_of(heartbeat.node))
        for holding in heartbeat.holdings:
            for report in holding.reports:
                yield from self._apply(holding.session, report)
            record = _now(self._around.catalog.get(TENANT, holding.session))
            self._reconcile(record, holding, heartbeat.node)

    def _reconcile(self, record: Session, holding: Holding, node: str) -> None:
        current = holding.generation == record.generation and record.node == node
        if current and record.status is Status.RUNNING and holding.frozen:
            self._order(record, Effect.THAW, node)
        if current and holding.works:
            return  # even of a lost session: a capture that outlived its instance may still save it
        over = holding.generation < record.generation or record.status in _AT_REST
        if over and self._around.safeguards.orphans_released:
            self._order(record, Effect.RELEASE, node, generation=holding.generation)

    def _drive(self) -> Work:
        for record in _now(self._around.catalog.page(TENANT)).sessions:
            if record.status is Status.LOST:
                commit = self._commit_of(record)
                if commit is not None:
                    yield from self._apply(record.id, commit)
            elif record.operation == 0:
                yield from self._apply(record.id, Create())
            elif record.status not in _AT_REST and self._is_gone(record.node):
                yield from self._apply(record.id, self._epitaph(record))
            elif record.status in TRANSIENT and self._around.safeguards.orders_repeated:
                self._order(record, _ORDERED[record.status], record.node)
            if record.snapshot is not None:
                self._around.shelf.sweep(record.id, before_sequence=record.snapshot.sequence)

    def _is_gone(self, node: str) -> bool:
        return not node or incarnation_of(node) < self._incarnations.get(name_of(node), 1)

    def _epitaph(self, record: Session) -> Report:
        """What became of a session whose node restarted: its instance died, but perhaps after a commit."""
        if record.status is Status.DELETING:
            return Deleted(record.generation, record.operation)
        lost = InstanceLost(record.generation, record.operation, "node restarted")
        return self._commit_of(record) or lost

    def _commit_of(self, record: Session) -> SnapshotStored | None:
        """The end of the last order, as the store knows it, if the record does not."""
        numbers = (record.generation, record.operation)
        kept = self._around.shelf.commit_of(record.id, *numbers)
        known = 0 if record.snapshot is None else record.snapshot.sequence
        if kept is None or kept.sequence <= known or not self._around.safeguards.commits_looked_up:
            return None
        snapshot = SnapshotRecord({}, kept.sequence, float(kept.sequence), image_bytes=0, new_bytes=0)
        return SnapshotStored(*numbers, snapshot, Durability.OBJECT)


_DONE = object()


def _now(waiting: Coroutine[Any, Any, Value]) -> Value:
    """The value of a coroutine that never waits, as those of the memory catalog do not."""
    try:
        waiting.send(None)
    except StopIteration as done:
        value: Value = done.value
        return value
    raise AssertionError("a world's catalog must not wait")
