"""Routes about files that carry no bytes of theirs: list, look, make, move, remove, watch. Each wakes the session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from torpor.apps.api import answers, schema
from torpor.apps.api.context import FAILURES, KEY, Context, Here, Tenant
from torpor.apps.api.files import FilePath
from torpor.apps.api.streams import EVENT_STREAM, event
from torpor.apps.api.wire import JSON, error_json, instant
from torpor.domain.errors import TorporError
from torpor.domain.ids import TenantId
from torpor.ports.guest import FileInfo

router = APIRouter(prefix="/sessions/{ref}/files", tags=["files"], dependencies=KEY, responses=FAILURES)

PAGE_MAX = 10_000


@router.get("/list", response_model=answers.FilesAnswer)
async def list_files(
    here: Here,
    tenant: Tenant,
    ref: str,
    path: FilePath,
    *,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 1000,
    cursor: str | None = None,
) -> dict[str, Any]:
    """A directory's entries, in order of names."""
    async with here.backend.guest(tenant, ref) as (guest, _):
        page = await guest.list_files(path, limit=limit, after=cursor)
    return {"entries": [file_json(one) for one in page.entries], "cursor": page.next_after}


@router.get("/stat", response_model=answers.FileAnswer)
async def stat_file(here: Here, tenant: Tenant, ref: str, path: FilePath) -> dict[str, Any]:
    """What a path names; links are not followed."""
    async with here.backend.guest(tenant, ref) as (guest, _):
        return file_json(await guest.stat_file(path))


@router.post("/directories", response_model=answers.DirectoryAnswer)
async def make_directory(here: Here, tenant: Tenant, ref: str, body: schema.DirectoryBody) -> dict[str, Any]:
    """Make a directory with its parents; ``made`` is false if it was there."""
    async with here.backend.guest(tenant, ref) as (guest, _):
        made = await guest.make_directory(body.path, mode=int(body.mode, 8), user=body.user)
    return {"path": body.path, "made": made}


@router.post("/move", status_code=204)
async def move_file(here: Here, tenant: Tenant, ref: str, body: schema.MoveBody) -> None:
    """Rename a file or directory, over a file that is there; the parents of the target are made."""
    async with here.backend.guest(tenant, ref) as (guest, _):
        await guest.move_file(body.path, body.to)


@router.delete("", status_code=204)
async def remove_file(
    here: Here, tenant: Tenant, ref: str, path: FilePath, *, recursive: Annotated[bool, Query()] = False
) -> None:
    """Remove a file, a link, or a directory (with what is in it, if ``recursive``)."""
    async with here.backend.guest(tenant, ref) as (guest, _):
        await guest.remove_file(path, recursive=recursive)


@router.get("/watch", response_class=StreamingResponse, responses={200: EVENT_STREAM})
async def watch(
    here: Here, tenant: Tenant, ref: str, path: FilePath, *, recursive: Annotated[bool, Query()] = False
) -> StreamingResponse:
    """Changes in a directory, as server-sent events ``change``; a pause of the session ends them with an ``error``."""
    await here.backend.get(tenant, ref)
    return StreamingResponse(_changes(here, tenant, ref, path, recursive=recursive), media_type="text/event-stream")


async def _changes(here: Context, tenant: TenantId, ref: str, path: str, *, recursive: bool) -> AsyncIterator[bytes]:
    try:
        async with (
            here.backend.guest(tenant, ref) as (guest, _),
            aclosing(guest.watch_files(path, recursive=recursive)) as changes,
        ):
            async for one in changes:
                said = {"change": one.change.value, "path": one.path, "dropped_count": one.dropped_count}
                yield event("change", said)
    except TorporError as error:
        yield event("error", error_json(error))


def file_json(info: FileInfo) -> JSON:
    """A file, as clients see it."""
    return {
        "path": info.path,
        "kind": info.kind.value,
        "size_bytes": info.size_bytes,
        "mode": f"{info.mode:o}",
        "owner": info.owner,
        "group": info.group,
        "modified_at": instant(info.modified_at_s),
        "target": info.target,
    }
