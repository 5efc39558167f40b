"""Removing snapshots and subjects: pointer → manifest → packs that no other live manifest names.

Packs of a removed *snapshot* stay until garbage collection, since later snapshots of the subject usually name them.
Packs of a removed *subject* go at once, but those that a fork, or a clone of a template, still names. To know them, the
public headers of all manifests in the store are read (a small ranged read each); only manifests that borrow from the
subject are opened. One that cannot be opened for any reason but a destroyed key makes all packs stay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from torpor.domain.errors import KeyDestroyed, NotFound, TorporError
from torpor.domain.ids import TenantId
from torpor.domain.snapshot import Lender, SnapshotRef, parse_key_part
from torpor.ports.objects import ObjectInfo
from torpor.store.layout import (
    ROOT,
    Kind,
    Placed,
    head_key,
    manifest_key,
    pack_key,
    parse_key,
    subject_prefix,
)
from torpor.store.outside import Outside
from torpor.store.pipeline import for_each

REQUEST_COUNT_MAX = 8


async def delete_snapshot(outside: Outside, ref: SnapshotRef) -> None:
    """Remove one snapshot; the contract is ``SnapshotStore.delete_snapshot``'s."""
    head = await outside.heads.read(ref.tenant, ref.subject)
    if head == ref:
        older = [placed async for placed in _manifests(outside, ref) if placed.sequence < ref.sequence]
        newest = max(older, key=lambda placed: placed.sequence, default=None)
        await outside.heads.retreat(ref, to=await outside.manifests.ref(newest) if newest else None)
    await outside.objects.delete(manifest_key(ref))


async def delete_subject(outside: Outside, tenant: TenantId, subject: str) -> None:
    """Shred and remove a subject; the contract is ``SnapshotStore.delete_subject``'s."""
    parse_key_part(tenant, field="tenant")
    parse_key_part(subject, field="subject")
    await outside.keys.destroy(tenant, subject)
    borrowed = await _borrowed_packs(outside, Lender(tenant, subject))
    await outside.objects.delete(head_key(tenant, subject))
    # Key order is manifests before packs: what names goes before what is named.
    async for info in outside.objects.list(subject_prefix(tenant, subject)):
        placed = parse_key(info.key)
        if placed and placed.kind is Kind.PACK and (borrowed is None or info.key in borrowed):
            continue
        await outside.objects.delete(info.key)


async def _borrowed_packs(outside: Outside, lender: Lender) -> set[str] | None:
    """Keys of the lender's packs that other live manifests name; None if that cannot be known: then all must stay."""
    borrowed: set[str] = set()
    unknown: list[str] = []

    async def look_at(item: tuple[Placed, ObjectInfo]) -> None:
        placed, info = item
        try:
            header = await outside.manifests.header(placed, size_bytes=info.size_bytes)
            if lender in header.lenders:
                manifest, _ = await outside.manifests.open_placed(placed)
                borrowed.update(pack_key(pack) for pack in manifest.packs if pack.owner == lender)
        except KeyDestroyed:
            return
        except NotFound as error:
            if await _exists(outside, placed.key):
                unknown.append(error.message)
        except TorporError as error:
            unknown.append(error.message)

    others = []
    async for info in outside.objects.list(ROOT):
        placed = parse_key(info.key)
        if placed and placed.kind is Kind.MANIFEST and placed.owner != lender:
            others.append((placed, info))
    await for_each(others, look_at, limit=REQUEST_COUNT_MAX)
    return None if unknown else borrowed


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
