"""Removing snapshots and subjects: pointer → manifest → packs that no other live manifest names.

Packs of a removed *snapshot* stay until garbage collection, since later snapshots of the subject usually name them.
Packs of a removed *subject* go at once, but those that a fork, or a clone of a template, still names. To know them, the
public headers of all manifests in the store are read (a small ranged read each); only manifests that borrow from the
subject are opened. One that cannot be opened for any reason but a destroyed key makes all packs stay. The store is
listed twice: a fork may be written behind the first listing while its source is removed before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from torpor.domain.errors import KeyDestroyed, NotFound, TorporError, Unavailable
from torpor.domain.ids import TenantId
from torpor.domain.snapshot import Lender, SnapshotRef, parse_key_part
from torpor.ports.crash_points import CrashPoint, reach
from torpor.ports.objects import ObjectInfo
from torpor.store.layout import (
    ROOT,
    Kind,
    Placed,
    manifest_key,
    pack_key,
    parse_key,
    subject_prefix,
)
from torpor.store.outside import Outside
from torpor.store.pipeline import for_each

REQUEST_COUNT_MAX = 8


@dataclass(frozen=True, slots=True)
class Shredded:
    """A subject that can no longer be read, whatever old copies of objects and catalog come back.

    ``key_destroyed_at_s``: wall time at which its secret was gone for good. ``removed_count``: objects that went with
    this call. ``borrowed_count``: packs that stay because relatives name chunks in them.
    """

    key_destroyed_at_s: float
    removed_count: int
    borrowed_count: int


async def delete_snapshot(outside: Outside, ref: SnapshotRef) -> None:
    """Remove one snapshot; the contract is ``SnapshotStore.delete_snapshot``'s."""
    head = await outside.heads.read(ref.tenant, ref.subject)
    if head == ref:
        older = [placed async for placed in _manifests(outside, ref) if placed.sequence < ref.sequence]
        newest = max(older, key=lambda placed: placed.sequence, default=None)
        await outside.heads.retreat(ref, to=await outside.manifests.ref(newest) if newest else None)
    await outside.objects.delete(manifest_key(ref))


async def delete_subject(outside: Outside, tenant: TenantId, subject: str) -> Shredded:
    """Shred and remove a subject; the contract is ``SnapshotStore.delete_subject``'s."""
    parse_key_part(tenant, field="tenant")
    parse_key_part(subject, field="subject")
    await outside.keys.destroy(tenant, subject)
    destroyed_at_s = outside.clock.wall_s()
    reach(CrashPoint.DELETE_KEY_DESTROYED)
    borrowed = await _Borrowed(outside, Lender(tenant, subject)).packs()
    removed_count = borrowed_count = 0
    # Key order is pointer, manifests, packs: what names goes before what is named.
    async for info in outside.objects.list(subject_prefix(tenant, subject)):
        placed = parse_key(info.key)
        if placed and placed.kind is Kind.PACK and (borrowed is None or info.key in borrowed):
            borrowed_count += 1
            continue
        await outside.objects.delete(info.key)
        reach(CrashPoint.DELETE_OBJECT)
        removed_count += 1
    reach(CrashPoint.DELETE_OBJECTS_GONE)
    return Shredded(destroyed_at_s, removed_count, borrowed_count)


class _Borrowed:
    """Which packs of a lender other live manifests name."""

    def __init__(self, outside: Outside, lender: Lender) -> None:
        self._outside = outside
        self._lender = lender
        self._packs: set[str] = set()
        self._seen: set[Placed] = set()
        self._unknown: list[str] = []

    async def packs(self) -> set[str] | None:
        """Their keys; None if that cannot be known: then all must stay."""
        for _ in range(2):
            others = []
            async for info in self._outside.objects.list(ROOT):
                placed = parse_key(info.key)
                if placed and placed.kind is Kind.MANIFEST and placed.owner != self._lender:
                    others.append((placed, info))
            await for_each(
                [item for item in others if item[0] not in self._seen], self._look_at, limit=REQUEST_COUNT_MAX
            )
        return None if self._unknown else self._packs

    async def _look_at(self, item: tuple[Placed, ObjectInfo]) -> None:
        placed, info = item
        self._seen.add(placed)
        manifests = self._outside.manifests
        try:
            header = await manifests.header(placed, size_bytes=info.size_bytes)
            if self._lender in header.lenders:
                manifest, _ = await manifests.open_placed(placed)
                self._packs.update(pack_key(pack) for pack in manifest.packs if pack.owner == self._lender)
        except KeyDestroyed:
            return
        except Unavailable:
            raise  # of the moment: the caller repeats the call, and then it is known
        except NotFound as error:
            if await _exists(self._outside, placed.key):
                self._unknown.append(error.message)
        except TorporError as error:
            self._unknown.append(error.message)


async def _exists(outside: Outside, key: str) -> bool:
    try:
        await outside.objects.head(key)
    except NotFound:
        return False
    return True


async def _manifests(outside: Outside, ref: SnapshotRef) -> AsyncIterator[Placed]:
    """The subject's manifests."""
    async for info in outside.objects.list(subject_prefix(ref.tenant, ref.subject)):
        placed = parse_key(info.key)
        if placed and placed.kind is Kind.MANIFEST:
            yield placed
