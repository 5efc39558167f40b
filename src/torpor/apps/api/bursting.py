"""Routes that run something in a session. Each wakes it; as a stream, output comes while it is made.

A stream is server-sent events (``?stream=true``) or frames (``Accept``): any number of outputs, then one result or one
error. A failure before the first output, such as an unknown session, has its HTTP status as everywhere; the stream's
error is for later ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from torpor.apps.api import answers, schema
from torpor.apps.api.context import FAILURES, KEY, Context, Here, Tenant
from torpor.apps.api.output import Collector, Outlet
from torpor.apps.api.streams import EVENT, Form, form_for
from torpor.apps.api.wire import JSON, burst_json, error_json, outcome_json
from torpor.apps.sdk.frames import MEDIA_TYPE
from torpor.domain.errors import TorporError
from torpor.ports.guest import OnOutput
from torpor.services.requests import Burst

router = APIRouter(prefix="/sessions/{ref}", tags=["bursts"], dependencies=KEY, responses=FAILURES)

KEEP_ALIVE_S = 15.0  # below the idle limits of common proxies (60 s)

Stream = Annotated[bool, Query(description="answer with server-sent events: output, then result or error")]
Accept = Annotated[str, Header(include_in_schema=False)]  # OpenAPI has it as the media types of the answer
Work = Callable[[OnOutput], Awaitable[Burst]]
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "model": answers.BurstAnswer,
        "content": {
            "text/event-stream": {"schema": EVENT},
            MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}},
        },
        "description": "the burst ended, whatever its exit code",
    }
}


@router.post("/code", response_model=None, responses=ANSWERS)
async def code(
    here: Here, tenant: Tenant, ref: str, body: schema.CodeBody, *, stream: Stream = False, accept: Accept = ""
) -> Response | JSON:
    """Run Python in a context that keeps its variables. An exception in it is an answer: ``error``."""

    def work(on_output: OnOutput) -> Awaitable[Burst]:
        return here.backend.code(
            tenant, ref, body.source, context=body.context, timeout_s=body.timeout_s, on_output=on_output
        )

    return await _answer(here, work, form_for(accept, stream=stream))


@router.post("/shell", response_model=None, responses=ANSWERS)
async def shell(
    here: Here, tenant: Tenant, ref: str, body: schema.ShellBody, *, stream: Stream = False, accept: Accept = ""
) -> Response | JSON:
    """Run a command in a shell that keeps its directory and variables."""

    def work(on_output: OnOutput) -> Awaitable[Burst]:
        return here.backend.shell(
            tenant, ref, body.command, shell=body.shell, timeout_s=body.timeout_s, on_output=on_output
        )

    return await _answer(here, work, form_for(accept, stream=stream))


@router.post("/exec", response_model=None, responses=ANSWERS)
async def execute(
    here: Here, tenant: Tenant, ref: str, body: schema.ExecBody, *, stream: Stream = False, accept: Accept = ""
) -> Response | JSON:
    """Run a process to its end, or start it with ``detach``."""
    process = body.process()

    def work(on_output: OnOutput) -> Awaitable[Burst]:
        return here.backend.execute(tenant, ref, process, on_output=on_output)

    return await _answer(here, work, form_for(accept, stream=stream))


@router.post("/interrupt", status_code=204)
async def interrupt(here: Here, tenant: Tenant, ref: str, body: schema.InterruptBody | None = None) -> None:
    """KeyboardInterrupt in a context's running burst; nothing if it runs none."""
    await here.backend.interrupt(tenant, ref, context=(body or schema.InterruptBody()).context)


async def _answer(here: Context, work: Work, form: Form | None) -> Response | JSON:
    return await (_collected(here, work) if form is None else _streamed(here, work, form))


async def _collected(here: Context, work: Work) -> JSON:
    started_s = here.clock.monotonic_s()
    collector = Collector()
    outcome = here.bursts.start(lambda: work(collector), ended=lambda: None)
    burst = await asyncio.shield(outcome)
    return burst_json(burst, collector, took_ms=(here.clock.monotonic_s() - started_s) * 1000)


async def _streamed(here: Context, work: Work, form: Form) -> Response:
    started_s = here.clock.monotonic_s()
    outlet = Outlet()
    outcome = here.bursts.start(lambda: work(outlet), ended=outlet.end)
    first = await _next(outlet, form)
    if not first and (error := outcome.exception()) is not None:
        raise error

    def took_ms() -> float:
        return (here.clock.monotonic_s() - started_s) * 1000

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    if outlet.drained:  # it is over: one answer costs a third of a stream
        return Response(first + _last(outcome, form, took_ms()), media_type=form.media_type, headers=headers)
    events = stream_of(first, outlet, outcome, form, took_ms)
    return StreamingResponse(events, media_type=form.media_type, headers=headers)


async def stream_of(
    first: bytes, outlet: Outlet, outcome: asyncio.Future[Burst], form: Form, took_ms: Callable[[], float]
) -> AsyncIterator[bytes]:
    """A burst's output from ``first`` on, then how it ended. Closing it lets the burst go on without a reader."""
    try:
        said = first
        while said:
            yield said
            said = await _next(outlet, form)
        yield _last(outcome, form, took_ms())
    finally:
        outlet.leave()


async def _next(outlet: Outlet, form: Form) -> bytes:
    if outlet.drained:
        return b""
    try:
        async with asyncio.timeout(KEEP_ALIVE_S):
            pieces = await outlet.read()
    except TimeoutError:
        return form.keep_alive()
    return form.output(pieces)


def _last(outcome: asyncio.Future[Burst], form: Form, took_ms: float) -> bytes:
    error = outcome.exception()
    if isinstance(error, TorporError):
        return form.error(error_json(error))
    return form.result(outcome_json(outcome.result(), took_ms=took_ms))
