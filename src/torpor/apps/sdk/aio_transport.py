"""How the client that is awaited talks HTTP: ``transport``, word for word."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from torpor.apps.sdk import answers, calls
from torpor.apps.sdk.access import CONNECT_TIMEOUT_S, Access
from torpor.apps.sdk.calls import BYTES, EVENTS
from torpor.apps.sdk.frames import MEDIA_TYPE

JSON = dict[str, Any]


class AsyncTransport:
    """``transport.Transport``, awaited. Belongs to one event loop."""

    def __init__(self, access: Access) -> None:
        self.access = self._access = access
        self._http = httpx.AsyncClient(
            base_url=access.url,
            headers=access.headers(),
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
            verify=access.trusted(),
        )

    async def close(self) -> None:
        """Idempotent."""
        await self._http.aclose()

    async def json(self, call: calls.Call, data: AsyncIterable[bytes] | None = None) -> JSON:
        """See ``transport.Transport``."""
        async with self._failures():
            said = await self._http.request(
                call.method,
                call.path,
                params=call.query,
                headers=call.sent_headers(),
                content=call.content() if data is None else data,
            )
        return answers.json_of(self._access.url, said.status_code, said.content)

    async def burst(self, call: calls.Call, on_piece: Callable[[str, bytes | JSON], object]) -> JSON:
        """See ``transport.Transport``. What ``on_piece`` returns is awaited, if it can be."""
        reader = answers.BurstReader(self._access.url)
        async with self._streamed(call, MEDIA_TYPE) as said:
            async for data in said.aiter_raw():
                for stream, piece in reader.feed(data):
                    told = on_piece(stream, piece)
                    if inspect.isawaitable(told):
                        await told
        return reader.outcome()

    async def events(self, call: calls.Call) -> AsyncGenerator[tuple[str, JSON]]:
        """See ``transport.Transport``."""
        reader = answers.EventReader()
        async with self._streamed(call, EVENTS) as said:
            async for data in said.aiter_raw():
                for one in reader.feed(data):
                    yield one

    @asynccontextmanager
    async def read(self, call: calls.Call) -> AsyncIterator[AsyncIterator[bytes]]:
        """See ``transport.Transport``."""
        async with self._streamed(call, BYTES) as said:
            yield said.aiter_raw()

    @asynccontextmanager
    async def _streamed(self, call: calls.Call, wanted: str) -> AsyncIterator[httpx.Response]:
        async with (
            self._failures(),
            self._http.stream(
                call.method, call.path, params=call.query, headers=call.sent_headers(), content=call.content()
            ) as said,
        ):
            if not said.is_success:
                answers.json_of(self._access.url, said.status_code, await said.aread())
            answers.check_streamed(self._access.url, said.status_code, said.headers.get("content-type", ""), wanted)
            yield said

    @asynccontextmanager
    async def _failures(self) -> AsyncIterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise answers.unreachable(self._access.url, error, home=self._access.home) from error
        except httpx.TransportError as error:
            raise answers.broken(self._access.url, error) from error
