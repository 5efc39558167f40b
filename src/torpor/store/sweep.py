"""Garbage collection: survey, plan, keep the marks, look once more, remove. Any number may run, and die, anywhere.

Invariants: marks are kept before anything goes; names go before what they name; right before packs go, manifests that
came since the survey are opened, and what they name stays.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torpor.domain.errors import Conflict, NotFound, StaleRevision, TorporError
from torpor.domain.snapshot import Lender, SnapshotRef
from torpor.ports.crash_points import CrashPoint, reach
from torpor.store.garbage import (
    GRACE_S,
    KEEP_COUNT,
    MARKS_KEY,
    Garbage,
    GarbagePlan,
    Reason,
    decode_marks,
    encode_marks,
    plan_garbage,
)
from torpor.store.layout import ROOT, Kind, Placed, manifest_key, parse_key
from torpor.store.outside import Outside
from torpor.store.survey import ManifestState, Survey, open_for_survey, take_survey


@dataclass(frozen=True, slots=True)
class SweepReport:
    """``plan``: what was decided. ``removed``: what went (dry run: none). ``spared``: what came into use meanwhile."""

    plan: GarbagePlan
    removed: tuple[Garbage, ...]
    spared: tuple[str, ...] = ()

    @property
    def removed_bytes(self) -> int:
        """What the store got smaller by."""
        return sum(garbage.size_bytes for garbage in self.removed)


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """``grace_s``: least time without use. ``keep``: good snapshots of each subject that stay. ``dry_run``: plan only.

    ``abandoned``: subjects that are known to be nobody's. ``held``: snapshots that records name (``plan_garbage``).
    """

    grace_s: float = GRACE_S
    keep: int = KEEP_COUNT
    dry_run: bool = False
    abandoned: Collection[Lender] = ()
    held: Collection[SnapshotRef] = ()


async def sweep_store(outside: Outside, request: SweepRequest) -> SweepReport:
    """Collect garbage once; the contract is ``SnapshotStore.collect_garbage``'s."""
    marks, etag = await _marks(outside)
    survey = await take_survey(outside)
    plan = plan_garbage(
        survey,
        marks,
        now_s=outside.clock.wall_s(),
        grace_s=request.grace_s,
        keep=request.keep,
        abandoned=request.abandoned,
        held=frozenset(map(manifest_key, request.held)),
    )
    if request.dry_run:
        return SweepReport(plan, ())
    if dict(plan.marks) != marks:
        await _keep_marks(outside, plan, etag)
    reach(CrashPoint.GC_PLANNED)
    return await _perform(outside, survey, plan)


async def _perform(outside: Outside, survey: Survey, plan: GarbagePlan) -> SweepReport:
    removed: list[Garbage] = []
    spared: list[str] = []
    packs: list[Garbage] = []
    for garbage in plan.remove:
        placed = parse_key(garbage.key)
        assert placed is not None
        if placed.kind is Kind.PACK:
            packs.append(garbage)
        elif await _is_still_useless(outside, survey, placed, garbage):
            await outside.objects.delete(garbage.key)
            reach(CrashPoint.GC_OBJECT)
            removed.append(garbage)
        else:
            spared.append(garbage.key)
    named = await _named_since(outside, survey) if packs else set()
    for garbage in packs:
        if named is None or garbage.key in named:
            spared.append(garbage.key)
        else:
            await outside.objects.delete(garbage.key)
            reach(CrashPoint.GC_OBJECT)
            removed.append(garbage)
    return SweepReport(plan, tuple(removed), tuple(spared))


async def _is_still_useless(outside: Outside, survey: Survey, placed: Placed, garbage: Garbage) -> bool:
    """Whether the pointer stands where the survey saw it. Of a shredded subject nothing is of use any more."""
    if garbage.reason is Reason.SHREDDED:
        return True
    try:
        head = await outside.heads.read(placed.tenant, placed.subject)
    except TorporError:
        return False
    return head == survey.subjects[placed.owner].head


async def _named_since(outside: Outside, survey: Survey) -> set[str] | None:
    """Packs that manifests name which the survey has not seen; None if one of them cannot be opened."""
    seen = {manifest.placed for subject in survey.subjects.values() for manifest in subject.manifests}
    named: set[str] = set()
    async for info in outside.objects.list(ROOT):
        placed = parse_key(info.key)
        if placed is None or placed.kind is not Kind.MANIFEST or placed in seen:
            continue
        manifest = await open_for_survey(outside, placed, size_bytes=info.size_bytes)
        if manifest is None or manifest.state is ManifestState.SHREDDED:
            continue
        if manifest.state is not ManifestState.OPEN:
            return None
        named |= manifest.packs
    return named


async def _marks(outside: Outside) -> tuple[dict[str, float], str | None]:
    try:
        info = await outside.objects.head(MARKS_KEY)
        return decode_marks(await outside.objects.get(MARKS_KEY)), info.etag
    except NotFound:
        return {}, None


async def _keep_marks(outside: Outside, plan: GarbagePlan, etag: str | None) -> None:
    try:
        await outside.objects.put_if(MARKS_KEY, encode_marks(plan.marks), etag=etag)
    except StaleRevision as error:
        raise Conflict(
            "cannot collect garbage: another collection of this store ran meanwhile; repeat when it has ended",
            reason="garbage_collection_runs",
        ) from error
