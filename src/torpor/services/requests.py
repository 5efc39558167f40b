"""What callers ask of the services, and what they get back. Plain values; nothing here knows HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torpor.domain.session import Persistence, Session
from torpor.ports.guest import BurstResult, Cause

METADATA_ENTRIES_MAX = 64  # of metadata, and of env


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A new session. Its caps are those of the template's golden snapshot (the frozen spec holds them)."""

    template: str = "data"
    name: str | None = None
    persistence: Persistence = Persistence.MEMORY
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resumption:
    """Told with the first result after a placement, so that an agent can refresh its own notion of now.

    ``tier``: what served it (``local`` so far). ``attempts``: restores it took; 2 if the first failed.
    ``dropped``: what was dropped on purpose, a sentence each. ``timings_ms``: request to READY by step
    (``open``, ``claim``, ``fetch``, ``restore``, ``ready``, ``total``; ``store_…``: inside fetch).
    """

    cause: Cause
    gap_s: float
    wall_time_s: float
    tier: str
    generation: int
    attempts: int = 1
    dropped: tuple[str, ...] = ()
    timings_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Burst:
    """How a burst ended, in which session, and whether it had to be woken for it."""

    session: Session
    result: BurstResult
    resumption: Resumption | None = None
