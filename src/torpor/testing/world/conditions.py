"""What may go wrong in a world, and what protects it. A test removes one protection and expects a violation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities: of a message, of a tick of one part, or of one piece of work."""

    loss: float = 0.15
    repetition: float = 0.1
    delay: float = 0.3
    delay_ticks_max: int = 20
    control_crash: float = 0.02
    node_crash: float = 0.01
    instance_death: float = 0.01
    work_failure: float = 0.1


NO_FAULTS = Faults(
    loss=0.0, repetition=0.0, delay=0.0, control_crash=0.0, node_crash=0.0, instance_death=0.0, work_failure=0.0
)


@dataclass(frozen=True, slots=True)
class Safeguards:
    """The rules that keep a world safe and live, each of which can be left out.

    generation_check, operation_check: a report counts only under the numbers it was ordered with.
    compare_and_swap: who lost the race for a record decides again instead of overwriting it.
    record_before_effects: the record is stored before its effects are performed.
    orders_repeated: an order is repeated until a report ends it.
    reports_restated: a node tells in every heartbeat what its last orders came to.
    orphans_released: a node is told to drop instances that no record is waiting for.
    commits_looked_up: before a node's captures are given up with it, the store is asked for their commits.
    order_fence: a node refuses orders older than the newest it has seen.
    order_memory: a node answers a repeated order with its outcome, and does not do it again.
    incarnation_check: a node refuses orders that were meant for it before it restarted.
    stays_frozen: a captured instance waits for the word of the control plane.
    commit_before_report: a snapshot is told of after the store's pointer moved.
    """

    generation_check: bool = True
    operation_check: bool = True
    compare_and_swap: bool = True
    record_before_effects: bool = True
    orders_repeated: bool = True
    reports_restated: bool = True
    orphans_released: bool = True
    commits_looked_up: bool = True
    order_fence: bool = True
    order_memory: bool = True
    incarnation_check: bool = True
    stays_frozen: bool = True
    commit_before_report: bool = True
