"""PURE: which objects of a surveyed store may go, when, and why. Marks: docs/formats/garbage-marks-v0.md.

Grace runs from when an object was first *seen without use*, by a mark that is kept in the store, not from when it was
written: an old pack may have lost its last name a second ago to a snapshot that a fork or a read still works with.
A mark is older than the object's uselessness at no time, whatever the clocks of the store say.

Never removed: what a manifest that opens names; all that a manifest could name whose key is not here; any pack at all
while one manifest cannot be read; the newest ``keep`` snapshots that open; a subject's only snapshots where its
pointer is lost (unless nobody knows the subject); strangers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from torpor.domain.snapshot import Lender
from torpor.store.layout import Kind, head_key, parse_key
from torpor.store.survey import HeadState, ManifestState, Survey, SurveyedManifest, SurveyedSubject

MARKS_KEY = "garbage-v0/marks"
MARKS_VERSION = 0
GRACE_S = 3600.0
KEEP_COUNT = 2  # the newest and the one before it, which a failure may fall back to if the caller allows it


class Reason(StrEnum):
    """Why an object is of no use."""

    SHREDDED = "shredded"  # of a subject whose key was destroyed, and no relative names it
    SUPERSEDED = "superseded"  # a snapshot with KEEP_COUNT newer good ones
    UNACKNOWLEDGED = "unacknowledged"  # a manifest above its pointer: of a write that ended before it was answered
    ABANDONED = "abandoned"  # a manifest of a subject without pointer that nobody knows
    UNREFERENCED = "unreferenced"  # a pack that no manifest names


@dataclass(frozen=True, slots=True)
class Garbage:
    """One object of no use. ``due_at_s``: wall time from which it may go."""

    key: str
    reason: Reason
    size_bytes: int
    due_at_s: float


@dataclass(frozen=True, slots=True)
class GarbagePlan:
    """``remove``: what may go now, in the order it has to go. ``wait``: what has not waited long enough.

    ``marks``: when each was first seen, to be kept. ``headless``: subjects whose pointer is lost; `rebuild` mends them.
    ``blocked``: why no pack may go. ``strangers``: left alone.
    """

    remove: tuple[Garbage, ...]
    wait: tuple[Garbage, ...]
    marks: Mapping[str, float]
    headless: tuple[Lender, ...] = ()
    blocked: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()


def plan_garbage(
    survey: Survey,
    marks: Mapping[str, float],
    *,
    now_s: float,
    grace_s: float = GRACE_S,
    keep: int = KEEP_COUNT,
    abandoned: Collection[Lender] = (),
    held: Collection[str] = (),
) -> GarbagePlan:
    """Decide. ``marks``: those that the plan before left. ``abandoned``: subjects that are known to be nobody's.

    ``held``: keys of manifests that somebody's records name: they stay, whatever else says that they are superseded.
    """
    assert keep >= 1
    assert grace_s >= 0
    useless = dict(_useless(survey, keep=keep, abandoned=abandoned))
    blocked = tuple(sorted(_unreadable(survey)))
    remove: list[Garbage] = []
    wait: list[Garbage] = []
    kept_marks: dict[str, float] = {}
    for key, reason in useless.items():
        if key in held and reason is not Reason.SHREDDED:
            continue
        # A mark from the future was made by a clock that has since been set back: it starts anew.
        since_s = marks[key] if key in marks and marks[key] <= now_s else now_s
        kept_marks[key] = since_s
        due_at_s = now_s if reason is Reason.SHREDDED else since_s + grace_s
        garbage = Garbage(key, reason, survey.sizes_bytes.get(key, 0), due_at_s)
        stays = bool(blocked) and _kind(key) is Kind.PACK
        (wait if stays or due_at_s > now_s else remove).append(garbage)
    return GarbagePlan(
        remove=tuple(sorted(remove, key=lambda one: (_ORDER[_kind(one.key)], one.key))),
        wait=tuple(sorted(wait, key=lambda one: one.key)),
        marks=kept_marks,
        headless=tuple(sorted(_headless(survey))),
        blocked=blocked,
        strangers=survey.strangers,
    )


def plan_retention(subject: SurveyedSubject, *, keep: int = KEEP_COUNT) -> tuple[SurveyedManifest, ...]:
    """Which snapshots of a subject may go: those with ``keep`` newer ones, at or below the pointer, that open.

    Nothing may go while the pointer or the snapshot it names is not in order.
    """
    assert keep >= 1
    head = subject.head
    if head is None:
        return ()
    reached = [one for one in subject.manifests if one.placed.sequence <= head.sequence]
    good = [one for one in reached if one.state is ManifestState.OPEN]
    if not good or good[-1].placed.name != head.snapshot:
        return ()
    return tuple(good[:-keep])


def encode_marks(marks: Mapping[str, float]) -> bytes:
    """The object under MARKS_KEY."""
    return json.dumps({"version": MARKS_VERSION, "marks": dict(marks)}, sort_keys=True).encode()


def decode_marks(data: bytes) -> dict[str, float]:
    """The marks; none from bytes that are not such an object: grace then starts anew, which harms nothing."""
    try:
        value = json.loads(data)
        if value["version"] != MARKS_VERSION:
            return {}
        return {str(key): float(since_s) for key, since_s in value["marks"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


_ORDER = {Kind.HEAD: 0, Kind.MANIFEST: 1, Kind.PACK: 2}  # what names goes before what is named


def _kind(key: str) -> Kind:
    placed = parse_key(key)
    assert placed is not None, "strangers are never garbage"
    return placed.kind


def _useless(survey: Survey, *, keep: int, abandoned: Collection[Lender]) -> Iterator[tuple[str, Reason]]:
    named, lenders = _reach(survey)
    for owner, subject in survey.subjects.items():
        yield from _useless_names(subject, keep=keep, is_abandoned=owner in abandoned)
        for key in subject.packs:
            if key not in named and owner not in lenders:
                yield key, Reason.SHREDDED if subject.is_destroyed else Reason.UNREFERENCED


def _useless_names(subject: SurveyedSubject, *, keep: int, is_abandoned: bool) -> Iterator[tuple[str, Reason]]:
    """Pointer and manifests. One that cannot be read is not removed: `check` reports it."""
    if subject.is_destroyed:
        if subject.head_state is not HeadState.ABSENT:
            yield head_key(subject.owner.tenant, subject.owner.subject), Reason.SHREDDED
        for manifest in subject.manifests:
            yield manifest.placed.key, Reason.SHREDDED
        return
    for manifest in plan_retention(subject, keep=keep):
        yield manifest.placed.key, Reason.SUPERSEDED
    for manifest in subject.manifests:
        if subject.head is not None and manifest.placed.sequence > subject.head.sequence:
            yield manifest.placed.key, Reason.UNACKNOWLEDGED
        elif subject.head_state is HeadState.ABSENT and is_abandoned:
            yield manifest.placed.key, Reason.ABANDONED


def _reach(survey: Survey) -> tuple[set[str], set[Lender]]:
    """Keys of packs that are named, and subjects of which every pack has to be taken for named.

    A manifest that goes now still reaches: its packs are looked at the next time, and wait for their own grace.
    """
    named: set[str] = set()
    lenders: set[Lender] = set()
    for manifest in _manifests(survey):
        named |= manifest.packs
        lenders.update(manifest.lenders)
    return named, lenders


def _unreadable(survey: Survey) -> Iterator[str]:
    for manifest in _manifests(survey):
        if manifest.state is ManifestState.UNREADABLE and not survey.subjects[manifest.placed.owner].is_destroyed:
            yield f"{manifest.placed.key}: {manifest.error}"


def _headless(survey: Survey) -> Iterator[Lender]:
    for owner, subject in survey.subjects.items():
        if subject.head is None and subject.manifests and not subject.is_destroyed:
            yield owner


def _manifests(survey: Survey) -> Iterator[SurveyedManifest]:
    for subject in survey.subjects.values():
        manifests: Sequence[SurveyedManifest] = subject.manifests
        yield from manifests
