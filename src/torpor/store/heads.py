"""The pointer of a subject: read, move forward, move back on removal. Every change is a compare-and-swap."""

from __future__ import annotations

from torpor.domain.errors import Conflict, NotFound, StaleRevision, StorageFull, Unavailable
from torpor.domain.ids import TenantId, id_from_entropy
from torpor.domain.snapshot import SnapshotRef
from torpor.ports.entropy import Entropy
from torpor.ports.objects import ObjectStore
from torpor.store.format.pointer import Pointer, decode_pointer, encode_pointer
from torpor.store.layout import head_key

ATTEMPT_COUNT_MAX = 8


class Heads:
    """Pointers in an object store. Safe against other processes that use the same store."""

    def __init__(self, objects: ObjectStore, entropy: Entropy) -> None:
        self._objects = objects
        self._entropy = entropy

    async def read(self, tenant: TenantId, subject: str) -> SnapshotRef | None:
        """Where the pointer points; None if there is none. Raises: Corrupt."""
        pointer, _ = await self._read(head_key(tenant, subject))
        return pointer.ref if pointer else None

    async def advance(self, ref: SnapshotRef) -> int:
        """Point to ``ref``, durably, and never backwards; the number of bytes written (0 if it points there already).

        Raises: StaleRevision if it points to this sequence or a later one; Unavailable: repeat.
        """
        for _ in range(ATTEMPT_COUNT_MAX):
            pointer, etag = await self._read(head_key(ref.tenant, ref.subject))
            if pointer and pointer.ref == ref:
                return 0
            if pointer and pointer.ref.sequence >= ref.sequence:
                raise stale(ref.subject, sequence=ref.sequence, head=pointer.ref)
            if size_bytes := await self._swap(ref, etag=etag):
                return size_bytes
        raise Unavailable(f"cannot move the head of {ref.subject}: others moved it {ATTEMPT_COUNT_MAX} times meanwhile")

    async def retreat(self, ref: SnapshotRef, *, to: SnapshotRef | None) -> None:
        """If the pointer is at ``ref``, point to the older ``to`` instead, or to nothing. Raises: Conflict if it moved.

        Removal to nothing is not conditional: the port has no such call. The caller must be the subject's only writer.
        """
        pointer, etag = await self._read(head_key(ref.tenant, ref.subject))
        if pointer is None or pointer.ref != ref:
            return
        if to is None:
            await self._objects.delete(head_key(ref.tenant, ref.subject))
        elif not await self._swap(to, etag=etag):
            raise Conflict(
                f"cannot remove snapshot {ref.snapshot}: the head of {ref.subject} moved meanwhile", reason="head_moved"
            )

    async def _swap(self, ref: SnapshotRef, *, etag: str | None) -> int:
        """One conditional write: its size, or 0 if it was lost.

        A lost answer may hide our success, and a refusal may come from it: both are read back.
        """
        key = head_key(ref.tenant, ref.subject)
        write = id_from_entropy(self._entropy.bytes(20))
        data = encode_pointer(Pointer(ref=ref, write=write))
        try:
            await self._objects.put_if(key, data, etag=etag)
        except (StaleRevision, StorageFull, Unavailable) as error:
            pointer, _ = await self._read(key)
            if pointer and pointer.write == write:
                return len(data)
            if isinstance(error, StaleRevision):
                return 0
            raise
        return len(data)

    async def _read(self, key: str) -> tuple[Pointer | None, str | None]:
        """The pointer and an etag that is not younger than it: a swap under it can only be too careful."""
        try:
            info = await self._objects.head(key)
            return decode_pointer(await self._objects.get(key)), info.etag
        except NotFound:
            return None, None


def stale(subject: str, *, sequence: int, head: SnapshotRef) -> StaleRevision:
    """The error for a write that comes too late."""
    return StaleRevision(
        f"cannot store sequence {sequence} of {subject}: its head is already at {head.sequence} ({head.snapshot})",
        head=head.to_json(),
    )
