"""A snapshot store over any adapters, with the defaults that tests want: what a test sets is what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.adapters.keys.memory import MemoryKeys
from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.ids import DEFAULT_TENANT, SnapshotId, TenantId
from torpor.domain.snapshot import SnapshotRef
from torpor.ports.keys import KeyStore, NewKey
from torpor.ports.objects import ObjectStore
from torpor.store.snapshots import PartSource, ReadOptions, Resident, SnapshotStore, StoredSnapshot, WriteRequest


class StoreBench:
    """A store, its ports, and files to store, under ``folder``. Equal seeds write equal bytes."""

    def __init__(
        self, folder: Path, *, objects: ObjectStore | None = None, keys: KeyStore | None = None, seed: int = 0
    ) -> None:
        self.folder = folder
        self.entropy = SeededEntropy(seed)
        self.objects: ObjectStore = MemoryObjects() if objects is None else objects
        self.keys: KeyStore = MemoryKeys(self.entropy) if keys is None else keys
        self.store = SnapshotStore(self.objects, self.keys, self.entropy, SystemClock())
        self._made: dict[tuple[TenantId, str], NewKey] = {}

    async def key(self, tenant: TenantId, subject: str) -> NewKey:
        """The subject's key, made at the first call."""
        if (tenant, subject) not in self._made:
            self._made[tenant, subject] = await self.keys.create(tenant, subject)
        return self._made[tenant, subject]

    async def request(
        self,
        parts: Mapping[str, bytes],
        *,
        subject: str = "session",
        sequence: int = 1,
        parent: SnapshotRef | None = None,
        template: SnapshotRef | None = None,
        **other: Any,  # noqa: ANN401 - further fields of WriteRequest
    ) -> WriteRequest:
        """A request to store these bytes; names that end in ``.tar`` are cut at 512 bytes."""
        tenant = other.pop("tenant", DEFAULT_TENANT)
        sources = []
        for name, data in parts.items():
            path = self.folder / f"source-{name}"
            path.write_bytes(data)
            sources.append(PartSource(name, path, 512 if name.endswith(".tar") else 4096))
        fields: dict[str, Any] = {
            "snapshot": SnapshotId(f"snapshot-{sequence}"),
            "requirements": {},
            "meta": {},
            **other,
        }
        if "wrapped_key" not in fields:
            fields["wrapped_key"] = (await self.key(tenant, subject)).wrapped
        return WriteRequest(
            tenant=tenant,
            subject=subject,
            sequence=sequence,
            parts=tuple(sources),
            parent=parent,
            template=template,
            **fields,
        )

    async def write(self, parts: Mapping[str, bytes], **other: Any) -> StoredSnapshot:  # noqa: ANN401 - as request
        """Store these bytes."""
        return await self.store.write(await self.request(parts, **other))

    async def resident(self, ref: SnapshotRef) -> Resident:
        """A snapshot held open in memory, all parts of it, with its pages indexed."""
        manifest = await self.store.open(ref)
        report = await self.store.read(ref, self.folder / f"resident-{ref.digest}")
        return Resident.indexed(manifest, self.folder / f"resident-{ref.digest}", frozenset(report.files))

    async def read(self, ref: SnapshotRef, *, resident: Resident | None = None) -> dict[str, bytes]:
        """All parts of a snapshot, by name."""
        report = await self.store.read(ref, self.folder / "back", options=ReadOptions(resident=resident))
        return {name: path.read_bytes() for name, path in report.files.items()}

    async def assert_clean(self) -> None:
        """The end of every store test: whatever happened, all that is named is there and authentic."""
        report = await self.store.check()
        assert report.clean, report.problems
