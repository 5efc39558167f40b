"""What is in a store: every subject, its head and its manifests, opened where they can be. Changes nothing.

Heads are read before manifests, so that a snapshot that is being written is never taken for a broken one.

Which snapshot of a subject counts (``choose_head``): the one that the pointer names, since only it was acknowledged; a
manifest above it may be of a write that was never answered. Only where the pointer is missing, unreadable, or names
what cannot be opened does the highest manifest that opens count, and whoever takes it is told which case it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from torpor.domain.errors import KeyDestroyed, NotFound, TorporError
from torpor.domain.ids import TenantId
from torpor.domain.snapshot import Lender, Manifest, SnapshotRef
from torpor.ports.objects import ObjectInfo
from torpor.store.layout import ROOT, Kind, Placed, manifest_key, pack_key, parse_key
from torpor.store.outside import Outside
from torpor.store.pipeline import for_each

REQUEST_COUNT_MAX = 8


class ManifestState(StrEnum):
    """What came of opening a manifest."""

    OPEN = "open"
    SHREDDED = "shredded"  # its key was destroyed
    LOCKED = "locked"  # its key is not here: what its public header lends from has to be taken for named
    UNREADABLE = "unreadable"  # nothing is known of what it names


@dataclass(frozen=True, slots=True)
class SurveyedManifest:
    """One manifest. ``packs``: keys of the packs it names. ``lenders``: subjects it may name packs of, if not open."""

    placed: Placed
    state: ManifestState
    packs: frozenset[str] = frozenset()
    lenders: tuple[Lender, ...] = ()
    error: str = ""


class HeadState(StrEnum):
    """What there is of a pointer."""

    PRESENT = "present"
    ABSENT = "absent"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class SurveyedSubject:
    """One subject. ``manifests`` by sequence, lowest first. ``head``: where its pointer points, if it is present."""

    owner: Lender
    is_destroyed: bool
    head_state: HeadState
    head: SnapshotRef | None
    manifests: tuple[SurveyedManifest, ...]
    packs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything under the root. ``strangers``: keys that are none of this library's."""

    subjects: Mapping[Lender, SurveyedSubject]
    sizes_bytes: Mapping[str, int] = field(repr=False)
    strangers: tuple[str, ...] = ()


class HeadChoice(StrEnum):
    """How a subject's snapshot was found."""

    POINTER = "pointer"
    NO_POINTER = "no_pointer"  # the highest manifest that opens: the pointer is missing or unreadable
    OLDER = "older"  # the pointer names what cannot be opened: a lower one, which its owner has to allow
    LATER = "later"  # the pointer names what cannot be opened, and a higher one opens


@dataclass(frozen=True, slots=True)
class SubjectHead:
    """A subject with the snapshot that counts, opened. ``ahead``: manifests above the pointer, which do not count."""

    owner: Lender
    choice: HeadChoice
    ref: SnapshotRef
    manifest: Manifest = field(repr=False)
    ahead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SubjectWithoutHead:
    """A subject of which nothing can be opened. ``is_destroyed``: on purpose."""

    owner: Lender
    is_destroyed: bool
    reason: str


async def take_survey(outside: Outside) -> Survey:
    """List everything, read every pointer, open every manifest."""
    listing = await _listing(outside)
    subjects: dict[Lender, SurveyedSubject] = {}
    for owner, objects in listing.by_owner.items():
        subjects[owner] = await _surveyed(outside, owner, objects)
    return Survey(subjects, listing.sizes_bytes, tuple(listing.strangers))


async def survey_subjects(outside: Outside) -> AsyncIterator[SubjectHead | SubjectWithoutHead]:
    """Every subject that has a pointer or a manifest, in key order, one manifest in memory at a time."""
    for owner, objects in (await _listing(outside)).by_owner.items():
        if any(placed.kind is not Kind.PACK for placed in objects):
            yield await choose_head(outside, owner, objects)


async def choose_head(outside: Outside, owner: Lender, objects: Iterable[Placed]) -> SubjectHead | SubjectWithoutHead:
    """The snapshot of a subject that counts; ``objects``: what is listed of it."""
    if await outside.keys.is_destroyed(owner.tenant, owner.subject):
        return SubjectWithoutHead(owner, is_destroyed=True, reason="its key was destroyed")
    placed = sorted((one for one in objects if one.kind is Kind.MANIFEST), key=lambda one: one.sequence, reverse=True)
    pointed, reason = None, "it has no pointer and no manifest that opens"
    try:
        pointed = await outside.heads.read(owner.tenant, owner.subject)
        if pointed is not None:
            manifest = await outside.manifests.open(pointed)
            ahead = tuple(one.key for one in placed if one.sequence > pointed.sequence)
            return SubjectHead(owner, HeadChoice.POINTER, pointed, manifest, ahead)
    except TorporError as error:
        reason = error.message
    for one in placed:
        if pointed is not None and one.key == manifest_key(pointed):
            continue  # it was tried, with its digest
        try:
            manifest, digest = await outside.manifests.open_placed(one)
        except TorporError as error:
            reason = error.message
            continue
        header = manifest.header
        ref = SnapshotRef(header.tenant, header.subject, header.snapshot, header.sequence, digest)
        return SubjectHead(owner, _choice(pointed, ref), ref, manifest)
    return SubjectWithoutHead(owner, is_destroyed=False, reason=reason)


async def open_for_survey(outside: Outside, placed: Placed, *, size_bytes: int) -> SurveyedManifest | None:
    """What a manifest names; None if it was removed meanwhile."""
    try:
        manifest, _ = await outside.manifests.open_placed(placed)
    except KeyDestroyed as error:
        return SurveyedManifest(placed, ManifestState.SHREDDED, error=error.message)
    except TorporError as error:
        return await _closed(outside, placed, error, size_bytes=size_bytes)
    return SurveyedManifest(placed, ManifestState.OPEN, frozenset(pack_key(pack) for pack in manifest.packs))


async def _closed(outside: Outside, placed: Placed, error: TorporError, *, size_bytes: int) -> SurveyedManifest | None:
    """Of a manifest that did not open: its header says at least whom it borrows from."""
    try:
        header = await outside.manifests.header(placed, size_bytes=size_bytes)
    except NotFound:
        return None
    except TorporError:
        return SurveyedManifest(placed, ManifestState.UNREADABLE, error=error.message)
    if not isinstance(error, NotFound) and "missing_key" not in error.details:
        return SurveyedManifest(placed, ManifestState.UNREADABLE, error=error.message)
    return SurveyedManifest(placed, ManifestState.LOCKED, lenders=(placed.owner, *header.lenders), error=error.message)


async def _surveyed(outside: Outside, owner: Lender, objects: Mapping[Placed, ObjectInfo]) -> SurveyedSubject:
    is_destroyed = await outside.keys.is_destroyed(owner.tenant, owner.subject)
    head: SnapshotRef | None = None
    try:
        head = await outside.heads.read(owner.tenant, owner.subject)
        head_state = HeadState.ABSENT if head is None else HeadState.PRESENT
    except TorporError:
        head_state = HeadState.UNREADABLE
    found: list[SurveyedManifest] = []

    async def look_at(item: tuple[Placed, ObjectInfo]) -> None:
        placed, info = item
        if (surveyed := await open_for_survey(outside, placed, size_bytes=info.size_bytes)) is not None:
            found.append(surveyed)

    manifests = [item for item in objects.items() if item[0].kind is Kind.MANIFEST]
    await for_each(manifests, look_at, limit=REQUEST_COUNT_MAX)
    return SurveyedSubject(
        owner=owner,
        is_destroyed=is_destroyed,
        head_state=head_state,
        head=head,
        manifests=tuple(sorted(found, key=lambda one: (one.placed.sequence, one.placed.name))),
        packs=tuple(placed.key for placed in objects if placed.kind is Kind.PACK),
    )


@dataclass(slots=True)
class _Listing:
    by_owner: dict[Lender, dict[Placed, ObjectInfo]] = field(default_factory=dict)
    sizes_bytes: dict[str, int] = field(default_factory=dict)
    strangers: list[str] = field(default_factory=list)


async def _listing(outside: Outside) -> _Listing:
    listing = _Listing()
    async for info in outside.objects.list(ROOT):
        listing.sizes_bytes[info.key] = info.size_bytes
        placed = parse_key(info.key)
        if placed is None:
            listing.strangers.append(info.key)
        else:
            listing.by_owner.setdefault(placed.owner, {})[placed] = info
    return listing


async def history(outside: Outside, tenant: TenantId, subject: str, prefix: str) -> Sequence[SnapshotRef]:
    """References to the subject's manifests at or below its pointer, newest first. None is opened."""
    head = await outside.heads.read(tenant, subject)
    if head is None:
        return ()
    older: list[Placed] = []
    async for info in outside.objects.list(prefix):
        placed = parse_key(info.key)
        if placed and placed.kind is Kind.MANIFEST and placed.sequence < head.sequence:
            older.append(placed)
    older.sort(key=lambda one: one.sequence, reverse=True)
    return (head, *[await outside.manifests.ref(one) for one in older])


def _choice(pointed: SnapshotRef | None, ref: SnapshotRef) -> HeadChoice:
    if pointed is None:
        return HeadChoice.NO_POINTER
    return HeadChoice.OLDER if ref.sequence < pointed.sequence else HeadChoice.LATER
