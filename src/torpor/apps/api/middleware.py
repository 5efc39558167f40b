"""Who may speak, and how much at once. Plain ASGI: neither buffers a body nor cancels a handler."""

from __future__ import annotations

import hmac
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.apps.api.failures import failure
from torpor.domain.errors import InvalidArgument, Unauthenticated
from torpor.domain.ids import TenantId

BODY_BYTES_MAX = 64 * 1024 * 1024
DRAINED_BYTES_MAX = 256 * 1024 * 1024  # read and thrown away, so that the client gets to read why it was refused
OPEN_PATHS = frozenset({"/v1/health"})


class Authentication:
    """Lets a request through with its tenant in ``scope["state"]``, or answers 401."""

    def __init__(self, app: ASGIApp, *, key: str, tenant: TenantId) -> None:
        self._app = app
        self._key = key.encode()
        self._tenant = tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        sent = _sent_key(Headers(scope=scope))
        if sent is None or not hmac.compare_digest(sent.encode("latin-1"), self._key):
            what = "no key was sent" if sent is None else "the key is not this server's"
            refusal = Unauthenticated(
                f"cannot answer: {what}; send `Authorization: Bearer KEY` or `X-API-Key: KEY` "
                "(the key is in api.key in the server's TORPOR_HOME)"
            )
            await failure(refusal)(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = self._tenant
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses a body above ``BODY_BYTES_MAX``; files are streamed and have no such limit."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"].endswith("/files"):
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > BODY_BYTES_MAX:
            await _drain(receive)
            await failure(too_large(), status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)(scope, receive, send)
            return
        await self._app(scope, _counting(receive), send)


def too_large() -> InvalidArgument:
    """What a client is told of a body above the limit."""
    return InvalidArgument(
        f"cannot read the body: it is larger than {BODY_BYTES_MAX >> 20} MiB; "
        "write the data with PUT /v1/sessions/{ref}/files (`torpor cp`), which has no limit, and read it from there",
        field="body",
        limit_bytes=BODY_BYTES_MAX,
    )


def _sent_key(headers: Headers) -> str | None:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return headers.get("x-api-key") or None


def _counting(receive: Receive) -> Receive:
    read_bytes = 0

    async def counted() -> Message:
        nonlocal read_bytes
        message = await receive()
        read_bytes += len(message.get("body", b""))
        if read_bytes > BODY_BYTES_MAX:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return message

    return counted


async def _drain(receive: Receive) -> None:
    drained_bytes = 0
    while drained_bytes < DRAINED_BYTES_MAX:
        message = await receive()
        drained_bytes += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
