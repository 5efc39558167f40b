"""The application: middleware, failures, routes, and the life of bursts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from torpor import __version__
from torpor.apps.api import bursting, files, sessions, system
from torpor.apps.api.backend import Backend
from torpor.apps.api.bursts import Bursts
from torpor.apps.api.context import Context
from torpor.apps.api.failures import add_handlers
from torpor.apps.api.middleware import Authentication, BodyLimit
from torpor.domain.ids import DEFAULT_TENANT, TenantId
from torpor.ports.clock import Clock


def create_app(backend: Backend, key: str, *, clock: Clock, tenant: TenantId = DEFAULT_TENANT) -> FastAPI:
    """The API over ``backend``; whoever sends ``key`` acts as ``tenant``. Its lifespan must be run."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Bursts() as bursts:
            app.state.context = Context(backend=backend, clock=clock, bursts=bursts)
            yield

    app = FastAPI(title="torpor", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    for router in (system.router, sessions.router, bursting.router, files.router):
        app.include_router(router, prefix="/v1")
    add_handlers(app)
    app.add_middleware(BodyLimit)
    app.add_middleware(Authentication, key=key, tenant=tenant)  # added last, hence outermost
    return app
