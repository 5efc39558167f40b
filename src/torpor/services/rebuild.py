"""Records out of the store alone: what a lost catalog knew of sessions and templates, from their manifests.

Invariants: a record that the catalog has is not touched; a shredded subject gets none; nothing in the store changes.
Which snapshot counts is decided in ``store.survey``. A session whose acknowledged snapshot cannot be opened, but an
older one can, comes back as lost: going on from there needs ``allow_older``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from torpor.domain.errors import Conflict, Corrupt, NotFound
from torpor.domain.ids import SessionId
from torpor.domain.session import (
    DeadlineAction,
    Durability,
    Limits,
    Moment,
    OnResume,
    Persistence,
    Policy,
    Session,
    Status,
)
from torpor.domain.snapshot import Lender
from torpor.ports.catalog import Catalog, TemplateRecord
from torpor.ports.clock import Clock
from torpor.services.rootfs import is_root_filesystem
from torpor.services.snapshot_parts import record_of
from torpor.services.templates import PUBLIC_TENANT
from torpor.store.layout import parse_key
from torpor.store.snapshots import HeadChoice, SnapshotStore, SubjectHead, SubjectWithoutHead

GENERATION_STEP = 1000  # the lost catalog may have placed a session again since; its generations must not come back
EVENT = "catalog_rebuilt"
IMPORTED_EVENT = "imported"


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild did. ``sessions``, ``templates``: inserted. ``renamed``: inserted nameless, their name was taken.

    ``older``: inserted as lost, since only an older snapshot opens. ``unpointed``: inserted by their highest manifest.
    ``known``: records that were there. ``unreadable``: subjects of which nothing opens, and why.
    """

    sessions: list[SessionId] = field(default_factory=list)
    templates: list[str] = field(default_factory=list)
    renamed: dict[SessionId, str] = field(default_factory=dict)
    older: list[SessionId] = field(default_factory=list)
    unpointed: list[str] = field(default_factory=list)
    known_count: int = 0
    shredded_count: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)


async def rebuild_catalog(store: SnapshotStore, catalog: Catalog, clock: Clock, durability: Durability) -> Rebuilt:
    """Insert what the catalog lacks; sessions come as paused. ``durability``: what a snapshot in this store is worth.

    Idempotent. Run it while nothing serves this store with another catalog.
    """
    rebuilt = Rebuilt()
    templates: dict[str, TemplateRecord] = {}
    async for found in store.subjects():
        if isinstance(found, SubjectWithoutHead):
            _note_without_head(found, rebuilt)
            continue
        if found.choice is not HeadChoice.POINTER:
            rebuilt.unpointed.append(_name(found.owner))
        try:
            if found.owner.tenant != PUBLIC_TENANT:
                await _insert(session_of(found, clock.wall_s(), durability), catalog, rebuilt)
            elif not is_root_filesystem(found.manifest.meta):
                _keep_newest(template_of(found), templates)
        except Corrupt as error:
            rebuilt.unreadable[_name(found.owner)] = error.message
    for record in sorted(templates.values(), key=lambda one: one.created_at_s):
        await _insert_template(record, catalog, rebuilt)
    return rebuilt


def session_of(found: SubjectHead, now_s: float, durability: Durability, *, is_imported: bool = False) -> Session:
    """The record of a paused session, or of a lost one. Pure. Raises: Corrupt if the meta is not a session's.

    An imported one is new: its rest begins now, and no number of another catalog's has to be avoided.
    """
    meta, manifest, ref = found.manifest.meta, found.manifest, found.ref
    is_older = found.choice is HeadChoice.OLDER
    paused = Status.PAUSED_DURABLE if durability is Durability.OBJECT else Status.PAUSED_LOCAL
    status = Status.LOST if is_older else paused
    step, event = (0, IMPORTED_EVENT) if is_imported else (GENERATION_STEP, EVENT)
    try:
        instant_s = float(meta["instant_s"])
        policy = _policy(meta.get("policy", {}))
        return Session(
            id=SessionId(ref.subject),
            tenant=ref.tenant,
            template=str(meta["template"]),
            template_digest=str(meta["template_digest"]),
            created_at_s=float(meta["created_at_s"]),
            name=meta.get("name"),
            status=status,
            persistence=Persistence(meta.get("persistence", Persistence.MEMORY)),
            limits=_limits(meta.get("limits", {})),
            metadata=_texts(meta.get("metadata", {})),
            env=_texts(meta.get("env", {})),
            generation=int(meta.get("generation", manifest.header.generation)) + step,
            operation=max(int(meta.get("operation", 0)), ref.sequence, *map(_sequence, found.ahead)),
            wrapped_key=base64.b64encode(manifest.header.wrapped_key).decode(),
            snapshot=record_of(ref, manifest),
            durability=durability,
            paused_at_s=None if is_older else now_s if is_imported else instant_s,
            lost_at_s=now_s if is_older else None,
            ordered_at_s=now_s,
            last_error="its newest snapshot cannot be opened; an older one can" if is_older else None,
            last_error_code=Corrupt.code if is_older else None,
            policy=policy,
            hard_deadline_at_s=meta.get("hard_deadline_at_s"),
            run_left_s=policy.timeout_s,
            forked_from=meta.get("forked_from"),
            timeline=(Moment(now_s, status, event, found.choice.value),),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"cannot make a session record of {ref.subject}: its snapshot's meta lacks {error}") from error


def template_of(found: SubjectHead) -> TemplateRecord:
    """The record of a template. Pure. Raises: Corrupt if the meta is not a golden snapshot's."""
    meta, manifest = found.manifest.meta, found.manifest
    try:
        return TemplateRecord(
            tenant=found.ref.tenant,
            name=str(meta["template"]),
            digest=str(meta["template_digest"]),
            created_at_s=float(meta.get("created_at_s", meta["instant_s"])),
            wrapped_key=base64.b64encode(manifest.header.wrapped_key).decode(),
            golden=found.ref.to_json(),
            engine_build=str(manifest.requirements["build"]),
            image_bytes=manifest.image_bytes,
            shape=asdict(_limits(meta.get("shape", {}))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"cannot make a template of {found.ref.subject}: its snapshot's meta lacks {error}") from error


async def _insert(session: Session, catalog: Catalog, rebuilt: Rebuilt) -> None:
    try:
        await catalog.get(session.tenant, session.id)
    except NotFound:
        pass
    else:
        rebuilt.known_count += 1
        return
    try:
        await catalog.insert(session)
    except Conflict:
        await catalog.insert(replace(session, name=None))
        rebuilt.renamed[session.id] = str(session.name)
    rebuilt.sessions.append(session.id)
    if session.status is Status.LOST:
        rebuilt.older.append(session.id)


async def _insert_template(record: TemplateRecord, catalog: Catalog, rebuilt: Rebuilt) -> None:
    try:
        await catalog.template(record.tenant, record.digest)
    except NotFound:
        await catalog.put_template(record)
        rebuilt.templates.append(record.name)
    else:
        rebuilt.known_count += 1


def _keep_newest(record: TemplateRecord, templates: dict[str, TemplateRecord]) -> None:
    """A template that was captured twice: its latest golden snapshot."""
    kept = templates.get(record.digest)
    if kept is None or kept.created_at_s <= record.created_at_s:
        templates[record.digest] = record


def _note_without_head(found: SubjectWithoutHead, rebuilt: Rebuilt) -> None:
    if found.is_destroyed:
        rebuilt.shredded_count += 1
    else:
        rebuilt.unreadable[_name(found.owner)] = found.reason


def _policy(value: Mapping[str, Any]) -> Policy:
    """Fields that this version does not know are passed over, absent ones get their defaults."""
    known = _known(value, Policy)
    for name in ("idle_s", "timeout_s", "retention_s"):
        if known.get(name) is not None:
            known[name] = float(known[name])
    if "timeout_action" in known:
        known["timeout_action"] = DeadlineAction(known["timeout_action"])
    if "on_resume" in known:
        known["on_resume"] = OnResume(known["on_resume"])
    return Policy(**known)


def _limits(value: Mapping[str, Any]) -> Limits:
    return Limits(**_known(value, Limits))


def _texts(value: Mapping[str, Any]) -> dict[str, str]:
    """Raises: TypeError for what is no text, which no catalog could read back."""
    if wrong := [name for name, text in value.items() if not isinstance(text, str)]:
        raise TypeError(f"a text for {wrong[0]!r}")
    return dict(value)


def _known(value: Mapping[str, Any], kind: type[Policy | Limits]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: given for name, given in value.items() if name in names}


def _sequence(key: str) -> int:
    placed = parse_key(key)
    return placed.sequence if placed else 0


def _name(owner: Lender) -> str:
    return f"{owner.tenant}/{owner.subject}"
