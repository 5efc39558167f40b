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


PAUSED = frozenset({Status.PAUSED_LOCAL, Status.PAUSED_DURABLE})
TRANSIENT = frozenset({Status.CREATING, Status.SNAPSHOTTING, Status.PAUSING, Status.RESUMING, Status.DELETING})


class Durability(StrEnum):
    """Where the newest snapshot is safe."""

    CACHE = "cache"  # this node's memory
    DISK = "disk"  # this node's store
    OBJECT = "object"  # a shared store: any node can resume it


class Persistence(StrEnum):
    """What survives a pause. Only ``memory`` is offered so far."""

    MEMORY = "memory"
    FILESYSTEM = "filesystem"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps of an instance. Part of the frozen spec, so they cannot change over a session's life."""

    cpus: float = 2.0
    memory_bytes: int = 1024 * 1024 * 1024
    disk_bytes: int = 1024 * 1024 * 1024
    pids_max: int = 512


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """What the catalog keeps of the newest snapshot. ``ref``: the store's reference as JSON; enough to open it.

    ``image_bytes``: both parts, unpacked. ``new_bytes``: what writing it added to the store.
    ``instant_s``: wall time of the frozen instant.
    """

    ref: Mapping[str, str | int]
    sequence: int
    instant_s: float
    image_bytes: int
    new_bytes: int
    timings_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Session:
    """The record.

    ``revision`` is the catalog's compare-and-swap token; ``generation`` the fencing token, new at each placement;
    ``operation`` the number of the last order, so that a late report cannot end a newer order.
    ``compute_s``: seconds an instance of it existed and was not paused, up to ``running_since_s``.
    ``wrapped_key``: base64. ``ordered_at_s``: when the last order was given.
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

    @property
    def machine_id(self) -> str:
        """32 hex digits, stable over the session's life, distinct per session."""
        return "".join(f"{byte:02x}" for byte in self.id.encode()[:16])

    @property
    def hostname(self) -> str:
        """The name the guest goes by."""
        return self.name or self.id
