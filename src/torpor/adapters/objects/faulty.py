"""A store that fails on purpose, for simulations and tests: equal seeds and calls give equal faults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from torpor.adapters.objects.forwarding import Answer, Call, ForwardingObjects, Operation
from torpor.domain.errors import Unavailable
from torpor.ports.clock import Clock
from torpor.ports.entropy import Entropy
from torpor.ports.objects import ObjectInfo, ObjectStore


class Fault(StrEnum):
    """What happens to a call."""

    BEFORE = "before"  # nothing was done
    AFTER = "after"  # it was done, and the answer was lost


@dataclass(frozen=True, slots=True)
class Weather:
    """Shares of calls, 0 to 1, that fail so; and the share that waits first, up to ``delay_max_s``."""

    before: float = 0.0
    after: float = 0.0
    delayed: float = 0.0
    delay_max_s: float = 0.0


CALM = Weather()


class FaultyObjects(ForwardingObjects):
    """``weather`` and ``is_out`` (nothing gets through) may be changed at any time; ``faults`` lists what happened."""

    def __init__(self, inner: ObjectStore, clock: Clock, entropy: Entropy, *, weather: Weather = CALM) -> None:
        super().__init__(inner)
        self._clock = clock
        self._entropy = entropy
        self._scripted: list[tuple[Operation, Fault]] = []
        self.weather = weather
        self.is_out = False
        self.faults: list[tuple[Call, Fault]] = []

    def fail_next(self, operation: Operation, fault: Fault, *, count: int = 1) -> None:
        """The next ``count`` calls of ``operation`` fail so, whatever the weather."""
        self._scripted += [(operation, fault)] * count

    async def _around(self, call: Call, perform: Callable[[], Awaitable[Answer]]) -> Answer:
        fault = await self._met(call)
        if fault is Fault.BEFORE:
            raise _failed(call, fault)
        answer = await perform()
        if fault is Fault.AFTER:
            raise _failed(call, fault)
        return answer

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """A listing whose answer is lost breaks off after its first object."""
        call = Call(Operation.LIST, prefix)
        fault = await self._met(call)
        if fault is Fault.BEFORE:
            raise _failed(call, fault)
        async for info in self._inner.list(prefix):
            yield info
            if fault is Fault.AFTER:
                break
        if fault is Fault.AFTER:
            raise _failed(call, fault)

    async def _met(self, call: Call) -> Fault | None:
        """Wait as the weather says, then the fault of this call."""
        if self._share() < self.weather.delayed:
            await self._clock.sleep(self._share() * self.weather.delay_max_s)
        fault = self._drawn(call.operation)
        if fault is not None:
            self.faults.append((call, fault))
        return fault

    def _drawn(self, operation: Operation) -> Fault | None:
        for number, (scripted, fault) in enumerate(self._scripted):
            if scripted is operation:
                del self._scripted[number]
                return fault
        share = self._share()
        if self.is_out or share < self.weather.before:
            return Fault.BEFORE
        return Fault.AFTER if share < self.weather.before + self.weather.after else None

    def _share(self) -> float:
        return int.from_bytes(self._entropy.bytes(4), "big") / 2**32


def _failed(call: Call, fault: Fault) -> Unavailable:
    return Unavailable(f"cannot {call.operation} {call.key}: a fault was asked for ({fault})", key=call.key)
