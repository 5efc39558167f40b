"""Routes about a session's life."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from torpor.apps.api import schema
from torpor.apps.api.context import FAILURES, KEY, Here, Tenant
from torpor.apps.api.wire import resumption_json, session_json

router = APIRouter(prefix="/sessions", tags=["sessions"], dependencies=KEY, responses=FAILURES)

PAGE_MAX = 1000


@router.post("", status_code=201, response_model=schema.PlacedAnswer)
async def create(here: Here, tenant: Tenant, body: schema.CreateBody | None = None) -> dict[str, Any]:
    """Create a session; it runs on return."""
    session, resumption = await here.backend.create(tenant, (body or schema.CreateBody()).request())
    return {**here.seen(session), "resumed": resumption_json(resumption)}


@router.get("", response_model=schema.PageAnswer)
async def page(
    here: Here,
    tenant: Tenant,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
) -> dict[str, Any]:
    """Sessions that are not deleted, newest first."""
    found = await here.backend.page(tenant, cursor=cursor, limit=limit)
    return {"sessions": [here.seen(session) for session in found.sessions], "cursor": found.cursor}


@router.get("/{ref}", response_model=schema.SessionAnswer)
async def inspect(here: Here, tenant: Tenant, ref: str) -> dict[str, Any]:
    """One session, by id or name, with its CPU and memory as of now."""
    session = await here.backend.get(tenant, ref)
    usage = await here.backend.usage(tenant, session.id)
    return session_json(session, now_s=here.clock.wall_s(), usage=usage)


@router.delete("/{ref}", response_model=schema.SessionAnswer)
async def delete(here: Here, tenant: Tenant, ref: str) -> dict[str, Any]:
    """Delete a session and destroy its key: no byte of it can be read again."""
    return here.seen(await here.backend.delete(tenant, ref))


@router.post("/{ref}/pause", response_model=schema.SessionAnswer)
async def pause(here: Here, tenant: Tenant, ref: str, body: schema.PauseBody | None = None) -> dict[str, Any]:
    """Snapshot a session and give its instance back. A paused one answers at once."""
    wait = (body or schema.PauseBody()).durability()
    return here.seen(await here.backend.pause(tenant, ref, wait=wait))


@router.post("/{ref}/resume", response_model=schema.PlacedAnswer)
async def resume(here: Here, tenant: Tenant, ref: str, body: schema.ResumeBody | None = None) -> dict[str, Any]:
    """Bring a session back; bursts and files do so on their own. ``resumed`` is null if it ran already."""
    allow_older = (body or schema.ResumeBody()).allow_older
    session, resumption = await here.backend.resume(tenant, ref, allow_older=allow_older)
    return {**here.seen(session), "resumed": resumption_json(resumption)}
