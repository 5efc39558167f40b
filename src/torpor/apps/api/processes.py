"""Routes about what runs inside beside bursts: processes, terminals, ports, logs. Each wakes the session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse

from torpor.apps.api import answers, schema
from torpor.apps.api.context import FAILURES, KEY, Context, Here, Tenant
from torpor.apps.api.files import UPLOAD, body_of
from torpor.apps.api.sockets import accept
from torpor.apps.api.streams import EVENT_STREAM, event, text_fields
from torpor.apps.api.wire import JSON, error_json, instant, resumption_json
from torpor.domain.errors import InvalidArgument, TorporError
from torpor.domain.ids import TenantId
from torpor.ports.guest import (
    Forward,
    Guest,
    OutputLost,
    ProcessEvent,
    ProcessInfo,
    ProcessOutput,
    ProcessSpec,
    TerminalSize,
)

router = APIRouter(prefix="/sessions/{ref}", tags=["processes"], dependencies=KEY, responses=FAILURES)
sockets = APIRouter(prefix="/sessions/{ref}", tags=["processes"])

SHELL = ("bash", "-l")


@router.get("/processes", response_model=answers.ProcessesAnswer)
async def processes(here: Here, tenant: Tenant, ref: str) -> dict[str, Any]:
    """What was started or detached, in order of start, ended ones too."""
    async with here.backend.guest(tenant, ref) as (guest, _):
        return {"processes": [process_json(one) for one in await guest.processes()]}


@router.post("/processes", status_code=201, response_model=answers.ProcessAnswer)
async def start(here: Here, tenant: Tenant, ref: str, body: schema.StartBody) -> dict[str, Any]:
    """Start a process that outlives the request, and pauses; on a terminal if given its size."""
    spec, size = body.process(), body.terminal.size() if body.terminal else None
    async with here.backend.guest(tenant, ref) as (guest, _):
        return process_json(await guest.start(spec, terminal=size, keep_stdin=body.keep_stdin))


@router.get("/processes/{pid}/output", response_class=StreamingResponse, responses={200: EVENT_STREAM})
async def output(
    here: Here, tenant: Tenant, ref: str, pid: int, from_sequence: Annotated[int, Query(ge=0)] = 0
) -> StreamingResponse:
    """A process's output from a sequence number on, as server-sent events `output`, `lost`, and `exit` last.

    A pause ends them with an `error`; ask again from the next sequence number, which wakes the session.
    """
    await here.backend.get(tenant, ref)
    return StreamingResponse(_events(here, tenant, ref, pid, from_sequence), media_type="text/event-stream")


async def _events(here: Context, tenant: TenantId, ref: str, pid: int, from_sequence: int) -> AsyncIterator[bytes]:
    try:
        async with (
            here.backend.guest(tenant, ref) as (guest, _),
            aclosing(guest.attach(pid, from_sequence=from_sequence)) as events,
        ):
            async for one in events:
                if isinstance(one, ProcessOutput):
                    place = {"sequence": one.sequence, "stream": one.stream.value}
                    yield event("output", {**place, **text_fields(one.data)})
                else:
                    yield event("lost" if isinstance(one, OutputLost) else "exit", _told(one))
    except TorporError as error:
        yield event("error", error_json(error))


@router.post("/processes/{pid}/input", response_model=answers.TakenAnswer, openapi_extra=UPLOAD)
async def send_input(
    here: Here, tenant: Tenant, ref: str, pid: int, request: Request, *, close: Annotated[bool, Query()] = False
) -> dict[str, Any]:
    """Feed a process's input with the body, waiting while it does not read; ``close`` then ends it."""
    async with here.backend.guest(tenant, ref) as (guest, _):
        return {"taken_bytes": await guest.send_input(pid, body_of(request, "send the input"), close=close)}


@router.post("/processes/{pid}/resize", status_code=204)
async def resize(here: Here, tenant: Tenant, ref: str, pid: int, body: schema.SizeBody) -> None:
    """Change a terminal's size; its foreground is told."""
    async with here.backend.guest(tenant, ref) as (guest, _):
        await guest.resize(pid, body.size())


@router.post("/processes/{pid}/signal", status_code=204)
async def send_signal(here: Here, tenant: Tenant, ref: str, pid: int, body: schema.SignalBody) -> None:
    """Send a signal to a process, or to the group it leads."""
    async with here.backend.guest(tenant, ref) as (guest, _):
        await guest.signal(pid, body.signal, group=body.group)


@router.get("/logs", response_class=StreamingResponse, responses={200: EVENT_STREAM})
async def logs(
    here: Here,
    tenant: Tenant,
    ref: str,
    *,
    source: Annotated[str | None, Query(description="agent, or a pid")] = None,
    follow: bool = False,
    from_sequence: Annotated[int, Query(ge=0)] = 0,
) -> StreamingResponse:
    """The log of the inside, as server-sent events ``entry``; with ``follow`` as it comes, for ever."""
    await here.backend.get(tenant, ref)
    wanted = {"source": source, "follow": follow, "from_sequence": from_sequence}
    return StreamingResponse(_entries(here, tenant, ref, wanted), media_type="text/event-stream")


async def _entries(here: Context, tenant: TenantId, ref: str, wanted: dict[str, Any]) -> AsyncIterator[bytes]:
    try:
        async with here.backend.guest(tenant, ref) as (guest, _), aclosing(guest.logs(**wanted)) as entries:
            async for one in entries:
                place = {"source": one.source, "at": instant(one.at_s), "sequence": one.sequence}
                said = {**place, "lost_bytes": one.lost_bytes, "stream": one.stream.value, **text_fields(one.data)}
                yield event("entry", said)
        yield event("end", {})
    except TorporError as error:
        yield event("error", error_json(error))


@sockets.websocket("/ports/{port}")
async def forward(socket: WebSocket, here: Here, tenant: Tenant, ref: str, port: int) -> None:
    """One TCP connection to a port inside: binary messages both ways; an empty one ends what the client sends."""
    await accept(socket)
    try:
        async with here.backend.guest(tenant, ref) as (guest, _):
            connection = await guest.forward(port)
            try:
                await _carry(socket, connection)
            finally:
                await connection.close()
        await _close(socket)
    except TorporError as error:
        await _close(socket, error)


async def _carry(socket: WebSocket, connection: Forward) -> None:
    async def inwards() -> None:
        while data := await _heard(socket):
            await connection.write(data)
        await connection.close_write()

    async def outwards() -> None:
        while data := await connection.read():
            await socket.send_bytes(data)
        await socket.send_bytes(b"")

    await _until(asyncio.FIRST_EXCEPTION, inwards(), outwards())  # each way ends by itself, as TCP has it


@sockets.websocket("/terminal")
async def terminal(
    socket: WebSocket,
    here: Here,
    tenant: Tenant,
    ref: str,
    *,
    ask: Annotated[schema.TerminalQuery, Query()],
) -> None:
    """A terminal: binary messages are what is typed and shown, texts are JSON.

    From the client: ``{columns, rows}`` resizes. From the server: ``{process, resumed}`` first; ``{sequence,
    lost_bytes}`` where output is missing; ``{sequence, exit_code}`` last. With ``pid`` and ``from_sequence`` one
    attaches again, after a pause for instance, and misses nothing that is still kept.
    """
    await accept(socket)
    try:
        async with here.backend.guest(tenant, ref) as (guest, resumption):
            info = await _started(guest, ask)
            began = {"process": process_json(info), "resumed": resumption_json(resumption)}
            await socket.send_text(json.dumps(began))
            await _until(
                asyncio.FIRST_COMPLETED,
                _typed(socket, guest, info.pid),
                _shown(socket, guest, info.pid, ask.from_sequence),
            )
        await _close(socket)
    except TorporError as error:
        await _close(socket, error)


async def _started(guest: Guest, ask: schema.TerminalQuery) -> ProcessInfo:
    size = TerminalSize(ask.columns, ask.rows)
    if ask.pid is None:
        spec = ProcessSpec(tuple(ask.argv) or SHELL, cwd=ask.cwd, user=ask.user, env={"TERM": ask.term})
        return await guest.start(spec, terminal=size)
    for info in await guest.processes():
        if info.pid == ask.pid:
            await guest.resize(info.pid, size)
            return info
    raise InvalidArgument(f"cannot attach: there is no process {ask.pid}; list them first", field="pid")


async def _typed(socket: WebSocket, guest: Guest, pid: int) -> None:
    while True:
        heard = await socket.receive()
        if heard["type"] == "websocket.disconnect":
            return
        if heard.get("bytes"):
            await guest.send_input(pid, _once(heard["bytes"]))
        elif heard.get("text"):
            await guest.resize(pid, _size(heard["text"]))


async def _shown(socket: WebSocket, guest: Guest, pid: int, from_sequence: int) -> None:
    async with aclosing(guest.attach(pid, from_sequence=from_sequence)) as events:
        async for one in events:
            if isinstance(one, ProcessOutput):
                await socket.send_bytes(one.data)
            else:
                await socket.send_text(json.dumps(_told(one)))


def _told(one: ProcessEvent) -> JSON:
    if isinstance(one, OutputLost):
        return {"sequence": one.sequence, "lost_bytes": one.count_bytes}
    assert not isinstance(one, ProcessOutput)
    return {"sequence": one.sequence, "exit_code": one.exit_code}


def _size(text: str) -> TerminalSize:
    try:
        said = json.loads(text)
        size = TerminalSize(int(said["columns"]), int(said["rows"]))
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidArgument('cannot resize: send {"columns": C, "rows": R}', field="columns") from error
    if not (0 < size.columns <= schema.TERMINAL_MAX and 0 < size.rows <= schema.TERMINAL_MAX):
        raise InvalidArgument(
            f"cannot resize to {size.columns} by {size.rows}: 1 to {schema.TERMINAL_MAX} each", field="columns"
        )
    return size


async def _until(when: str, *ways: Coroutine[Any, Any, None]) -> None:
    """Run both ways until ``when``, then end what goes on. A client that left is the end, and no failure."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=when)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        error = task.exception()
        if error is not None and not isinstance(error, WebSocketDisconnect):
            raise error


async def _heard(socket: WebSocket) -> bytes:
    heard = await socket.receive()
    if heard["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(heard.get("code", 1000))
    return heard.get("bytes") or (heard.get("text") or "").encode()


async def _close(socket: WebSocket, error: TorporError | None = None) -> None:
    try:
        if error is not None:
            await socket.send_text(json.dumps({"error": error_json(error)}))
        await socket.close(1000 if error is None else 4000)
    except (WebSocketDisconnect, RuntimeError):
        return  # the client left first


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def process_json(info: ProcessInfo) -> JSON:
    """A process, as clients see it."""
    return {
        "pid": info.pid,
        "argv": list(info.argv),
        "user": info.user,
        "terminal": info.terminal,
        "running": info.running,
        "exit_code": info.exit_code,
        "started_at": instant(info.started_at_s),
        "sequence": info.sequence,
        "oldest_sequence": info.oldest_sequence,
    }
