"""A catalog in this process's memory: for tests and simulated worlds. No method ever waits."""

from __future__ import annotations

import dataclasses

from torpor.adapters.catalog.pages import check_limit, cursor_for, parse_cursor, place_of
from torpor.adapters.catalog.refusals import (
    id_is_taken,
    name_is_taken,
    no_such_session,
    no_such_template,
    was_changed,
)
from torpor.domain.clocks import next_due_at_s
from torpor.domain.ids import SessionId, TenantId
from torpor.domain.session import PAUSED, Session, Status
from torpor.ports.catalog import Page, TemplateRecord

_FINISHED = PAUSED | {Status.LOST, Status.DELETED}


class MemoryCatalog:
    """``ports.catalog.Catalog`` on two dicts."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[TenantId, SessionId], Session] = {}
        self._templates: dict[tuple[TenantId, str, str], TemplateRecord] = {}

    async def insert(self, session: Session) -> Session:
        """A new record, at revision 1."""
        if (session.tenant, session.id) in self._sessions:
            raise id_is_taken(session)
        return self._keep(session, revision=1)

    async def replace(self, session: Session) -> Session:
        """Compare-and-swap on the revision."""
        stored = self._sessions.get((session.tenant, session.id))
        if stored is None:
            raise no_such_session(session.id)
        if stored.revision != session.revision:
            raise was_changed(session, stored.revision)
        return self._keep(session, revision=session.revision + 1)

    async def get(self, tenant: TenantId, session: SessionId) -> Session:
        """One record, by id."""
        stored = self._sessions.get((tenant, session))
        if stored is None:
            raise no_such_session(session)
        return stored

    async def find(self, tenant: TenantId, name: str) -> Session | None:
        """The live session of that name."""
        return self._named(tenant, name)

    async def page(self, tenant: TenantId, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Live sessions, newest first."""
        check_limit(limit)
        before = None if cursor is None else parse_cursor(cursor)
        listed = [
            session
            for session in self._sessions.values()
            if session.tenant == tenant
            and session.status is not Status.DELETED
            and (before is None or place_of(session) < before)
        ]
        listed.sort(key=place_of, reverse=True)
        shown = tuple(listed[:limit])
        return Page(shown, cursor_for(place_of(shown[-1])) if len(listed) > limit else None)

    async def unfinished(self) -> tuple[Session, ...]:
        """What a start has to reconcile."""
        return tuple(session for session in self._sessions.values() if session.status not in _FINISHED)

    async def due(self, now_s: float) -> tuple[Session, ...]:
        """Those whose next instant has come."""
        instants = ((session, next_due_at_s(session)) for session in self._sessions.values())
        return tuple(session for session, at_s in instants if at_s is not None and at_s <= now_s)

    async def put_template(self, template: TemplateRecord) -> None:
        """The newest of its name from now on."""
        key = (template.tenant, template.name, template.digest)
        self._templates.pop(key, None)  # a dict keeps the order of insertion: the newest stands last
        self._templates[key] = template

    async def template(self, tenant: TenantId, name: str) -> TemplateRecord:
        """By name, else by digest."""
        newest_first = [found for found in reversed(self._templates.values()) if found.tenant == tenant]
        named = [found for found in newest_first if found.name == name]
        digested = [found for found in newest_first if found.digest == name]
        for found in named + digested:
            return found
        raise no_such_template(name, [known.name for known in await self.templates(tenant)])

    async def templates(self, tenant: TenantId) -> tuple[TemplateRecord, ...]:
        """The newest of each name."""
        newest = {found.name: found for found in self._templates.values() if found.tenant == tenant}
        return tuple(newest[name] for name in sorted(newest))

    async def all_templates(self, tenant: TenantId) -> tuple[TemplateRecord, ...]:
        """All, oldest first."""
        return tuple(found for found in self._templates.values() if found.tenant == tenant)

    async def remove_template(self, template: TemplateRecord) -> None:
        """Drop the record."""
        self._templates.pop((template.tenant, template.name, template.digest), None)

    async def sessions_of_template(self, digest: str) -> tuple[Session, ...]:
        """Live ones."""
        return tuple(
            session
            for session in self._sessions.values()
            if session.template_digest == digest and session.status is not Status.DELETED
        )

    def _named(self, tenant: TenantId, name: str) -> Session | None:
        for session in self._sessions.values():
            if session.tenant == tenant and session.name == name and session.status is not Status.DELETED:
                return session
        return None

    def _keep(self, session: Session, *, revision: int) -> Session:
        if session.name is not None and session.status is not Status.DELETED:
            holder = self._named(session.tenant, session.name)
            if holder is not None and holder.id != session.id:
                raise name_is_taken(session)
        kept = dataclasses.replace(session, revision=revision)
        self._sessions[session.tenant, session.id] = kept
        return kept
