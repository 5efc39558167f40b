"""Who may speak, and how much at once. Plain ASGI: neither buffers a body nor cancels a handler."""

from __future__ import annotations

import hmac
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.apps.api.backend import Backend
from torpor.apps.api.failures import failure
from torpor.apps.api.tokens import Grant, SessionTokens, check_use, looks_like_token
from torpor.domain.errors import InvalidArgument, NotFound, PermissionDenied, TorporError, Unauthenticated
from torpor.domain.ids import SessionId, TenantId

BODY_BYTES_MAX = 64 * 1024 * 1024
DRAINED_BYTES_MAX = 256 * 1024 * 1024  # read and thrown away, so that the client gets to read why it was refused
OPEN_PATHS = frozenset({"/v1/health", "/openapi.json", "/docs"})  # nothing of any tenant in them
SESSIONS = "/v1/sessions/"
UNLIMITED = ("/files", "/input", "/sessions/import")  # streamed, and never held whole
KEY_PROTOCOL = "torpor.key."  # browsers cannot send headers with a WebSocket, but may offer protocols


class Authentication:
    """Lets a request through with its grant in ``scope["state"]``, or answers 401 or 403.

    A session's token reaches that session only, whatever name it is called by.
    """

    def __init__(self, app: ASGIApp, *, key: str, tenant: TenantId, tokens: SessionTokens) -> None:
        self._app = app
        self._key = key.encode()
        self._tenant = tenant
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        try:
            grant = self._grant(_sent_key(Headers(scope=scope)))
            if grant.session is not None:
                scope = await _confined(scope, grant.tenant, grant.session)
        except TorporError as error:
            await failure(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = grant.tenant
        await self._app(scope, receive, send)

    def _grant(self, sent: str | None) -> Grant:
        if sent is not None and hmac.compare_digest(sent.encode("latin-1"), self._key):
            return Grant(self._tenant)
        if sent is not None and looks_like_token(sent):
            return self._tokens.read(sent)
        what = "no key was sent" if sent is None else "the key is not this server's"
        raise Unauthenticated(
            f"cannot answer: {what}; send `Authorization: Bearer KEY` or `X-API-Key: KEY` "
            "(the key is in api.key in the server's TORPOR_HOME)"
        )


async def _confined(scope: Scope, tenant: TenantId, session: SessionId) -> Scope:
    """The request, at the session's id: a name is looked up once, so that it cannot come to mean another meanwhile."""
    ref, _, use = scope["path"].removeprefix(SESSIONS).partition("/")
    if not scope["path"].startswith(SESSIONS) or not ref:
        raise PermissionDenied(
            f"cannot use {scope['path']}: this token may use session {session} only; use the server's key",
            session=session,
        )
    if ref != session:
        backend: Backend = scope["app"].state.context.backend
        try:
            found = (await backend.get(tenant, ref)).id
        except NotFound:
            found = None
        if found != session:
            raise PermissionDenied(f"cannot use session {ref!r}: this token may use {session} only", session=session)
    check_use(scope.get("method", "GET"), use, session)
    path = f"{SESSIONS}{session}/{use}" if use else f"{SESSIONS}{session}"
    return {**scope, "path": path, "raw_path": path.encode()}


class BodyLimit:
    """Refuses a body above ``BODY_BYTES_MAX``; what is streamed has no such limit."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"].endswith(UNLIMITED):
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
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        if offered.strip().startswith(KEY_PROTOCOL):
            return offered.strip().removeprefix(KEY_PROTOCOL)
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
