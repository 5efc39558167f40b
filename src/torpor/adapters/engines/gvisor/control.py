"""The sandbox's control socket: one JSON request and one JSON answer per connection, descriptors by SCM_RIGHTS.

Some tens of milliseconds faster per call than the command line (pause 0.3 ms instead of 20 ms), but the arguments are
internal to a build: used only for builds whose exact version is in ``BUILDS``; for all others the engine says the same
by command line. Connections are not kept, since a restore ends them.
Source: gVisor pkg/urpc and runsc/boot/controller.go at the versions named in ``BUILDS``.
"""

from __future__ import annotations

import array
import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torpor.domain.errors import EngineError

BUILDS = frozenset({"torpor-20260905"})
ANSWER_BYTES_MAX = 64 * 1024 * 1024  # debug.Stacks of a busy sandbox is the largest answer asked for


class CallFailed(EngineError):
    """The sandbox answered with an error; the sandbox itself is as it was."""


class Control:
    """Calls to one sandbox, each with a time limit: one that hangs must not hold a capture or a shutdown for ever.

    Raises in every method: CallFailed, or EngineError if the sandbox cannot be reached or does not answer in time.
    """

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s

    async def pause(self) -> None:
        """Stop all tasks; returns when they are stopped. Counted: never call it twice."""
        await self._call("containerManager.Pause")

    async def resume(self) -> None:
        """Undo one ``pause``. Without one the sandbox panics."""
        await self._call("containerManager.Resume")

    async def checkpoint(self, files: Sequence[int]) -> None:
        """Write state, page metadata and pages into the three descriptors; the sandbox lives on, paused or not."""
        argument = {"metadata": {"compression": "none"}, "have_pages_file": True, "Resume": True}
        await self._call("containerManager.Checkpoint", argument, files)

    async def restore(self, files: Sequence[int], network: object, link: int, *, background: bool) -> None:
        """Load state, page metadata and pages from the three descriptors into a created sandbox.

        ``network``: what the restored stack is set up with (``network.arguments``), ``link`` its packet socket.
        """
        await self._call("containerManager.SetNetworkArgs", network, (link,))
        argument = {"HavePagesFile": True, "Background": background}
        await self._call("containerManager.Restore", argument, files)

    async def tar(self, container: str, file: int) -> None:
        """Write the root filesystem's upper layer as a tar."""
        await self._call("Fs.TarRootfsUpperLayer", {"ContainerID": container}, (file,))

    async def wait_restore(self) -> None:
        """Return once all pages of a background restore are read."""
        await self._call("containerManager.WaitRestore")

    async def is_paused(self) -> bool:
        """True if every task is held. Costs a stop of the sentry: for the repair after a crash only."""
        stacks = str(await self._call("debug.Stacks"))
        tasks = [stack for stack in stacks.split("\n\n") if "kernel.(*Task).run(" in stack]
        return all("doStop(" in stack for stack in tasks)

    async def _call(self, method: str, argument: object = None, files: Sequence[int] = ()) -> Any:  # noqa: ANN401 - JSON
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._answered(method, argument, files)
        except TimeoutError as error:
            raise EngineError(f"cannot call {method} at {self._path}: no answer within {self._timeout_s} s") from error

    async def _answered(self, method: str, argument: object, files: Sequence[int]) -> Any:  # noqa: ANN401 - JSON
        request = json.dumps({"method": method, "arg": argument}).encode()
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            try:
                await loop.sock_connect(connection, str(self._path))
                if files:
                    # A fresh socket's buffer takes one byte at once, and descriptors ride on the first byte.
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
                    connection.sendmsg([request[:1]], [rights])
                    request = request[1:]
                await loop.sock_sendall(connection, request)
                answer = await _receive(loop, connection)
            except OSError as error:
                raise EngineError(f"cannot call {method} at {self._path}: {error.strerror or error}") from error
        if not answer.get("success"):
            raise CallFailed(f"cannot carry out {method}: {answer.get('err')}", log_tail=str(answer.get("err")))
        return answer.get("result") or {}


async def _receive(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> dict[str, Any]:
    """The one JSON object that the sandbox answers with."""
    received = bytearray()
    while len(received) < ANSWER_BYTES_MAX:
        piece = await loop.sock_recv(connection, 65536)
        if not piece:
            raise ConnectionResetError("the sandbox closed its control socket")
        received += piece
        if not received.rstrip().endswith(b"}"):
            continue
        try:
            answer: dict[str, Any] = json.loads(received)
        except ValueError:
            continue
        return answer
    raise ConnectionResetError("the sandbox's answer is too long")
