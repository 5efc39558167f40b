"""Routes about what is stored: the store's check, its garbage, a catalog made anew, sessions as files."""

from __future__ import annotations

import base64
import binascii
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from torpor.apps.api import answers, schema
from torpor.apps.api.context import FAILURES, KEY, Here, Tenant
from torpor.apps.api.files import BINARY, UPLOAD, after, body_of
from torpor.apps.api.wire import garbage_json
from torpor.domain.errors import Corrupt, InvalidArgument

router = APIRouter(tags=["store"], dependencies=KEY, responses=FAILURES)

PASSPHRASE_CHARACTERS_MAX = 4096

Passphrase = Annotated[
    str,
    Header(
        alias="torpor-passphrase-base64",
        min_length=1,
        max_length=PASSPHRASE_CHARACTERS_MAX,
        description="the file's passphrase: base64 of its UTF-8",
    ),
]


@router.post("/store/check")
async def check(here: Here, tenant: Tenant) -> dict[str, Any]:
    """Read and authenticate everything in the snapshot store; `clean` says whether all of it is sound. Slow."""
    return dict(await here.backend.store_check(tenant))


@router.post("/store/gc", response_model=answers.GarbageAnswer)
async def collect_garbage(here: Here, tenant: Tenant, body: schema.GarbageBody | None = None) -> dict[str, Any]:
    """Remove what has been without use for the grace. A dry run says what would go now, what later, and why."""
    del tenant  # the store is the node's; whoever has the key may tidy it
    asked = body or schema.GarbageBody()
    report = await here.backend.maintenance.collect_garbage(
        dry_run=asked.dry_run, grace_s=asked.grace_s, keep=asked.keep
    )
    return garbage_json(report, dry_run=asked.dry_run)


@router.post("/store/rebuild-catalog", response_model=answers.RebuiltAnswer)
async def rebuild_catalog(here: Here, tenant: Tenant) -> dict[str, Any]:
    """Insert the sessions and templates that the store has and the catalog lacks; what is there stays as it is."""
    del tenant
    return asdict(await here.backend.maintenance.rebuild_catalog())


@router.get("/sessions/{ref}/export", response_class=StreamingResponse, responses={200: {"content": BINARY}})
async def export_session(here: Here, tenant: Tenant, ref: str, passphrase: Passphrase) -> StreamingResponse:
    """A session's newest snapshot as one file, sealed under the passphrase. What runs is not looked at: pause first."""
    session = await here.backend.get(tenant, ref)
    exported = await here.backend.maintenance.export_session(session, _passphrase(passphrase))
    first = await anext(exported.pieces, b"")  # failures come at the first step, while the status can still say so
    return StreamingResponse(
        after(first, exported.pieces),
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{exported.filename}"'},
    )


@router.post("/sessions/import", status_code=201, response_model=answers.SessionAnswer, openapi_extra=UPLOAD)
async def import_session(
    here: Here,
    tenant: Tenant,
    request: Request,
    passphrase: Passphrase,
    name: Annotated[str | None, Query(description="of the new session; none unless given")] = None,
) -> dict[str, Any]:
    """A new session, paused, out of an exported file, with a new id and key. Nothing is left of a failure."""
    pieces = body_of(request, "import")
    given = _passphrase(passphrase)
    try:
        return here.seen(await here.backend.maintenance.import_session(tenant, pieces, given, name=name))
    except Corrupt as error:  # what was sent is damaged, nothing of ours
        raise InvalidArgument(f"{error.message}; copy it again, or export it again", field="body") from error


def _passphrase(sent: str) -> str:
    try:
        return base64.b64decode(sent, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise InvalidArgument(
            "cannot read the passphrase: send base64 of its UTF-8 in the header", field="torpor-passphrase-base64"
        ) from error
