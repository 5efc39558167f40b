"""What handlers are given: the backend, the clock, the bursts in flight, and whose request it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Security
from fastapi.requests import HTTPConnection
from fastapi.security import APIKeyHeader, HTTPBearer

from torpor.apps.api import answers
from torpor.apps.api.backend import Backend
from torpor.apps.api.bursts import Bursts
from torpor.apps.api.tokens import SessionTokens
from torpor.apps.api.wire import JSON, session_json
from torpor.domain.errors import TorporError
from torpor.domain.ids import TenantId
from torpor.domain.session import Session
from torpor.ports.answers import AnswerBook
from torpor.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class Context:
    """One application's."""

    backend: Backend
    clock: Clock
    bursts: Bursts
    answers: AnswerBook
    tokens: SessionTokens

    def seen(self, session: Session) -> JSON:
        """A session as of now, without asking its instance."""
        return session_json(session, now_s=self.clock.wall_s())


# Coroutines although nothing waits: FastAPI gives a plain function a thread, and every request two changes of it.


async def _context(request: HTTPConnection) -> Context:
    context: Context = request.app.state.context
    return context


async def _tenant(request: HTTPConnection) -> TenantId:
    return TenantId(request.state.tenant)


Here = Annotated[Context, Depends(_context)]
Tenant = Annotated[TenantId, Depends(_tenant)]

# The middleware decides; these only tell OpenAPI how to send the key.
KEY = (
    Security(HTTPBearer(auto_error=False, description="the key in api.key")),
    Security(APIKeyHeader(name="X-API-Key", auto_error=False)),
)

_STATUSES = sorted({cls.http_status for cls in TorporError.__subclasses__()} | {500, 405, 413})
FAILURES: dict[int | str, dict[str, Any]] = {status: {"model": answers.Error} for status in _STATUSES}
