"""The machine that fake instances live on: programs, the bytes between them and a server, and their statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torpor.domain.errors import GuestError
from torpor.domain.ids import InstanceId
from torpor.ports.engine import InstanceShape, InstanceStatus

PIPE_BYTES_MAX = 1 << 20

Delta = dict[str, bytes | None]
"""What was written over the root filesystem: absolute path to content, None for what was removed from below."""


class FakeProgram(Protocol):
    """PID 1 of a fake instance. ``filesystem`` is its overlay; all else of its state is in ``dump``."""

    filesystem: Delta

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the channel, in whatever pieces, and give back what the guest writes in return."""
        ...

    def dump(self) -> bytes:
        """The memory."""
        ...

    def load(self, data: bytes) -> None:
        """Become what ``dump`` gave; called on a fresh program."""
        ...


@dataclass(slots=True)
class FakeInstance:
    """One instance. ``inbound`` is what was written and not yet received, as in a pipe; it travels in images."""

    shape: InstanceShape
    program: FakeProgram
    phase: InstanceStatus = InstanceStatus.CREATED
    is_frozen: bool = False
    inbound: bytearray = field(default_factory=bytearray)
    outbound: bytearray = field(default_factory=bytearray)
    receive_count: int = 0
    dumped: tuple[int, int] | None = None  # the receive count at which a dump had so many bytes
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def status(self) -> InstanceStatus:
        """As the port says it."""
        if self.is_frozen and self.phase is not InstanceStatus.STOPPED:
            return InstanceStatus.FROZEN
        return self.phase

    @property
    def memory_bytes(self) -> int:
        """The length of the dump, which changes only with what is received."""
        if self.dumped is None or self.dumped[0] != self.receive_count:
            self.dumped = (self.receive_count, len(self.program.dump()))
        return self.dumped[1]

    def pump(self) -> None:
        """Let the program run on what it was sent, unless it is held or nobody reads its output."""
        while self.status is InstanceStatus.RUNNING and self.inbound and len(self.outbound) < PIPE_BYTES_MAX:
            data = bytes(self.inbound)
            self.inbound.clear()
            self.receive_count += 1
            self.outbound += self.program.receive(data)
        self.wake()

    def wake(self) -> None:
        """Let every waiting channel look again."""
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting.clear()

    async def changed(self) -> None:
        """Return once something may have changed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        await future


@dataclass(slots=True)
class FakeHost:
    """Outlives the engines over it, as a machine outlives a server."""

    instances: dict[InstanceId, FakeInstance] = field(default_factory=dict)

    def kill(self, instance: InstanceId) -> None:
        """End a sandbox from outside, as an out-of-memory kill does; it stays until it is destroyed."""
        self.instances[instance].phase = InstanceStatus.STOPPED
        self.instances[instance].wake()


class FakeChannel:
    """Implements ports.engine.Channel."""

    def __init__(self, instance: FakeInstance) -> None:
        self._instance = instance
        self._is_closed = False

    async def read(self, count_max: int) -> bytes:
        """See the port."""
        while not self._is_closed:
            if self._instance.outbound:
                data = bytes(self._instance.outbound[:count_max])
                del self._instance.outbound[:count_max]
                self._instance.pump()
                return data
            if self._instance.phase is InstanceStatus.STOPPED:
                break
            await self._instance.changed()
        return b""

    async def write(self, data: bytes) -> None:
        """See the port."""
        while True:
            if self._is_closed or self._instance.phase is InstanceStatus.STOPPED:
                raise GuestError("cannot write to the guest: its instance is gone or the channel was closed")
            if len(self._instance.inbound) < PIPE_BYTES_MAX:
                break
            await self._instance.changed()
        self._instance.inbound += data
        self._instance.pump()

    async def close(self) -> None:
        """See the port."""
        self._is_closed = True
        self._instance.wake()


ProgramFactory = Callable[[], FakeProgram]
