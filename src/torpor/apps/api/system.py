"""Routes about the node: health, engine, templates."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from torpor import __version__
from torpor.apps.api import answers
from torpor.apps.api.context import FAILURES, KEY, Here, Tenant
from torpor.apps.api.wire import shelved_json, template_json

router = APIRouter(tags=["node"])
keyed = APIRouter(dependencies=KEY, responses=FAILURES)


@router.get("/health")
async def health(here: Here) -> dict[str, Any]:
    """Whether the server is up. The one route that needs no key."""
    return {"status": "ok", "version": __version__, **await here.backend.health()}


@keyed.get("/engine")
async def engine(here: Here) -> dict[str, Any]:
    """The engine in use and what it can do on this host."""
    return dict(await here.backend.engine_info())


@keyed.get("/templates", response_model=answers.TemplatesAnswer)
async def templates(here: Here, tenant: Tenant) -> dict[str, Any]:
    """The newest template of each name."""
    return {"templates": [template_json(record) for record in await here.backend.templates(tenant)]}


@keyed.get("/templates/{template}", response_model=answers.ShelvedAnswer)
async def inspect_template(here: Here, tenant: Tenant, template: str) -> dict[str, Any]:
    """One template, by name or digest, with the number of sessions that were made of it."""
    del tenant
    return shelved_json(await here.backend.shelf.inspect(template))


@keyed.delete("/templates/{template}", response_model=answers.ShelvedAnswer)
async def remove_template(here: Here, tenant: Tenant, template: str) -> dict[str, Any]:
    """Remove a template with its golden snapshot and root filesystem. Refused while a session was made of it."""
    del tenant
    return shelved_json(await here.backend.shelf.remove(template))


router.include_router(keyed)
