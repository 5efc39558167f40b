"""How a live sandbox is driven: by its control socket where the build is known, else by command line. Same promises.

Raises in every method of both: EngineError; StorageFull where a file does not fit.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

from torpor.adapters.engines.gvisor import parse, process
from torpor.adapters.engines.gvisor.commands import Runsc
from torpor.adapters.engines.gvisor.control import CallFailed, Control
from torpor.adapters.engines.gvisor.images import MEMORY_FILES
from torpor.domain.ids import InstanceId


class Driver(Protocol):
    """One sandbox's tasks, image and delta."""

    async def pause(self) -> None:
        """Stop all tasks."""

    async def resume(self) -> None:
        """Undo ``pause``; only ever after one."""

    async def is_paused(self) -> bool:
        """True if it is paused. For the repair after a crash only."""
        ...

    async def checkpoint(self, directory: Path) -> None:
        """Write the memory part into ``directory``; the sandbox lives on."""

    async def tar(self, file: Path) -> None:
        """Write the filesystem part."""

    async def wait_restore(self) -> None:
        """Return once a background restore has read all pages."""


class ControlDriver:
    """By control socket."""

    def __init__(self, control: Control, instance: InstanceId) -> None:
        self._control = control
        self._instance = instance

    async def pause(self) -> None:
        """See Driver."""
        await self._control.pause()

    async def resume(self) -> None:
        """See Driver."""
        await self._control.resume()

    async def is_paused(self) -> bool:
        """See Driver."""
        return await self._control.is_paused()

    async def checkpoint(self, directory: Path) -> None:
        """See Driver."""
        with contextlib.ExitStack() as stack:
            files = [_open_new(stack, directory / name) for name in MEMORY_FILES]
            await _translated("write the memory part", self._control.checkpoint(files))

    async def tar(self, file: Path) -> None:
        """See Driver."""
        with contextlib.ExitStack() as stack:
            end = _open_new(stack, file)
            await _translated("write the filesystem part", self._control.tar(self._instance, end))

    async def wait_restore(self) -> None:
        """See Driver."""
        await self._control.wait_restore()


class CommandDriver:
    """By command line; ``timeout_s`` is for each command."""

    def __init__(self, runsc: Runsc, instance: InstanceId, *, timeout_s: float) -> None:
        self._runsc = runsc
        self._instance = instance
        self._timeout_s = timeout_s

    async def pause(self) -> None:
        """See Driver."""
        await self._run("pause", self._runsc.pause(self._instance))

    async def resume(self) -> None:
        """See Driver."""
        await self._run("resume", self._runsc.resume(self._instance))

    async def is_paused(self) -> bool:
        """See Driver."""
        state = json.loads(await self._run("ask for the state", self._runsc.state(self._instance)))
        return bool(state.get("status") == "paused")

    async def checkpoint(self, directory: Path) -> None:
        """See Driver."""
        await self._run("write the memory part", self._runsc.checkpoint(self._instance, directory))

    async def tar(self, file: Path) -> None:
        """See Driver."""
        await self._run("write the filesystem part", self._runsc.tar(self._instance, file))

    async def wait_restore(self) -> None:
        """See Driver."""
        await self._run("wait for the pages", self._runsc.wait_restore(self._instance))

    async def _run(self, doing: str, argv: tuple[str, ...]) -> str:
        completed = await process.run(argv, timeout_s=self._timeout_s)
        if completed.exit_code != 0:
            said = completed.stderr + completed.stdout
            raise parse.failure(doing, said, argv=argv, exit_code=completed.exit_code)
        return completed.stdout


async def _translated(doing: str, call: Awaitable[None]) -> None:
    try:
        await call
    except CallFailed as error:
        raise parse.failure(doing, str(error.details.get("log_tail", ""))) from error


def _open_new(stack: contextlib.ExitStack, file: Path) -> int:
    """A fresh file's descriptor, closed with ``stack``."""
    try:
        end = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise parse.failure(f"make {file.name}", str(error.strerror)) from error
    stack.callback(os.close, end)
    return end
