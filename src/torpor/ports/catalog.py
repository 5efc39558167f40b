"""Records by compare-and-swap. An index: the snapshot store is the source of truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torpor.domain.ids import SessionId, TenantId
from torpor.domain.session import Session


@dataclass(frozen=True, slots=True)
class TemplateRecord:
    """A template that sessions can be made of. ``golden``: its snapshot's reference (JSON), under its own key.

    ``digest`` names its root filesystem; ``shape`` is what the golden snapshot was taken with (JSON of limits).
    """

    tenant: TenantId
    name: str
    digest: str
    created_at_s: float
    wrapped_key: str
    golden: Mapping[str, str | int]
    engine_build: str
    image_bytes: int
    shape: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of sessions in creation order, newest first. ``cursor`` is None on the last page."""

    sessions: tuple[Session, ...]
    cursor: str | None = None


class Catalog(Protocol):
    """Sessions and templates of all tenants. May be called concurrently, from several processes.

    Errors of every method: Unavailable, StorageFull.
    """

    async def insert(self, session: Session) -> Session:
        """Store a new record; returns it with its revision. Raises: Conflict if its id or name is taken."""
        ...

    async def replace(self, session: Session) -> Session:
        """Store ``session`` if the stored revision is still ``session.revision``; returns it with the next one.

        Raises: StaleRevision (re-read and decide again); NotFound.
        """
        ...

    async def get(self, tenant: TenantId, session: SessionId) -> Session:
        """One record, deleted ones too. Raises: NotFound."""
        ...

    async def find(self, tenant: TenantId, name: str) -> Session | None:
        """The session of that name that is not deleted. A deleted session gives its name back."""
        ...

    async def page(self, tenant: TenantId, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Sessions that are not deleted. Raises: InvalidArgument for a cursor that no page gave."""
        ...

    async def unfinished(self) -> tuple[Session, ...]:
        """Sessions of all tenants that are neither paused, lost nor deleted: what a start has to reconcile."""
        ...

    async def due(self, now_s: float) -> tuple[Session, ...]:
        """Sessions of all tenants of which a clock of the record has ended at wall time ``now_s``."""
        ...

    async def put_template(self, template: TemplateRecord) -> None:
        """Store a template; a later one of the same tenant and name takes the name over, older digests stay."""
        ...

    async def template(self, tenant: TenantId, name: str) -> TemplateRecord:
        """The newest of that name, or the one whose digest is ``name``. Raises: NotFound listing the known names."""
        ...

    async def templates(self, tenant: TenantId) -> tuple[TemplateRecord, ...]:
        """The newest of each name, by name."""
        ...


class TemplateCatalog(Protocol):
    """What looks after templates that are no longer the newest of their names. Errors as of ``Catalog``."""

    async def all_templates(self, tenant: TenantId) -> tuple[TemplateRecord, ...]:
        """Those whose name has moved on too, oldest first."""
        ...

    async def remove_template(self, template: TemplateRecord) -> None:
        """Forget it; its name falls to the newest that is left of it. Idempotent."""
        ...

    async def sessions_of_template(self, digest: str) -> tuple[Session, ...]:
        """Sessions of all tenants that were made of this root filesystem and are not deleted."""
        ...
