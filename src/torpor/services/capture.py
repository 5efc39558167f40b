"""A running instance becomes a snapshot: quiesce, checkpoint, seal, commit. The instance is left parked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from torpor.domain.ids import SnapshotId, TenantId, id_from_entropy
from torpor.domain.session import SnapshotRecord
from torpor.ports.clock import Clock
from torpor.ports.crash_points import CrashPoint, reach
from torpor.ports.engine import Checkpoint
from torpor.ports.entropy import Entropy
from torpor.ports.staging import Staging
from torpor.services.live import Live
from torpor.services.residents import Residents
from torpor.store.snapshots import PartSource, Resident, SnapshotRef, SnapshotStore, StoredSnapshot, WriteRequest

log = structlog.get_logger()

PAGE_BYTES = 4096
TAR_BLOCK_BYTES = 512
PAGES_SUFFIX = "pages.img"


@dataclass(frozen=True, slots=True)
class CaptureOrder:
    """What to capture and how to name it. ``sequence`` grows with every capture of ``subject``.

    Without ``memory`` the filesystem part alone is captured.
    """

    tenant: TenantId
    subject: str
    sequence: int
    wrapped_key: bytes
    parent: SnapshotRef | None = None
    template: SnapshotRef | None = None
    memory: bool = True
    meta: Mapping[str, Any] = field(default_factory=dict)


class GivenUpError(Exception):
    """The capture was given up because a burst arrived; nothing was lost."""


class Capture:
    """Captures instances of this node. Pages that a template's image in ``residents`` holds are not stored again."""

    def __init__(
        self,
        store: SnapshotStore,
        staging: Staging,
        clock: Clock,
        entropy: Entropy,
        residents: Residents,
    ) -> None:
        self._residents = residents
        self._store = store
        self._staging = staging
        self._clock = clock
        self._entropy = entropy

    async def take(self, live: Live, order: CaptureOrder, give_up: asyncio.Event) -> SnapshotRecord:
        """Capture and commit. Whatever happens, the instance is alive and parked afterwards (or was dead before).

        Raises: GivenUpError; StorageFull, EngineError, GuestError: nothing was committed.
        """
        began_s = self._clock.monotonic_s()
        quiesced = await live.guest.quiesce()
        if quiesced.unparked:
            log.warning("processes did not park", subject=order.subject, pids=quiesced.unparked)
        reach(CrashPoint.CAPTURE_QUIESCED)
        instant_s = self._clock.wall_s()
        timings = {"quiesce": self._ms_since(began_s)}
        async with self._staging.folder() as folder:
            checkpoint = await live.engine.checkpoint(live.instance, folder, memory=order.memory)
            timings["stop"] = self._ms_since(began_s)
            reach(CrashPoint.CAPTURE_CHECKPOINTED)
            timings["checkpoint"] = timings["stop"] - timings["quiesce"]
            timings |= {f"engine_{step}": took for step, took in checkpoint.timings_ms.items()}
            async with self._residents.lent(order.template) as resident:
                request = self._request(order, checkpoint, instant_s, resident)
                stored = await self._store_unless(request, give_up)
        timings |= {f"store_{step}": took for step, took in stored.timings_ms.items()}
        timings["total"] = self._ms_since(began_s)
        timings["seal"] = timings["total"] - timings["stop"]
        return SnapshotRecord(
            ref=stored.ref.to_json(),
            sequence=order.sequence,
            instant_s=instant_s,
            image_bytes=stored.image_bytes,
            new_bytes=stored.new_bytes,
            timings_ms={step: round(took, 3) for step, took in timings.items()},
            engine_build=str(checkpoint.requirements.get("build", "")) if order.memory else "",
        )

    async def _store_unless(self, request: WriteRequest, give_up: asyncio.Event) -> StoredSnapshot:
        """Write the snapshot, but stop as soon as somebody needs the instance back."""
        if give_up.is_set():
            raise GivenUpError
        writing = asyncio.ensure_future(self._store.write(request))
        waiting = asyncio.ensure_future(give_up.wait())
        try:
            await asyncio.wait((writing, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, waiting):
                task.cancel()
            await asyncio.wait((writing, waiting))
        if writing.cancelled():
            raise GivenUpError
        return writing.result()

    def _request(
        self, order: CaptureOrder, checkpoint: Checkpoint, instant_s: float, resident: Resident | None
    ) -> WriteRequest:
        return WriteRequest(
            tenant=order.tenant,
            subject=order.subject,
            snapshot=SnapshotId(id_from_entropy(self._entropy.bytes(20))),
            sequence=order.sequence,
            wrapped_key=order.wrapped_key,
            parts=part_sources(checkpoint),
            parent=order.parent,
            template=order.template,
            requirements=checkpoint.requirements,
            meta={
                **order.meta,
                "instant_s": instant_s,
                "memory_files": list(checkpoint.memory_files),
                "filesystem_file": checkpoint.filesystem_file,
            },
            resident=resident,
        )

    def _ms_since(self, began_s: float) -> float:
        return (self._clock.monotonic_s() - began_s) * 1000


def part_sources(checkpoint: Checkpoint) -> tuple[PartSource, ...]:
    """Both parts' files. Page images are cut at pages, everything else at tar blocks, where its content shifts."""
    names = [*checkpoint.memory_files]
    if checkpoint.filesystem_file is not None:
        names.append(checkpoint.filesystem_file)
    return tuple(
        PartSource(
            name=name,
            path=Path(checkpoint.directory) / name,
            granule_bytes=PAGE_BYTES if name.endswith(PAGES_SUFFIX) else TAR_BLOCK_BYTES,
        )
        for name in names
    )
