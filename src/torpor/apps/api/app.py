"""The application: middleware, failures, routes, and the life of bursts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from fastapi import FastAPI

from torpor import __version__
from torpor.adapters.answers import SqliteAnswers
from torpor.apps.api import bursting, files, folders, pages, processes, sessions, sockets, store, system
from torpor.apps.api.backend import Backend
from torpor.apps.api.bursts import Bursts
from torpor.apps.api.context import Context
from torpor.apps.api.failures import add_handlers
from torpor.apps.api.middleware import Authentication, BodyLimit
from torpor.apps.api.tokens import SessionTokens
from torpor.domain.ids import DEFAULT_TENANT, TenantId
from torpor.ports.clock import Clock


def create_app(
    backend: Backend,
    key: str,
    *,
    clock: Clock,
    tenant: TenantId = DEFAULT_TENANT,
    answers_file: Path | None = None,
) -> FastAPI:
    """The API over ``backend``; whoever sends ``key`` acts as ``tenant``. Its lifespan must be run.

    ``answers_file``: where answers to idempotency keys outlive the process; None keeps them in memory.
    """
    tokens = SessionTokens(key, clock)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        book = SqliteAnswers(answers_file)
        await book.open()
        try:
            async with Bursts() as bursts:
                app.state.context = Context(backend, clock, bursts, book, tokens)
                yield
        finally:
            await book.close()

    app = FastAPI(title="torpor", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    for part in (system, store, sessions, bursting, files, folders, processes, sockets):
        app.include_router(part.router, prefix="/v1")
    app.include_router(processes.sockets, prefix="/v1")
    app.add_api_route("/docs", pages.page, include_in_schema=False)
    add_handlers(app)
    app.add_middleware(BodyLimit)
    app.add_middleware(Authentication, key=key, tenant=tenant, tokens=tokens)  # added last, hence outermost
    return app


async def make_ready(app: FastAPI) -> None:
    """Do now what FastAPI leaves to the first requests, so that no session that is to be woken waits for it as well.

    A router's models are made when a request first looks for its route there, and what streams need is loaded with the
    first stream: 80 ms of a server's first resume, measured.
    """
    nowhere = {"type": "http", "method": "GET", "path": "/nowhere", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(nowhere)
    async with anyio.create_task_group():
        pass
