"""Counts requests and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from torpor.adapters.objects.forwarding import Answer, Call, ForwardingObjects, Operation
from torpor.domain.errors import TorporError
from torpor.ports.objects import ObjectInfo, ObjectStore


@dataclass(slots=True)
class Meter:
    """Since the start: calls by operation, errors by code, bytes that were asked to be written and that were read."""

    calls: Counter[Operation] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    written_bytes: int = 0
    read_bytes: int = 0


class MeteredObjects(ForwardingObjects):
    """Keeps ``meter``. A listing is one call, counted when it begins."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.meter = Meter()

    async def _around(self, call: Call, perform: Callable[[], Awaitable[Answer]]) -> Answer:
        self.meter.calls[call.operation] += 1
        self.meter.written_bytes += call.sent_bytes
        try:
            answer = await perform()
        except TorporError as error:
            self.meter.errors[error.code] += 1
            raise
        if isinstance(answer, bytes):
            self.meter.read_bytes += len(answer)
        return answer

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See the port."""
        self.meter.calls[Operation.LIST] += 1
        try:
            async for info in self._inner.list(prefix):
                yield info
        except TorporError as error:
            self.meter.errors[error.code] += 1
            raise
