"""The client that is awaited: ``sync`` with another transport, word for word the same requests and results."""

from __future__ import annotations

import secrets
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType
from typing import Any, Self, Unpack

from torpor.apps.sdk import calls
from torpor.apps.sdk.access import Access
from torpor.apps.sdk.aio_processes import AsyncInside
from torpor.apps.sdk.aio_transport import AsyncTransport
from torpor.apps.sdk.inside import FileChange
from torpor.apps.sdk.options import Clocks, CodeOptions, CreateOptions, ExecOptions, ShellOptions, split
from torpor.apps.sdk.results import FileInfo, Gathering, Result, SessionInfo, Token
from torpor.apps.sdk.transport import pieces_of

JSON = dict[str, Any]


class AsyncClient:
    """``Client``, awaited. Its sessions are made with ``await``: ``async with await client.session("x") as s``."""

    def __init__(self, url: str | None = None, key: str | None = None, *, home: str | None = None) -> None:
        self._transport = AsyncTransport(Access.find(url, key, home=home))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """See ``Client``."""
        await self._transport.close()

    async def session(
        self, name: str | None = None, *, ephemeral: bool = False, **options: Unpack[CreateOptions]
    ) -> AsyncSession:
        """See ``Client``."""
        request = {"name": name, "get_or_create": name is not None, **options}
        said = await self._transport.json(calls.create(request, idempotency_key=secrets.token_hex(16)))
        return AsyncSession(self._transport, said, ephemeral=ephemeral)

    async def attach(self, ref: str) -> AsyncSession:
        """See ``Client``."""
        return AsyncSession(self._transport, await self._transport.json(calls.get(ref)))

    async def sessions(self) -> AsyncIterator[SessionInfo]:
        """See ``Client``."""
        cursor: str | None = None
        while True:
            page = await self._transport.json(calls.sessions(cursor))
            for said in page["sessions"]:
                yield SessionInfo.of(said)
            cursor = page["cursor"]
            if cursor is None:
                return

    def export_session(self, ref: str, passphrase: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """See ``Client``."""
        return self._transport.read(calls.export(ref, passphrase))

    async def import_session(
        self, data: bytes | Iterable[bytes] | AsyncIterable[bytes], passphrase: str, *, name: str | None = None
    ) -> AsyncSession:
        """See ``Client``."""
        call = calls.import_session(passphrase, name=name)
        return AsyncSession(self._transport, await self._transport.json(call, _pieces(data)))

    async def template(self, name: str) -> JSON:
        """See ``Client``."""
        return await self._transport.json(calls.template(name))

    async def remove_template(self, name: str) -> JSON:
        """See ``Client``."""
        return await self._transport.json(calls.remove_template(name))

    async def templates(self) -> list[JSON]:
        """See ``Client``."""
        found: list[JSON] = (await self._transport.json(calls.templates()))["templates"]
        return found

    async def health(self) -> JSON:
        """See ``Client``."""
        return await self._transport.json(calls.health())


class AsyncSession(AsyncInside):
    """``Session``, awaited. Listeners may be functions or coroutine functions."""

    def __init__(self, transport: AsyncTransport, said: JSON, *, ephemeral: bool = False) -> None:
        self._transport = transport
        self._ephemeral = ephemeral
        self.info = SessionInfo.of(said)
        self.id = self.info.id
        self.files = AsyncFiles(transport, self.id)

    def __repr__(self) -> str:
        return f"<torpor session {self.info.name or self.id}: {self.info.status}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ephemeral:
            await self.delete()

    def code(self, source: str, **options: Unpack[CodeOptions]) -> Awaitable[Result]:
        """See ``Session``."""
        return self._burst(calls.code, source, options)

    def sh(self, command: str, **options: Unpack[ShellOptions]) -> Awaitable[Result]:
        """See ``Session``."""
        return self._burst(calls.shell, command, options)

    def exec(self, argv: Sequence[str], **options: Unpack[ExecOptions]) -> Awaitable[Result]:
        """See ``Session``."""
        return self._burst(calls.execute, argv, options)

    async def interrupt(self, *, context: str = "default") -> None:
        """See ``Session``."""
        await self._transport.json(calls.interrupt(self.id, context=context))

    async def pause(self, *, wait: str | None = "disk") -> SessionInfo:
        """See ``Session``."""
        return await self._seen(calls.pause(self.id, wait=wait))

    async def resume(self, *, allow_older: bool = False) -> SessionInfo:
        """See ``Session``."""
        return await self._seen(calls.resume(self.id, allow_older=allow_older))

    async def snapshot(self) -> SessionInfo:
        """See ``Session``."""
        return await self._seen(calls.snapshot(self.id))

    async def fork(
        self, count: int = 1, *, names: Sequence[str] = (), metadata: Mapping[str, str] | None = None
    ) -> list[AsyncSession]:
        """See ``Session``."""
        request = {"count": count, "names": list(names), "metadata": dict(metadata or {})}
        said = await self._transport.json(calls.fork(self.id, request, idempotency_key=secrets.token_hex(16)))
        return [AsyncSession(self._transport, one) for one in said["sessions"]]

    async def set_clocks(self, **clocks: Unpack[Clocks]) -> SessionInfo:
        """See ``Session``."""
        return await self._seen(calls.set_clocks(self.id, clocks))

    async def refresh(self) -> SessionInfo:
        """See ``Session``."""
        return await self._seen(calls.get(self.id))

    async def delete(self) -> None:
        """See ``Session``."""
        await self._seen(calls.delete(self.id))

    async def token(self, *, ttl_s: float | None = None) -> Token:
        """See ``Session``."""
        return Token.of(await self._transport.json(calls.token(self.id, ttl_s=ttl_s)))

    async def _seen(self, call: calls.Call) -> SessionInfo:
        self.info = SessionInfo.of(await self._transport.json(call))
        return self.info

    async def _burst(self, make: Callable[..., calls.Call], what: object, options: Any) -> Result:  # noqa: ANN401 - checked by the callers
        listeners, sent = split(options)
        gathering = Gathering(listeners)
        return gathering.result(await self._transport.burst(make(self.id, what, **sent), gathering.take))


class AsyncFiles:
    """``Files``, awaited."""

    def __init__(self, transport: AsyncTransport, ref: str) -> None:
        self._transport = transport
        self._ref = ref

    async def read(self, path: str) -> bytes:
        """See ``Files``."""
        async with self.stream(path) as pieces:
            return b"".join([piece async for piece in pieces])

    async def read_text(self, path: str) -> str:
        """See ``Files``."""
        return (await self.read(path)).decode()

    def stream(self, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """See ``Files``."""
        return self._transport.read(calls.read_file(self._ref, path))

    async def list(self, path: str) -> AsyncIterator[FileInfo]:
        """See ``Files``."""
        cursor: str | None = None
        while True:
            page = await self._transport.json(calls.list_files(self._ref, path, cursor))
            for said in page["entries"]:
                yield FileInfo.of(said)
            cursor = page["cursor"]
            if cursor is None:
                return

    async def stat(self, path: str) -> FileInfo:
        """See ``Files``."""
        return FileInfo.of(await self._transport.json(calls.stat_file(self._ref, path)))

    async def make_directory(self, path: str, *, mode: int = 0o755, user: str | None = None) -> bool:
        """See ``Files``."""
        said = await self._transport.json(calls.make_directory(self._ref, path, mode=mode, user=user))
        return bool(said["made"])

    async def move(self, path: str, to: str) -> None:
        """See ``Files``."""
        await self._transport.json(calls.move_file(self._ref, path, to))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """See ``Files``."""
        await self._transport.json(calls.remove_file(self._ref, path, recursive=recursive))

    async def watch(self, path: str, *, recursive: bool = False) -> AsyncGenerator[FileChange]:
        """See ``Files``."""
        events = self._transport.events(calls.watch_files(self._ref, path, recursive=recursive))
        async with aclosing(events):
            async for name, said in events:
                if name == "change":
                    yield FileChange(**said)

    async def write(
        self, path: str, data: bytes | str | Iterable[bytes] | AsyncIterable[bytes], *, mode: int = 0o644
    ) -> int:
        """See ``Files``."""
        said = await self._transport.json(calls.write_file(self._ref, path, mode=mode), _pieces(data))
        size_bytes: int = said["size_bytes"]
        return size_bytes


async def _pieces(data: bytes | str | Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(data, AsyncIterable):
        async for piece in data:
            yield piece
    else:
        for piece in pieces_of(data):
            yield piece
