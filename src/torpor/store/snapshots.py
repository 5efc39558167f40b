"""The façade: all that other rooms call. Reading order of the docstrings is the order of a snapshot's life."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from pathlib import Path

from torpor.domain.ids import TenantId
from torpor.domain.snapshot import Manifest, SnapshotRef
from torpor.ports.clock import Clock
from torpor.ports.entropy import Entropy
from torpor.ports.keys import KeyStore
from torpor.ports.objects import ObjectStore
from torpor.store.check import check_store
from torpor.store.forking import ForkRequest, fork_snapshot
from torpor.store.layout import subject_prefix
from torpor.store.outside import Outside
from torpor.store.reader import read_snapshot
from torpor.store.removal import Shredded, delete_snapshot, delete_subject
from torpor.store.requests import (
    CheckReport,
    PartSource,
    Problem,
    ProblemKind,
    ReadOptions,
    ReadReport,
    StoredSnapshot,
    WriteRequest,
)
from torpor.store.resident import Resident
from torpor.store.survey import HeadChoice, SubjectHead, SubjectWithoutHead, history, survey_subjects
from torpor.store.sweep import SweepReport, SweepRequest, sweep_store
from torpor.store.transfer import Exported, ImportRequest, export_snapshot, import_snapshot
from torpor.store.writer import write_snapshot

__all__ = [
    "CheckReport",
    "Exported",
    "ForkRequest",
    "HeadChoice",
    "ImportRequest",
    "Manifest",
    "PartSource",
    "Problem",
    "ProblemKind",
    "ReadOptions",
    "ReadReport",
    "Resident",
    "Shredded",
    "SnapshotRef",
    "SnapshotStore",
    "StoredSnapshot",
    "SubjectHead",
    "SubjectWithoutHead",
    "SweepReport",
    "SweepRequest",
    "WriteRequest",
]

PLAIN_READ = ReadOptions()
PLAIN_SWEEP = SweepRequest()


class SnapshotStore:
    """Sealed snapshots over an object store and a key store. Holds no state, thread or file between calls.

    Calls may run at once, also from other processes on the same stores; two writers of one subject race for its head
    and one of them loses with StaleRevision. ``workers``: threads of one call; 0: none, all on the event
    loop, for simulations. One call holds below 200 MB, whatever the image's size. Every method may raise Unavailable:
    repeat the call.
    """

    def __init__(
        self, objects: ObjectStore, keys: KeyStore, entropy: Entropy, clock: Clock, *, workers: int = 2
    ) -> None:
        assert workers >= 0
        self._outside = Outside(objects, keys, entropy, clock, workers)

    async def write(self, request: WriteRequest) -> StoredSnapshot:
        """Store files as a snapshot; on return it is durable and the subject's head points to it.

        Idempotent for one snapshot id and sequence: a repeated call after success answers without writing. On any
        error the head is where it was, and nothing visible is left but, after a lost answer, unreferenced objects.

        Raises: InvalidArgument; StaleRevision if the head is at this sequence or later; StorageFull; KeyDestroyed and
        NotFound for the subject's, the parent's or the template's key; Corrupt if parent or template is.
        """
        return await write_snapshot(self._outside, request)

    async def fork(self, request: ForkRequest) -> StoredSnapshot:
        """Store an existing snapshot under another subject, whose head then points to it; only a manifest is written.

        On return the fork is durable and independent: its source, snapshot or subject, may be removed at any time.
        Idempotent for one snapshot id and sequence, as ``write`` is; on any error the head is where it was.

        Raises: InvalidArgument; StaleRevision if the head is at this sequence or later; NotFound and KeyDestroyed if
        the source is gone or goes meanwhile, or for the subject's key; Corrupt if the source is; StorageFull.
        """
        return await fork_snapshot(self._outside, request)

    def export(self, ref: SnapshotRef, passphrase: str) -> AsyncIterator[bytes]:
        """The snapshot as a stream for one file that opens with the passphrase alone; all its chunks are in it.

        Raises, while it is read: InvalidArgument for a short passphrase; as ``open`` and ``read``.
        """
        return export_snapshot(self._outside, ref, passphrase)

    async def import_(
        self,
        stream: AsyncIterator[bytes],
        passphrase: str,
        admit: Callable[[Exported], Awaitable[ImportRequest]],
    ) -> StoredSnapshot:
        """Store an exported snapshot under a subject that has none; on any error nothing of it is left.

        ``admit`` is told what the file holds before any of it is stored, and says where it goes, or raises.
        Raises: InvalidArgument for a wrong passphrase or another kind of file; Corrupt for one that was cut or
        altered; Unsupported for a newer format; Conflict if the subject has snapshots; StorageFull.
        """
        return await import_snapshot(self._outside, stream, passphrase, admit)

    async def open(self, ref: SnapshotRef) -> Manifest:
        """The manifest that ``ref`` names: authentic, of that tenant, with that digest.

        Raises: NotFound; Corrupt; KeyDestroyed; Unsupported for a newer format.
        """
        return await self._outside.manifests.open(ref)

    async def read(
        self,
        ref: SnapshotRef,
        into: Path,
        *,
        parts: Collection[str] | None = None,
        options: ReadOptions = PLAIN_READ,
    ) -> ReadReport:
        """Write parts (all, if None) as files ``into``/NAME of mode 0600, replacing any; zeros become holes.

        The files are plaintext and not synced: ``into`` should be a memory-backed folder. On failure none is left.
        Raises: InvalidArgument for an unknown part; StorageFull for ``into``; as ``open`` for the rest.
        """
        return await read_snapshot(self._outside, ref, into, parts=parts, options=options)

    async def head(self, tenant: TenantId, subject: str) -> SnapshotRef | None:
        """The subject's newest snapshot, from its pointer; None if it has none. Raises: Corrupt."""
        return await self._outside.heads.read(tenant, subject)

    async def history(self, tenant: TenantId, subject: str) -> Sequence[SnapshotRef]:
        """The subject's snapshots, newest first; the second is what a failure may fall back to if the caller allows it.

        Not opened. Raises: Corrupt.
        """
        return await history(self._outside, tenant, subject, subject_prefix(tenant, subject))

    def subjects(self) -> AsyncIterator[SubjectHead | SubjectWithoutHead]:
        """Every subject of the store with the snapshot that counts, opened; the rule is in ``store.survey``.

        Shredded subjects come as such. Changes nothing.
        """
        return survey_subjects(self._outside)

    async def collect_garbage(self, request: SweepRequest = PLAIN_SWEEP) -> SweepReport:
        """Remove what nothing needs and has not needed for the grace; the rules are in ``store.garbage``.

        Safe beside writers, readers and other collections, and to be killed anywhere. A dry run changes nothing.
        Raises: Conflict if another collection ran meanwhile: nothing was removed.
        """
        return await sweep_store(self._outside, request)

    async def check(self, tenant: TenantId | None = None) -> CheckReport:
        """Verify one tenant's snapshots, or all, end to end: every chunk is decrypted and hashed. Changes nothing.

        What is wrong is in the report, not raised.
        """
        return await check_store(self._outside, tenant)

    async def delete_snapshot(self, ref: SnapshotRef) -> None:
        """Remove a snapshot's pointer and manifest; its packs are left to garbage collection. Idempotent.

        If it is the head, the head goes back to the newest older one. The caller must be the subject's only writer.
        Raises: Conflict if the head moved meanwhile.
        """
        await delete_snapshot(self._outside, ref)

    async def delete_subject(self, tenant: TenantId, subject: str) -> Shredded:
        """Destroy the subject's key, which makes its snapshots unreadable at once; then remove its objects. Idempotent.

        The shred is complete on return, and for good: neither old object versions nor old catalogs undo it. Packs that
        a fork or a clone names stay, and their relatives can read them: they hold the keys of their chunks.
        """
        return await delete_subject(self._outside, tenant, subject)
