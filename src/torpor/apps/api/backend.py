"""What the API and the CLI ask of a node. ``apps.node.Node`` is the real one; tests bring their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from torpor.domain.ids import SessionId, TenantId
from torpor.domain.session import Durability, Session
from torpor.ports.catalog import Page, TemplateRecord
from torpor.ports.guest import Guest, OnOutput, ProcessSpec
from torpor.services.maintenance import Maintenance
from torpor.services.requests import Burst, ClockChange, CreateRequest, ForkRequest, Resumption
from torpor.services.shelf import Shelf


class Backend(Protocol):
    """Sessions of all tenants on this node. ``ref`` is an id or a name.

    Every method that takes a ``ref`` raises NotFound for one that this tenant does not have. Those that need a live
    instance wake the session. Cancelling a call gives up waiting for it, never the session.
    """

    async def create(self, tenant: TenantId, request: CreateRequest) -> tuple[Session, Resumption]:
        """A running session. Raises: NotFound (template), Conflict (name taken), InvalidArgument."""
        ...

    async def get(self, tenant: TenantId, ref: str) -> Session:
        """Its record."""
        ...

    async def page(self, tenant: TenantId, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Sessions that are not deleted, newest first."""
        ...

    async def pause(self, tenant: TenantId, ref: str, *, wait: Durability | None = Durability.DISK) -> Session:
        """Pause, and wait until it is that durable. Raises: Unsupported for a durability that is not offered."""
        ...

    async def snapshot(self, tenant: TenantId, ref: str) -> Session:
        """Store what it is now, and let it go on. Raises: Conflict, Unsupported (ephemeral), StorageFull."""
        ...

    async def fork(self, tenant: TenantId, ref: str, request: ForkRequest) -> Sequence[tuple[Session, Resumption]]:
        """Running copies of a session as it is now; all of them, or none. Raises: Conflict, Unsupported (ephemeral)."""
        ...

    async def set_clocks(self, tenant: TenantId, ref: str, change: ClockChange) -> Session:
        """Set its clocks anew. Wakes nothing."""
        ...

    def awake_because(self, session: SessionId) -> tuple[str, ...]:
        """What keeps it awake now, a phrase each."""
        ...

    def guest(self, tenant: TenantId, ref: str) -> AbstractAsyncContextManager[tuple[Guest, Resumption | None]]:
        """Its guest, woken if need be, for calls that are no bursts: files, terminals, forwards, logs."""
        ...

    async def resume(
        self, tenant: TenantId, ref: str, *, allow_older: bool = False
    ) -> tuple[Session, Resumption | None]:
        """Running again; None if it was already."""
        ...

    async def delete(self, tenant: TenantId, ref: str) -> Session:
        """Gone, its key destroyed."""
        ...

    async def code(
        self,
        tenant: TenantId,
        ref: str,
        source: str,
        *,
        context: str = "default",
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Burst:
        """Run Python in a context that keeps its variables."""
        ...

    async def shell(
        self,
        tenant: TenantId,
        ref: str,
        command: str,
        *,
        shell: str = "default",
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Burst:
        """Run a command in a shell that keeps its directory and variables."""
        ...

    async def execute(
        self, tenant: TenantId, ref: str, process: ProcessSpec, *, on_output: OnOutput | None = None
    ) -> Burst:
        """Run a process."""
        ...

    async def interrupt(self, tenant: TenantId, ref: str, *, context: str = "default") -> None:
        """KeyboardInterrupt in a context's running burst; nothing if it runs none."""
        ...

    def read_file(self, tenant: TenantId, ref: str, path: str) -> AsyncIterator[bytes]:
        """The file's bytes. Raises at the first step: NotFound, InvalidArgument (a directory)."""
        ...

    async def write_file(self, tenant: TenantId, ref: str, path: str, data: AsyncIterator[bytes], *, mode: int) -> int:
        """Write a whole file, replaced atomically; its size. An error out of ``data`` leaves the old file."""
        ...

    async def usage(self, tenant: TenantId, ref: str) -> Mapping[str, float]:
        """``cpu_s`` and ``memory_bytes`` of the live instance; zeros while paused."""
        ...

    async def templates(self, tenant: TenantId) -> tuple[TemplateRecord, ...]:
        """The newest template of each name."""
        ...

    @property
    def shelf(self) -> Shelf:
        """The templates, to look at and to remove."""
        ...

    @property
    def maintenance(self) -> Maintenance:
        """What an operator asks of the store: garbage, a rebuilt catalog, exports, imports."""
        ...

    async def store_check(self, tenant: TenantId) -> Mapping[str, Any]:
        """A JSON-able report with ``clean``."""
        ...

    async def engine_info(self) -> Mapping[str, Any]:
        """The engine in use and what it can do, JSON-able."""
        ...

    async def health(self) -> Mapping[str, Any]:
        """JSON-able; read without a key, so it holds nothing of any tenant."""
        ...
