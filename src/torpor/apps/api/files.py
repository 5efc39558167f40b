"""Routes that carry a file's bytes, raw and streamed. Both wake the session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from torpor.apps.api import answers
from torpor.apps.api.context import FAILURES, KEY, Here, Tenant
from torpor.domain.errors import InvalidArgument

router = APIRouter(prefix="/sessions/{ref}/files", tags=["files"], dependencies=KEY, responses=FAILURES)

PATH_CHARACTERS_MAX = 4096  # Linux's PATH_MAX

BINARY: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
UPLOAD: dict[str, Any] = {"requestBody": {"required": True, "content": BINARY}}

FilePath = Annotated[str, Query(min_length=1, max_length=PATH_CHARACTERS_MAX, description="in the session")]
Mode = Annotated[str, Query(pattern=r"^0?[0-7]{3,4}$", description="permission bits, octal")]


@router.get("", response_class=StreamingResponse, responses={200: {"content": BINARY}})
async def read(here: Here, tenant: Tenant, ref: str, path: FilePath) -> StreamingResponse:
    """A file's bytes. The header ``Torpor-Woken: true`` says that the session was paused before."""
    session = await here.backend.get(tenant, ref)
    pieces = here.backend.read_file(tenant, session.id, path)
    first = await anext(pieces, b"")  # failures come at the first step, while the status can still say so
    headers = {"torpor-woken": "true"} if session.status.public == "paused" else {}
    return StreamingResponse(after(first, pieces), media_type="application/octet-stream", headers=headers)


@router.put("", response_model=answers.WrittenAnswer, openapi_extra=UPLOAD)
async def write(
    here: Here, tenant: Tenant, ref: str, path: FilePath, request: Request, mode: Mode = "644"
) -> dict[str, Any]:
    """Write a whole file: parents are made, an existing one is replaced at once or not at all."""
    session = await here.backend.get(tenant, ref)
    size_bytes = await here.backend.write_file(
        tenant, session.id, path, body_of(request, "write the file"), mode=int(mode, 8)
    )
    return {"path": path, "size_bytes": size_bytes, "woken": session.status.public == "paused"}


async def after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """``first``, then the rest; a client that leaves ends the rest."""
    try:
        yield first
        async for piece in rest:
            yield piece
    finally:
        if isinstance(rest, AsyncGenerator):
            await rest.aclose()  # a client that left: let the guest stop reading now, not at the next collection


async def body_of(request: Request, what: str) -> AsyncIterator[bytes]:
    """A body's pieces, of any size together. Raises: InvalidArgument if it ends before its end."""
    try:
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                if piece:
                    yield piece
    except ClientDisconnect as error:
        raise InvalidArgument(f"cannot {what}: the upload ended before its end; send it again", field="body") from error
