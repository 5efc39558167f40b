"""What callers ask of the services, and what they get back. Plain values; nothing here knows HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torpor.domain.session import Persistence, Policy, Session
from torpor.ports.guest import BurstResult, Cause

METADATA_ENTRIES_MAX = 64  # of metadata, and of env


class Outcome(StrEnum):
    """What a placement brought back."""

    CREATED = "created"  # a clone of its template's golden snapshot
    RESUMED = "resumed"  # memory and disk, as they were
    RESTORED_OLDER = "restored_older"  # memory and disk of an earlier snapshot: what came after it is gone
    RESTORED_FILESYSTEM = "restored_filesystem"  # the disk; processes are new
    STATE_LOST = "state_lost"  # nothing: an ephemeral session that was let go


class Tier(StrEnum):
    """From where a placement was served."""

    WARM = "warm"  # an instance kept frozen in memory
    LOCAL = "local"  # this node's store or cache
    COLD = "cold"  # a shared store


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A new session. Caps that are None are the template's; its disk cannot be of another size than that.

    ``ttl_s``: the hard deadline, from now; it is deleted then, whatever it does.
    """

    template: str = "data"
    name: str | None = None
    persistence: Persistence = Persistence.MEMORY
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    ttl_s: float | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """``count`` copies of a session, each with its own identity. ``names``: none, or one for each."""

    count: int = 1
    names: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClockChange:
    """Clocks to set anew: those named in ``fields``. ``ttl_s`` counts from now; None: no hard deadline."""

    policy: Policy = field(default_factory=Policy)
    ttl_s: float | None = None
    fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Resumption:
    """Told with the first result after a placement, so that an agent can refresh its own notion of now.

    ``tier``: what served it; ``outcome``: what of the session came back, and ``stepped_down``: why not more, a sentence
    for each better way that failed. ``attempts``: restores it took; 2 if the first failed. ``fetched_bytes``: read from
    a shared store for it. ``dropped``: what was dropped on purpose, a sentence each. ``timings_ms``: request to READY
    by step (``open``, ``queue``, ``claim``, ``fetch``, ``restore``, ``ready``, ``total``; ``store_…``: inside fetch).
    What was in memory already, warm or as a clone of its template, has ``ready`` and ``total`` only.
    """

    cause: Cause
    gap_s: float
    wall_time_s: float
    tier: Tier
    generation: int
    outcome: Outcome = Outcome.RESUMED
    attempts: int = 1
    dropped: tuple[str, ...] = ()
    stepped_down: tuple[str, ...] = ()
    fetched_bytes: int = 0
    timings_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Burst:
    """How a burst ended, in which session, and whether it had to be woken for it."""

    session: Session
    result: BurstResult
    resumption: Resumption | None = None
