"""Routes about the node: health, engine, templates, store."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from torpor import __version__
from torpor.apps.api import schema
from torpor.apps.api.context import FAILURES, KEY, Here, Tenant
from torpor.apps.api.wire import template_json

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


@keyed.get("/templates", response_model=schema.TemplatesAnswer)
async def templates(here: Here, tenant: Tenant) -> dict[str, Any]:
    """The newest template of each name."""
    return {"templates": [template_json(record) for record in await here.backend.templates(tenant)]}


@keyed.post("/store/check")
async def store_check(here: Here, tenant: Tenant) -> dict[str, Any]:
    """Read and authenticate everything in the snapshot store; ``clean`` says whether all of it is sound. Slow."""
    return dict(await here.backend.store_check(tenant))


router.include_router(keyed)
