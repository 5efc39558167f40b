"""The host's side of the ledger."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from torpor.ports.engine import Channel


class LedgerClient:
    """Asks a ledger over a channel, one request at a time. Answers to others' requests are passed over."""

    def __init__(self, channel: Channel, *, first_id: int = 1, patience_s: float = 30.0) -> None:
        self._channel = channel
        self._id = first_id
        self._patience_s = patience_s
        self._pending = b""

    async def add(self, value: int) -> int:
        """Add to the total; the new total."""
        return int(await self.ask(do="add", value=value))

    async def total(self) -> int:
        """The total."""
        return int(await self.ask(do="total"))

    async def write(self, path: str, text: str) -> None:
        """Write a file in the guest."""
        await self.ask(do="write", path=path, text=text)

    async def read(self, path: str) -> str | None:
        """A file of the guest; None if there is none."""
        text: str | None = await self.ask(do="read", path=path)
        return text

    async def remove(self, path: str) -> None:
        """Remove a file in the guest."""
        await self.ask(do="remove", path=path)

    async def python(self, source: str) -> Any:  # noqa: ANN401 - whatever the source calls ``result``
        """Run ``source`` in the guest (real engines only); its variable ``result``."""
        return await self.ask(do="python", source=source)

    async def ask(self, **request: Any) -> Any:  # noqa: ANN401 - JSON
        """The answer to a request. Raises: AssertionError with the guest's error."""
        self._id += 1
        await self._channel.write(json.dumps({"id": self._id, **request}).encode() + b"\n")
        async with asyncio.timeout(self._patience_s):
            answer = await self._next_answer()
            while answer["id"] != self._id:
                answer = await self._next_answer()
        if "error" in answer:
            raise AssertionError(f"the guest said {answer['error']} to {request}")
        return answer["ok"]

    async def _next_answer(self) -> dict[str, Any]:
        while b"\n" not in self._pending:
            piece = await self._channel.read(65536)
            if not piece:
                raise AssertionError("the channel ended")
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer
