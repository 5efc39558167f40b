"""Who may place a session next: memory is promised before it is taken, never twice, and in a fair order.

A placement holds a reservation while its image lies in memory and its sandbox grows. Once the instance has its memory
the node's own figure shows it, and the reservation ends. Meanwhile both may count the same bytes: that errs towards
waiting, never towards promising what is not there.

The order: tenants in turn, first come first served within one. A request that does not fit lets smaller ones of other
tenants pass, ``PASSES_MAX`` times; then nobody behind it goes before it has its memory or gives up. So from when it is
its tenant's oldest, at most (tenants before it + ``PASSES_MAX``) others are admitted before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field

from torpor.domain.errors import InvalidArgument, QuotaExceeded, Unavailable
from torpor.domain.ids import TenantId
from torpor.ports.clock import Clock
from torpor.ports.memory import Memory
from torpor.services.supervisor import Supervisor

PASSES_MAX = 8
LOOK_S = 0.25  # memory is freed by others as well, and they tell nobody
RETRY_AFTER_S = 5
RESERVE_BYTES_MIN = 256 * 1024 * 1024
RESERVE_SHARE = 0.05
MIB = 1024 * 1024

GiveBack = Callable[[int], Awaitable[int]]
"""Free so many bytes of what is only kept for speed, as far as there is any; the bytes freed."""


@dataclass(eq=False, slots=True)
class Request:
    """A placement's need. ``passed_count``: how often a request behind it went first because this one did not fit."""

    tenant: TenantId
    need_bytes: int
    passed_count: int = 0
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn it is: ``admitted`` (None: nobody may go now), going past ``passed``."""

    admitted: Request | None
    passed: tuple[Request, ...] = ()


def next_turn(heads: Iterable[Request], free_bytes: int) -> Turn:
    """The rule. ``heads``: the oldest request of each tenant, the tenant whose turn it is first. Pure."""
    passed: list[Request] = []
    for head in heads:
        if head.need_bytes <= free_bytes:
            return Turn(head, tuple(passed))
        if head.passed_count >= PASSES_MAX:
            break
        passed.append(head)
    return Turn(None)


def default_reserve_bytes(total_bytes: int) -> int:
    """What is never promised: the system, this server and a sandbox's surprises live from it."""
    return max(RESERVE_BYTES_MIN, int(total_bytes * RESERVE_SHARE))


class Admission:
    """The queue for this node's memory. ``give_back`` is asked first, before anybody waits for memory in earnest."""

    def __init__(
        self,
        memory: Memory,
        clock: Clock,
        supervisor: Supervisor,
        *,
        give_back: GiveBack | None = None,
        reserve_bytes: int | None = None,
    ) -> None:
        self._memory = memory
        self._clock = clock
        self._supervisor = supervisor
        self._give_back = give_back
        self._total_bytes = memory.total_bytes()
        self._reserve_bytes = default_reserve_bytes(self._total_bytes) if reserve_bytes is None else reserve_bytes
        self._line: dict[TenantId, deque[Request]] = {}  # in the order of turns
        self._promised_bytes = 0
        self._is_relieving = False

    @property
    def promised_bytes(self) -> int:
        """The sum of all reservations."""
        return self._promised_bytes

    @property
    def waiting_count(self) -> int:
        """Requests that wait."""
        return sum(map(len, self._line.values()))

    def free_bytes(self) -> int:
        """What may be promised now; negative when the reserve is being eaten into."""
        return self._memory.available_bytes() - self._reserve_bytes - self._promised_bytes

    @contextlib.asynccontextmanager
    async def room(self, tenant: TenantId, need_bytes: int, *, deadline_s: float) -> AsyncIterator[None]:
        """Hold ``need_bytes`` for the block, waiting for them until ``deadline_s`` of the monotonic clock.

        Raises: Unavailable (reason ``no_memory``) at the deadline: nothing was done, the call may be repeated.
        QuotaExceeded at once if this node could never hold it. Cancelling the wait leaves the queue as if never asked.
        """
        self._check(need_bytes)
        request = Request(tenant, need_bytes)
        self._line.setdefault(tenant, deque()).append(request)
        try:
            await self._wait(request, deadline_s)
            yield
        finally:
            self._leave(request)

    @contextlib.contextmanager
    def spare(self, need_bytes: int) -> Iterator[bool]:
        """Hold ``need_bytes`` for the block if they are free and nobody waits for memory; False at once if not.

        For what is only kept for speed: it never waits, takes no turn, and nothing is given back for it.
        """
        is_granted = not self._line and need_bytes <= self.free_bytes()
        if not is_granted:
            yield False
            return
        self._promised_bytes += need_bytes
        try:
            yield True
        finally:
            self._promised_bytes -= need_bytes
            self._admit()

    async def relieve(self) -> int:
        """Give kept memory back if the reserve is being eaten into; the bytes freed. For a periodic call."""
        return 0 if self._give_back is None else await self._relieved(-self.free_bytes())

    def _check(self, need_bytes: int) -> None:
        if need_bytes < 0:
            raise InvalidArgument(f"cannot reserve {need_bytes} bytes: it is negative", field="need_bytes")
        most_bytes = self._total_bytes - self._reserve_bytes
        if need_bytes > most_bytes:
            raise QuotaExceeded(
                f"cannot place the session on this node: it needs {_mib(need_bytes)} MiB of memory, the node can "
                f"promise {_mib(most_bytes)} in all; use a node with more memory, or a smaller memory limit",
                reason="no_memory",
                need_bytes=need_bytes,
                most_bytes=most_bytes,
            )

    async def _wait(self, request: Request, deadline_s: float) -> None:
        self._admit()
        while not request.admitted.is_set():
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise self._refusal(request)
            self._start_relief()
            await self._first_of(request.admitted, min(LOOK_S, left_s))
            self._admit()

    async def _first_of(self, event: asyncio.Event, duration_s: float) -> None:
        racing = (asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._clock.sleep(duration_s)))
        try:
            await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in racing:
                task.cancel()
            await asyncio.wait(racing)

    def _admit(self) -> None:
        """Admit everybody whose turn it is. Without an await: nothing changes between the look and the promise."""
        while self._line:
            turn = next_turn(self._heads(), self.free_bytes())
            if turn.admitted is None:
                return
            for passed in turn.passed:
                passed.passed_count += 1
            self._take_out(turn.admitted)
            self._promised_bytes += turn.admitted.need_bytes
            turn.admitted.admitted.set()

    def _take_out(self, request: Request) -> None:
        """Its tenant's next turn comes after everybody else's."""
        waiting = self._line.pop(request.tenant)
        waiting.remove(request)
        if waiting:
            self._line[request.tenant] = waiting

    def _leave(self, request: Request) -> None:
        """End a reservation or a wait; others may go now."""
        if request.admitted.is_set():
            self._promised_bytes -= request.need_bytes
        else:
            waiting = self._line[request.tenant]  # the turn stays where it is: giving up costs others nothing
            waiting.remove(request)
            if not waiting:
                del self._line[request.tenant]
        self._admit()

    def _heads(self) -> tuple[Request, ...]:
        return tuple(waiting[0] for waiting in self._line.values())

    def _start_relief(self) -> None:
        """In the background: no destruction holds anybody up past the deadline."""
        if self._give_back is not None and not self._is_relieving:
            self._is_relieving = True
            self._supervisor.start(self._relief(), name="admission:relief")

    async def _relief(self) -> None:
        try:
            while heads := self._heads():
                if not await self._relieved(heads[0].need_bytes - self.free_bytes()):
                    return
                self._admit()
        finally:
            self._is_relieving = False

    async def _relieved(self, short_bytes: int) -> int:
        if self._give_back is None or short_bytes <= 0:
            return 0
        return await self._give_back(short_bytes)

    def _refusal(self, request: Request) -> Unavailable:
        free_bytes = max(0, self.free_bytes())
        return Unavailable(
            f"cannot place the session now: it needs {_mib(request.need_bytes)} MiB of memory, {_mib(free_bytes)} are "
            f"free and {_mib(self._promised_bytes)} promised to others, {self.waiting_count - 1} more wait; nothing "
            f"was run: repeat the call, pause other sessions, or use a node with more memory",
            reason="no_memory",
            retry_after_s=RETRY_AFTER_S,
            need_bytes=request.need_bytes,
            free_bytes=free_bytes,
            promised_bytes=self._promised_bytes,
        )


def _mib(size_bytes: int) -> int:
    return math.ceil(size_bytes / MIB)
