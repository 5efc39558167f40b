"""Routes about a session's life."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from torpor.apps.api import answers, schema
from torpor.apps.api.context import FAILURES, KEY, Context, Here, Tenant
from torpor.apps.api.idempotency import IdempotencyKey, once
from torpor.apps.api.tokens import Grant
from torpor.apps.api.wire import JSON, instant, resumption_json, session_json
from torpor.domain.errors import Conflict, InvalidArgument, NotFound
from torpor.domain.ids import TenantId, parse_name
from torpor.domain.session import Session

router = APIRouter(prefix="/sessions", tags=["sessions"], dependencies=KEY, responses=FAILURES)

PAGE_MAX = 1000


@router.post(
    "",
    status_code=201,
    response_model=answers.PlacedAnswer,
    responses={200: {"model": answers.PlacedAnswer, "description": "it existed already (get_or_create)"}},
)
async def create(
    here: Here, tenant: Tenant, body: schema.CreateBody | None = None, *, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create a session; it runs on return. ``resumed`` is null if it existed already (``get_or_create``)."""
    asked = body or schema.CreateBody()

    async def work() -> tuple[int, JSON]:
        existing = await _existing(here, tenant, asked)
        if existing is not None:
            return 200, {**here.seen(existing), "resumed": None}
        try:
            session, resumption = await here.backend.create(tenant, asked.request())
        except Conflict:
            existing = await _existing(here, tenant, asked)  # somebody else made it meanwhile
            if existing is None:
                raise
            return 200, {**here.seen(existing), "resumed": None}
        return 201, {**here.seen(session), "resumed": resumption_json(resumption)}

    return await once(here, tenant, idempotency_key, ("create", asked), work)


async def _existing(here: Context, tenant: TenantId, asked: schema.CreateBody) -> Session | None:
    """The session of the name asked for. Raises: Conflict if it is of another template than was asked for."""
    if not asked.get_or_create:
        return None
    if asked.name is None:
        raise InvalidArgument("cannot get or create without a name: give one", field="name")
    try:
        session = await here.backend.get(tenant, parse_name(asked.name, field="name"))
    except NotFound:
        return None
    if "template" in asked.model_fields_set and session.template != asked.template:
        raise Conflict(
            f"cannot use session {asked.name!r}: it is of template {session.template}, not {asked.template}; "
            "leave the template out, or choose another name",
            reason="template_differs",
            field="template",
        )
    return session


@router.get("", response_model=answers.PageAnswer)
async def page(
    here: Here,
    tenant: Tenant,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
) -> Response:
    """Sessions that are not deleted, newest first."""
    found = await here.backend.page(tenant, cursor=cursor, limit=limit)
    # A response of its own: to have every field of a thousand sessions looked at once more takes longer than all else.
    return JSONResponse({"sessions": [here.seen(session) for session in found.sessions], "cursor": found.cursor})


@router.get("/{ref}", response_model=answers.InspectAnswer)
async def inspect(here: Here, tenant: Tenant, ref: str) -> dict[str, Any]:
    """One session, by id or name, with its CPU and memory as of now."""
    session = await here.backend.get(tenant, ref)
    usage = await here.backend.usage(tenant, session.id)
    awake_because = list(here.backend.awake_because(session.id))
    return {**session_json(session, now_s=here.clock.wall_s(), usage=usage), "awake_because": awake_because}


@router.delete("/{ref}", response_model=answers.SessionAnswer)
async def delete(here: Here, tenant: Tenant, ref: str) -> dict[str, Any]:
    """Delete a session and destroy its key: no byte of it can be read again."""
    return here.seen(await here.backend.delete(tenant, ref))


@router.post("/{ref}/pause", response_model=answers.SessionAnswer)
async def pause(
    here: Here,
    tenant: Tenant,
    ref: str,
    body: schema.PauseBody | None = None,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Snapshot a session and give its instance back. A paused one answers at once."""
    asked = body or schema.PauseBody()

    async def work() -> tuple[int, JSON]:
        return 200, here.seen(await here.backend.pause(tenant, ref, wait=asked.durability()))

    return await once(here, tenant, idempotency_key, (f"pause {ref}", asked), work)


@router.post("/{ref}/resume", response_model=answers.PlacedAnswer)
async def resume(here: Here, tenant: Tenant, ref: str, body: schema.ResumeBody | None = None) -> dict[str, Any]:
    """Bring a session back; bursts and files do so on their own. ``resumed`` is null if it ran already."""
    allow_older = (body or schema.ResumeBody()).allow_older
    session, resumption = await here.backend.resume(tenant, ref, allow_older=allow_older)
    return {**here.seen(session), "resumed": resumption_json(resumption)}


@router.post("/{ref}/snapshot", response_model=answers.SessionAnswer)
async def snapshot(here: Here, tenant: Tenant, ref: str) -> dict[str, Any]:
    """Store what a session is now, and let it go on."""
    return here.seen(await here.backend.snapshot(tenant, ref))


@router.post("/{ref}/fork", status_code=201, response_model=answers.ForksAnswer)
async def fork(
    here: Here, tenant: Tenant, ref: str, body: schema.ForkBody | None = None, *, idempotency_key: IdempotencyKey = None
) -> Response:
    """Copies of a session as it is now, each with an identity of its own. All of them, or none."""
    asked = body or schema.ForkBody()

    async def work() -> tuple[int, JSON]:
        forks = await here.backend.fork(tenant, ref, asked.request())
        return 201, {"sessions": [{**here.seen(one), "resumed": resumption_json(how)} for one, how in forks]}

    return await once(here, tenant, idempotency_key, (f"fork {ref}", asked), work)


@router.patch("/{ref}/clocks", response_model=answers.SessionAnswer)
async def set_clocks(here: Here, tenant: Tenant, ref: str, body: schema.ClocksBody) -> dict[str, Any]:
    """Set those clocks of a session that the body names. A paused one stays paused."""
    return here.seen(await here.backend.set_clocks(tenant, ref, body.change()))


@router.post("/{ref}/tokens", status_code=201, response_model=answers.TokenAnswer)
async def make_token(here: Here, tenant: Tenant, ref: str, body: schema.TokenBody | None = None) -> dict[str, Any]:
    """A token that may use this session only, for a browser or an agent. It ends with the session."""
    session = await here.backend.get(tenant, ref)
    ttl_s = (body or schema.TokenBody()).ttl_s
    token, expires_at_s = here.tokens.make(Grant(tenant, session.id), ttl_s=ttl_s)
    return {"token": token, "session": session.id, "expires_at": instant(expires_at_s)}
