"""Bursts over a WebSocket: one connection for many, each streamed, and an interrupt that may come between.

The client sends JSON: a burst (``kind``: ``code``, ``shell`` or ``exec``, and that route's fields) or
``{"kind": "interrupt"}``. The server answers with JSON texts ``{"event": "output" | "result" | "error", ...}``, or,
with ``?frames=true``, with binary messages of whole frames (``sdk.frames``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect
from pydantic import TypeAdapter, ValidationError

from torpor.apps.api import schema
from torpor.apps.api.bursting import stream_of
from torpor.apps.api.context import Context, Here, Tenant
from torpor.apps.api.failures import from_validation
from torpor.apps.api.middleware import KEY_PROTOCOL
from torpor.apps.api.output import Outlet, joined, output_json
from torpor.apps.api.streams import Form, Frames
from torpor.apps.api.wire import JSON, error_json
from torpor.domain.errors import Conflict, TorporError
from torpor.domain.ids import TenantId
from torpor.ports.guest import OnOutput, Output
from torpor.services.requests import Burst

router = APIRouter(prefix="/sessions/{ref}", tags=["bursts"])

PROTOCOL = "torpor.v1"

_MESSAGES: TypeAdapter[schema.SocketMessage] = TypeAdapter(schema.SocketMessage)


class Texts:
    """JSON texts, a line each: what is sent as one text message for each line."""

    media_type = "application/jsonl"

    def output(self, pieces: Sequence[Output]) -> bytes:
        """See streams.Form."""
        return b"".join(_line("output", output_json(piece)) for piece in joined(tuple(pieces)))

    def keep_alive(self) -> bytes:
        """See streams.Form."""
        return b"\n"

    def result(self, outcome: JSON) -> bytes:
        """See streams.Form."""
        return _line("result", outcome)

    def error(self, said: JSON) -> bytes:
        """See streams.Form."""
        return _line("error", said)


@router.websocket("/bursts")
async def bursts(
    socket: WebSocket, here: Here, tenant: Tenant, ref: str, *, frames: Annotated[bool, Query()] = False
) -> None:
    """See the module."""
    await accept(socket)
    talk = _Talk(socket, here, tenant, ref, Frames() if frames else Texts())
    async with asyncio.TaskGroup() as group:
        await talk.hear(group)


async def accept(socket: WebSocket) -> None:
    """Accept; of the protocols that a browser offers, its key among them, ours is the one taken."""
    offered = socket.scope.get("subprotocols", ())
    ours = PROTOCOL in offered or any(one.startswith(KEY_PROTOCOL) for one in offered)
    await socket.accept(PROTOCOL if ours else None)


class _Talk:
    """One connection. A client that leaves ends neither its burst nor its session."""

    def __init__(self, socket: WebSocket, here: Context, tenant: TenantId, ref: str, form: Form) -> None:
        self._socket = socket
        self._here = here
        self._tenant = tenant
        self._ref = ref
        self._form = form
        self._running: asyncio.Task[None] | None = None

    async def hear(self, group: asyncio.TaskGroup) -> None:
        """Until the client leaves."""
        try:
            while True:
                await self._take(await self._message(), group)
        except WebSocketDisconnect:
            if self._running is not None:
                self._running.cancel()

    async def _message(self) -> str:
        heard = await self._socket.receive()
        if heard["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(heard.get("code", 1000))
        text = heard.get("text")
        return text if text is not None else bytes(heard.get("bytes") or b"").decode(errors="replace")

    async def _take(self, text: str, group: asyncio.TaskGroup) -> None:
        try:
            asked = _MESSAGES.validate_json(text)
            if isinstance(asked, schema.SocketInterrupt):
                await self._here.backend.interrupt(self._tenant, self._ref, context=asked.context)
                return
            if self._running is not None and not self._running.done():
                raise Conflict(
                    "cannot start a burst here: one runs on this connection; wait for it, or open another",
                    reason="burst_running",
                )
            work = self._work(asked)
        except ValidationError as error:
            await self._send(self._form.error(error_json(from_validation(error.errors()))))
        except TorporError as error:
            await self._send(self._form.error(error_json(error)))
        else:
            self._running = group.create_task(self._run(work))

    def _work(self, asked: schema.SocketBurst) -> Callable[[OnOutput], Awaitable[Burst]]:
        backend, tenant, ref = self._here.backend, self._tenant, self._ref
        if isinstance(asked, schema.SocketCode):
            context, timeout_s = asked.context, asked.timeout_s
            source = asked.source
            return lambda out: backend.code(tenant, ref, source, context=context, timeout_s=timeout_s, on_output=out)
        if isinstance(asked, schema.SocketShell):
            command, shell, limit_s = asked.command, asked.shell, asked.timeout_s
            return lambda out: backend.shell(tenant, ref, command, shell=shell, timeout_s=limit_s, on_output=out)
        process = asked.process()
        return lambda out: backend.execute(tenant, ref, process, on_output=out)

    async def _run(self, work: Callable[[OnOutput], Awaitable[Burst]]) -> None:
        clock = self._here.clock
        started_s = clock.monotonic_s()
        outlet = Outlet()
        try:
            outcome = self._here.bursts.start(lambda: work(outlet), ended=outlet.end)
        except TorporError as error:
            await self._send(self._form.error(error_json(error)))
            return
        began = self._form.keep_alive()
        stream = stream_of(began, outlet, outcome, self._form, lambda: (clock.monotonic_s() - started_s) * 1000)
        try:
            async for said in stream:
                await self._send(said)
        except WebSocketDisconnect:
            return  # the burst goes on without a reader
        finally:
            outlet.leave()

    async def _send(self, said: bytes) -> None:
        if isinstance(self._form, Frames):
            await self._socket.send_bytes(said)
            return
        for line in said.decode().splitlines():
            if line:
                await self._socket.send_text(line)


def _line(event: str, said: JSON) -> bytes:
    return json.dumps({"event": event, **said}, separators=(",", ":")).encode() + b"\n"
