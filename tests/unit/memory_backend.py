"""A backend without an engine: sessions in a dict, code run here, commands run as real processes of this machine."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import traceback
from collections.abc import AsyncIterator
from dataclasses import replace

from host_guest import HostGuest

from torpor.domain.errors import Conflict, InvalidArgument, NotFound, Unsupported, error_for
from torpor.domain.ids import InstanceId, SessionId, id_from_entropy, is_id
from torpor.domain.session import Durability, Session, SnapshotRecord, Status
from torpor.ports.catalog import Page, TemplateRecord
from torpor.ports.guest import BurstResult, Cause, CodeError, Output, StreamKind
from torpor.services.checks import check_create, check_fork, limits_of
from torpor.services.requests import Burst, CreateRequest, Resumption

NOW_S = 1_790_000_000.0
IMAGE_BYTES = 256 * 1024 * 1024


class StillClock:
    """Wall time stands; monotonic time moves a millisecond per look."""

    def __init__(self) -> None:
        self._monotonic_s = 0.0

    def wall_s(self) -> float:
        return NOW_S

    def monotonic_s(self) -> float:
        self._monotonic_s += 0.001
        return self._monotonic_s

    async def sleep(self, duration_s: float) -> None:
        self._monotonic_s += duration_s
        await asyncio.sleep(0)


class MemoryBackend:
    """``apps.api.backend.Backend``. A ref ``raise-CODE`` raises that error, ``bug`` a bug of ours."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.files: dict[str, dict[str, tuple[bytes, int]]] = {}
        self.variables: dict[tuple[str, str], dict] = {}
        self.interrupts: dict[tuple[str, str], asyncio.Event] = {}
        self.finished: list[str] = []
        self.hangs = asyncio.Event()
        self.done = asyncio.Event()
        self.abandoned_reads = 0
        self.broken_writes = 0
        self.clean = True
        self.allowed_older = False
        self.host = None

    async def create(self, tenant, request):
        check_create(request)
        if request.template != "data":
            raise NotFound(f"no template {request.template!r}; known: data", template=request.template)
        if any(request.name and session.name == request.name for session in self.sessions.values()):
            raise Conflict(f"a session named {request.name!r} exists", reason="name_taken")
        number = len(self.files)
        session = Session(
            id=SessionId(id_from_entropy(bytes([number % 256] * 20))),
            tenant=tenant,
            template=request.template,
            template_digest="d" * 64,
            created_at_s=NOW_S - 100 + number,
            name=request.name,
            status=Status.RUNNING,
            persistence=request.persistence,
            limits=limits_of(request, *await self.templates(tenant)),
            metadata=dict(request.metadata),
            policy=request.policy,
            hard_deadline_at_s=None if request.ttl_s is None else NOW_S + request.ttl_s,
            env=dict(request.env),
            generation=1,
            operation=1,
            node="here",
            instance=InstanceId("i" * 20),
            running_since_s=NOW_S - 10,
            compute_s=5.0,
            cpu_s=1.0,
        )
        self.sessions[session.id] = session
        self.files[session.id] = {}
        return session, self._resumption(session, Cause.CREATED, 0.0)

    async def get(self, tenant, ref):
        if ref.startswith("raise-"):
            raise error_for(ref.removeprefix("raise-"), f"cannot do it: {ref}", why="asked for", retry_after_s=2.0)
        if ref == "bug":
            raise RuntimeError("a bug with a secret in it")
        for session in self.sessions.values():
            if ref in (session.id, session.name) and session.tenant == tenant:
                return session
        kind = "id" if is_id(ref) else "name"
        raise NotFound(f"no session has {kind} {ref!r}: list those that exist with `torpor ls`", session=ref)

    async def page(self, tenant, *, cursor=None, limit=100):
        newest_first = [session for session in reversed(self.sessions.values()) if session.tenant == tenant]
        start = int(cursor or 0)
        end = start + limit
        return Page(tuple(newest_first[start:end]), str(end) if end < len(newest_first) else None)

    async def pause(self, tenant, ref, *, wait=Durability.DISK):
        session = await self.get(tenant, ref)
        if wait is Durability.OBJECT:
            raise Unsupported("cannot wait for object: only disk is offered; use --wait disk", offered=["disk"])
        if session.status is Status.RUNNING:
            sequence = session.snapshot.sequence + 1 if session.snapshot else 1
            snapshot = SnapshotRecord({}, sequence, NOW_S - 3600, IMAGE_BYTES, 1_234_567, {"checkpoint": 190.5})
            session = self._store(
                session,
                status=Status.PAUSED_DURABLE,
                durability=Durability.DISK,
                paused_at_s=NOW_S - 3600,
                running_since_s=None,
                snapshot=snapshot,
                instance=None,
            )
        return session

    async def snapshot(self, tenant, ref):
        session = await self.get(tenant, ref)
        sequence = session.snapshot.sequence + 1 if session.snapshot else 1
        taken = SnapshotRecord({}, sequence, NOW_S - 60, IMAGE_BYTES, 1_234_567, {"checkpoint": 190.5})
        return self._store(session, snapshot=taken)

    async def fork(self, tenant, ref, request):
        check_fork(request)
        source = await self.snapshot(tenant, ref)
        copies = []
        for name in request.names or (None,) * request.count:
            copy, how = await self.create(tenant, CreateRequest(name=name, metadata=request.metadata))
            copies.append((self._store(copy, forked_from=source.id), replace(how, cause=Cause.FORKED)))
        return copies

    async def set_clocks(self, tenant, ref, change):
        session = await self.get(tenant, ref)
        changed = {name: getattr(change.policy, name) for name in change.fields - {"ttl_s"}}
        at_s = session.hard_deadline_at_s
        if "ttl_s" in change.fields:
            at_s = None if change.ttl_s is None else NOW_S + change.ttl_s
        return self._store(session, policy=replace(session.policy, **changed), hard_deadline_at_s=at_s)

    @contextlib.asynccontextmanager
    async def guest(self, tenant, ref):
        _, resumption = await self._awake(tenant, ref)
        self.host = self.host or HostGuest()
        yield self.host, resumption

    def awake_because(self, session):
        return ("a burst is in flight",) if self.sessions[session].status is Status.RUNNING else ()

    async def resume(self, tenant, ref, *, allow_older=False):
        self.allowed_older = allow_older
        return await self._awake(tenant, ref)

    async def delete(self, tenant, ref):
        session = await self.get(tenant, ref)
        del self.sessions[session.id]
        return replace(session, status=Status.DELETED)

    async def code(self, tenant, ref, source, *, context="default", timeout_s=None, on_output=None):
        session, resumption = await self._awake(tenant, ref)
        if source == "hang":
            result = await self._hang(session, context, timeout_s)
        elif source.startswith("emit "):
            result = await self._emit(ast.literal_eval(source.removeprefix("emit ")), on_output)
        else:
            result = await self._python(self.variables.setdefault((session.id, context), {}), source, on_output)
        self.finished.append(source[:40])
        self.done.set()
        return Burst(session, result, resumption)

    async def shell(self, tenant, ref, command, *, shell="default", timeout_s=None, on_output=None):
        session, resumption = await self._awake(tenant, ref)
        result = await self._process(("bash", "-c", command), b"", timeout_s, on_output)
        self.finished.append(command[:40])
        return Burst(session, replace(result, cwd=f"/{shell}"), resumption)

    async def execute(self, tenant, ref, process, *, on_output=None):
        session, resumption = await self._awake(tenant, ref)
        if process.detach:
            return Burst(session, BurstResult(), resumption)
        result = await self._process(process.argv, process.stdin, process.timeout_s, on_output, process.env)
        self.finished.append(f"exec:{result.exit_code}")
        return Burst(session, result, resumption)

    async def interrupt(self, tenant, ref, *, context="default"):
        session = await self.get(tenant, ref)
        if event := self.interrupts.get((session.id, context)):
            event.set()

    async def read_file(self, tenant, ref, path) -> AsyncIterator[bytes]:
        session, _ = await self._awake(tenant, ref)
        if path.endswith("/"):
            raise InvalidArgument(f"cannot read {path}: it is a directory; name a file", field="path")
        if path == "/endless":
            try:
                while True:
                    yield b"x" * 65536
                    await asyncio.sleep(0)
            finally:
                self.abandoned_reads += 1
        if path not in self.files[session.id]:
            raise NotFound(f"cannot read {path}: there is no such file", path=path)
        data, _mode = self.files[session.id][path]
        for start in range(0, len(data), 65536):
            yield data[start : start + 65536]

    async def write_file(self, tenant, ref, path, data, *, mode):
        session, _ = await self._awake(tenant, ref)
        try:
            written = b"".join([piece async for piece in data])
        except InvalidArgument:
            self.broken_writes += 1
            raise
        self.files[session.id][path] = (written, mode)
        return len(written)

    async def usage(self, tenant, ref):
        session = await self.get(tenant, ref)
        live = session.status is Status.RUNNING
        return {"cpu_s": 0.25, "memory_bytes": 64e6} if live else {"cpu_s": 0.0, "memory_bytes": 0.0}

    async def templates(self, tenant):
        return (TemplateRecord(tenant, "data", "d" * 64, NOW_S - 86400, "", {}, "gvisor-1", IMAGE_BYTES, {"cpus": 2}),)

    async def store_check(self, tenant):
        return {"clean": self.clean, "tenant": tenant}

    async def engine_info(self):
        return {"engine": "memory", "version": "0"}

    async def health(self):
        return {"status": "ok", "engine": "memory"}

    def _store(self, session, **changes):
        self.sessions[session.id] = replace(session, **changes)
        return self.sessions[session.id]

    def _resumption(self, session, cause, gap_s):
        timings_ms = {"restore": 100.0, "total": 120.0}
        dropped = ("one open connection",) if cause is Cause.RESUMED else ()
        return Resumption(cause, gap_s, NOW_S, "local", session.generation, dropped=dropped, timings_ms=timings_ms)

    async def _awake(self, tenant, ref):
        session = await self.get(tenant, ref)
        if session.status is Status.RUNNING:
            return session, None
        session = self._store(
            session,
            status=Status.RUNNING,
            durability=None,
            paused_at_s=None,
            running_since_s=NOW_S,
            generation=session.generation + 1,
            resumes_count=session.resumes_count + 1,
        )
        return session, self._resumption(session, Cause.RESUMED, 3600.0)

    async def _hang(self, session, context, timeout_s):
        event = self.interrupts.setdefault((session.id, context), asyncio.Event())
        self.hangs.set()
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return BurstResult(timed_out=True)
        return BurstResult(error=CodeError("KeyboardInterrupt", "", "Traceback\nKeyboardInterrupt"))

    async def _emit(self, pieces, on_output):
        """Output as the test wants it: ``(stream, bytes)``, a bundle, or an exception's code."""
        for piece in pieces:
            if isinstance(piece, dict):
                await on_output(Output(StreamKind.DISPLAY, json.dumps(piece).encode()))
            elif isinstance(piece, str):
                raise RuntimeError("a bug with a secret in it") if piece == "bug" else error_for(piece, "cannot go on")
            else:
                await on_output(Output(StreamKind(piece[0]), piece[1]))
        return BurstResult(dropped_bytes=0)

    async def _python(self, variables, source, on_output):
        printed = io.StringIO()
        result = error = None
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(tree, "<code>", "exec"), variables)
                value = eval(compile(ast.Expression(last.value), "<code>", "eval"), variables) if last else None
            result = None if value is None else {"text/plain": repr(value)}
        except ArithmeticError as failed:
            error = CodeError(type(failed).__name__, str(failed), traceback.format_exc())
        if printed.getvalue():
            await on_output(Output(StreamKind.STDOUT, printed.getvalue().encode()))
        return BurstResult(result=result, error=error, execution_count=1)

    async def _process(self, argv, stdin, timeout_s, on_output, env=None):
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env or None)

        async def pass_on(reader, stream):
            while piece := await reader.read(65536):
                await on_output(Output(stream, piece))

        async def feed():
            process.stdin.write(stdin)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                await process.stdin.drain()
            process.stdin.close()

        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(
                    feed(), pass_on(process.stdout, StreamKind.STDOUT), pass_on(process.stderr, StreamKind.STDERR)
                )
                return BurstResult(exit_code=await process.wait())
        except TimeoutError:
            return BurstResult(exit_code=-9, timed_out=True)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
