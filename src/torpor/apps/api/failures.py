"""Every failure as ``{code, message, details}``, whoever raised it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from torpor.apps.api.wire import error_json
from torpor.domain.errors import InvalidArgument, NotFound, TorporError


def failure(error: TorporError, *, status: int | None = None) -> JSONResponse:
    """The answer that says ``error``."""
    headers = {}
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if "retry_after_s" in error.details:
        headers["retry-after"] = str(max(1, round(error.details["retry_after_s"])))
    return JSONResponse(error_json(error), status_code=status or error.http_status, headers=headers)


def add_handlers(app: FastAPI) -> None:
    """Map what handlers, validation, routing and bugs raise. A bug is logged by the server, once."""

    @app.exception_handler(TorporError)
    async def known(_request: Request, error: TorporError) -> JSONResponse:
        return failure(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(_request: Request, error: RequestValidationError) -> JSONResponse:
        return failure(from_validation(error.errors()))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return failure(_from_http(request, error), status=error.status_code)

    @app.exception_handler(Exception)
    async def bug(_request: Request, _error: Exception) -> JSONResponse:
        return failure(TorporError("cannot answer: an internal error, written to the server's log"))


def from_validation(problems: Sequence[Any]) -> InvalidArgument:
    """What pydantic found wrong, as our error: the first of it."""
    first = problems[0]
    place = [str(part) for part in first["loc"] if part not in {"body", "query", "path", "header"}]
    field = ".".join(place) if place and first["type"] != "json_invalid" else "body"
    return InvalidArgument(
        f"cannot use {field}: {first['msg'][:1].lower()}{first['msg'][1:]}; the schema is at /openapi.json",
        field=field,
        problems_count=len(problems),
    )


def _from_http(request: Request, error: HTTPException) -> TorporError:
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return NotFound(f"cannot find {asked}: there is no such route; the routes are at /openapi.json")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return InvalidArgument(f"cannot {asked}: this route takes {allowed or 'other methods'}", field="method")
    if error.status_code == 413:
        from torpor.apps.api.middleware import too_large  # noqa: PLC0415 - middleware answers through this module

        return too_large()
    return InvalidArgument(f"cannot answer {asked}: {error.detail}", field="body")
