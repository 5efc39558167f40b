"""Doing a request once, however often it is sent with the same key."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Header, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from torpor.apps.api.context import Context
from torpor.apps.api.wire import JSON
from torpor.domain.errors import TorporError
from torpor.domain.ids import TenantId
from torpor.ports.answers import Keyed, StoredAnswer

KEY_CHARACTERS_MAX = 255

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=KEY_CHARACTERS_MAX,
        description="a new name for each request: sent again, the stored answer comes back and nothing is done again",
    ),
]


async def once(
    here: Context,
    tenant: TenantId,
    key: str | None,
    asked: tuple[str, BaseModel],
    work: Callable[[], Awaitable[tuple[int, JSON]]],
) -> Response:
    """``work``'s status and JSON, or the answer that its key had before. ``asked``: the route, and the body.

    Only what was done is kept: a failed request may be repeated under its key.
    """
    if key is None:
        status, said = await work()
        return JSONResponse(said, status)
    route, body = asked
    fingerprint = hashlib.sha256(f"{route}\0{body.model_dump_json()}".encode()).hexdigest()
    request = Keyed(tenant, key, fingerprint)
    stored = await here.answers.begin(request, now_s=here.clock.wall_s())
    if stored is not None:
        headers = {"idempotency-replayed": "true"}
        return Response(stored.body, stored.status, headers, media_type="application/json")
    try:
        status, said = await work()
    except TorporError:
        await here.answers.forget(request)
        raise
    except BaseException:
        await here.answers.doubt(request)
        raise
    answer = JSONResponse(said, status)
    await here.answers.finish(request, StoredAnswer(status, bytes(answer.body)))
    return answer
