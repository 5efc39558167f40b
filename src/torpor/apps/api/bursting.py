"""Routes that run something in a session. Each wakes it; with ``?stream=true`` output comes while it is made.

A stream is server-sent events: any number of ``output``, then one ``result`` or one ``error``. A failure before the
first output, such as an unknown session, has its HTTP status as everywhere; ``error`` is for later ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from torpor.apps.api import schema
from torpor.apps.api.context import FAILURES, KEY, Context, Here, Tenant
from torpor.apps.api.output import Collector, Outlet, output_json
from torpor.apps.api.wire import JSON, burst_json, error_json, outcome_json
from torpor.domain.errors import TorporError
from torpor.ports.guest import OnOutput
from torpor.services.requests import Burst

router = APIRouter(prefix="/sessions/{ref}", tags=["bursts"], dependencies=KEY, responses=FAILURES)

KEEP_ALIVE_S = 15.0  # below the idle limits of common proxies (60 s)

Stream = Annotated[bool, Query(description="answer with server-sent events: output, then result or error")]
Work = Callable[[OnOutput], Awaitable[Burst]]
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "model": schema.BurstAnswer,
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "the burst ended, whatever its exit code",
    }
}


@router.post("/code", response_model=None, responses=ANSWERS)
async def code(
    here: Here, tenant: Tenant, ref: str, body: schema.CodeBody, *, stream: Stream = False
) -> Response | JSON:
    """Run Python in a context that keeps its variables. An exception in it is an answer: ``error``."""

    def work(on_output: OnOutput) -> Awaitable[Burst]:
        return here.backend.code(
            tenant, ref, body.source, context=body.context, timeout_s=body.timeout_s, on_output=on_output
        )

    return await _answer(here, work, stream=stream)


@router.post("/shell", response_model=None, responses=ANSWERS)
async def shell(
    here: Here, tenant: Tenant, ref: str, body: schema.ShellBody, *, stream: Stream = False
) -> Response | JSON:
    """Run a command in a shell that keeps its directory and variables."""

    def work(on_output: OnOutput) -> Awaitable[Burst]:
        return here.backend.shell(
            tenant, ref, body.command, shell=body.shell, timeout_s=body.timeout_s, on_output=on_output
        )

    return await _answer(here, work, stream=stream)


@router.post("/exec", response_model=None, responses=ANSWERS)
async def execute(
    here: Here, tenant: Tenant, ref: str, body: schema.ExecBody, *, stream: Stream = False
) -> Response | JSON:
    """Run a process to its end, or start it with ``detach``."""
    process = body.process()

    def work(on_output: OnOutput) -> Awaitable[Burst]:
        return here.backend.execute(tenant, ref, process, on_output=on_output)

    return await _answer(here, work, stream=stream)


@router.post("/interrupt", status_code=204)
async def interrupt(here: Here, tenant: Tenant, ref: str, body: schema.InterruptBody | None = None) -> None:
    """KeyboardInterrupt in a context's running burst; nothing if it runs none."""
    await here.backend.interrupt(tenant, ref, context=(body or schema.InterruptBody()).context)


async def _answer(here: Context, work: Work, *, stream: bool) -> Response | JSON:
    return await (_streamed(here, work) if stream else _collected(here, work))


async def _collected(here: Context, work: Work) -> JSON:
    started_s = here.clock.monotonic_s()
    collector = Collector()
    outcome = here.bursts.start(lambda: work(collector), ended=lambda: None)
    burst = await asyncio.shield(outcome)
    return burst_json(burst, collector, took_ms=(here.clock.monotonic_s() - started_s) * 1000)


async def _streamed(here: Context, work: Work) -> Response:
    started_s = here.clock.monotonic_s()
    outlet = Outlet()
    outcome = here.bursts.start(lambda: work(outlet), ended=outlet.end)
    first = await _next_events(outlet)
    if not first and (error := outcome.exception()) is not None:
        raise error

    def took_ms() -> float:
        return (here.clock.monotonic_s() - started_s) * 1000

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_events(first, outlet, outcome, took_ms), media_type="text/event-stream", headers=headers)


async def _events(
    first: bytes, outlet: Outlet, outcome: asyncio.Future[Burst], took_ms: Callable[[], float]
) -> AsyncIterator[bytes]:
    try:
        events = first
        while events:
            yield events
            events = await _next_events(outlet)
        yield _last_event(outcome, took_ms())
    finally:
        outlet.leave()


async def _next_events(outlet: Outlet) -> bytes:
    try:
        async with asyncio.timeout(KEEP_ALIVE_S):
            pieces = await outlet.read()
    except TimeoutError:
        return b": keep-alive\n\n"
    return b"".join(_event("output", output_json(piece)) for piece in pieces)


def _last_event(outcome: asyncio.Future[Burst], took_ms: float) -> bytes:
    error = outcome.exception()
    if isinstance(error, TorporError):
        return _event("error", error_json(error))
    return _event("result", outcome_json(outcome.result(), took_ms=took_ms))


def _event(name: str, data: JSON) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
