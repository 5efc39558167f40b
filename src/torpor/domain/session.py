"""The durable record of a session, and the values in it. Immutable; changed only through ``lifecycle.decide``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torpor.domain.ids import InstanceId, SessionId, TenantId


class Status(StrEnum):
    """Where a session stands. Participles pass; adjectives last."""

    CREATING = "creating"
    RUNNING = "running"
    SNAPSHOTTING = "snapshotting"
    PAUSING = "pausing"
    PAUSED_LOCAL = "paused_local"
    PAUSED_DURABLE = "paused_durable"
    RESUMING = "resuming"
    LOST = "lost"
    DELETING = "deleting"
    DELETED = "deleted"

    @property
    def public(self) -> str:
        """The word clients see: both paused statuses read ``paused``, beside a durability."""
        return "paused" if self in PAUSED else self.value


TIMELINE_MAX = 24
PAUSED = frozenset({Status.PAUSED_LOCAL, Status.PAUSED_DURABLE})
TRANSIENT = frozenset({Status.CREATING, Status.SNAPSHOTTING, Status.PAUSING, Status.RESUMING, Status.DELETING})


class Durability(StrEnum):
    """Where the newest snapshot is safe."""

    CACHE = "cache"  # this node's memory
    DISK = "disk"  # this node's store
    OBJECT = "object"  # a shared store: any node can resume it


class Persistence(StrEnum):
    """What survives a pause."""

    MEMORY = "memory"  # processes and disk
    FILESYSTEM = "filesystem"  # the disk; processes start anew
    EPHEMERAL = "ephemeral"  # nothing: the next use starts from the template


class DeadlineAction(StrEnum):
    """What the end of the run deadline does."""

    PAUSE = "pause"
    KILL = "kill"  # delete the session


class OnResume(StrEnum):
    """How a paused session comes back."""

    RESUME = "resume"
    REBUILD = "rebuild"  # from its log; not offered yet


CPUS_MIN = 0.01
MEMORY_BYTES_MIN = 64 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps of an instance, for a session's whole life. ``cpus`` and ``memory_bytes`` may be other than its template's.

    The others are part of the frozen spec.
    """

    cpus: float = 2.0
    memory_bytes: int = 1024 * 1024 * 1024
    disk_bytes: int = 1024 * 1024 * 1024
    pids_max: int = 512


DAY_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Policy:
    """How a session's clocks are set. None: that clock never ends.

    ``idle_s``: pause after so long without work. ``timeout_s``: run time until ``timeout_action``; stands still while
    paused, and once spent is granted anew by the next resume. ``retention_s``: how long a paused session is kept.
    """

    idle_s: float | None = 30.0
    timeout_s: float | None = None
    timeout_action: DeadlineAction = DeadlineAction.PAUSE
    retention_s: float | None = 30 * DAY_S
    on_resume: OnResume = OnResume.RESUME


@dataclass(frozen=True, slots=True)
class Moment:
    """A line of a session's timeline: where it came to stand, when, and why."""

    at_s: float
    status: Status
    event: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """What the catalog keeps of the newest snapshot. ``ref``: the store's reference as JSON; enough to open it.

    ``image_bytes``: both parts, unpacked. ``new_bytes``: what writing it added to the store.
    ``instant_s``: wall time of the frozen instant. ``engine_build``: the build that alone restores its memory; empty in
    records of before it was noted, and where there is no memory.
    """

    ref: Mapping[str, str | int]
    sequence: int
    instant_s: float
    image_bytes: int
    new_bytes: int
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    engine_build: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """The record.

    ``revision`` is the catalog's compare-and-swap token; ``generation`` the fencing token, new at each placement;
    ``operation`` the number of the last order, so that a late report cannot end a newer order.
    ``compute_s``: seconds an instance of it existed and was not paused, up to ``running_since_s``.
    ``wrapped_key``: base64. ``ordered_at_s``: when the last order was given.
    ``run_deadline_at_s`` stands while it runs, ``run_left_s`` while it does not (``domain.clocks``).
    ``distrusts_snapshot``: it came back without some of what is stored of ``snapshot``, which could not be read, so the
    next one must share nothing with it.
    ``forked_from``: the session it was forked from. ``timeline``: its last ``TIMELINE_MAX`` transitions, oldest first.
    """

    id: SessionId
    tenant: TenantId
    template: str
    template_digest: str
    created_at_s: float
    name: str | None = None
    status: Status = Status.CREATING
    persistence: Persistence = Persistence.MEMORY
    limits: Limits = field(default_factory=Limits)
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0
    generation: int = 0
    operation: int = 0
    wrapped_key: str = ""
    node: str = ""
    instance: InstanceId | None = None
    snapshot: SnapshotRecord | None = None
    distrusts_snapshot: bool = False
    durability: Durability | None = None
    paused_at_s: float | None = None
    running_since_s: float | None = None
    ordered_at_s: float = 0.0
    compute_s: float = 0.0
    cpu_s: float = 0.0
    resumes_count: int = 0
    last_error: str | None = None
    last_error_code: str | None = None
    last_timings_ms: Mapping[str, float] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    hard_deadline_at_s: float | None = None
    run_deadline_at_s: float | None = None
    run_left_s: float | None = None
    lost_at_s: float | None = None
    expiry_warned_at_s: float | None = None
    forked_from: SessionId | None = None
    timeline: tuple[Moment, ...] = ()

    @property
    def machine_id(self) -> str:
        """32 hex digits, stable over the session's life, distinct per session."""
        return "".join(f"{byte:02x}" for byte in self.id.encode()[:16])

    @property
    def hostname(self) -> str:
        """The name the guest goes by."""
        return self.name or self.id
