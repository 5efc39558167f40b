"""Runs the builder's commands: output to a log that is kept whole, its end in the error, no process left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from torpor.adapters.templates import commands
from torpor.adapters.templates.workplace import Progress

_PLAIN = {
    "DEBIAN_FRONTEND": "noninteractive",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
_TEXT_BYTES_MAX = 1 << 20
_LOG_BYTES_MAX = 64 << 20


class BuildLog:
    """The whole output of a build, in a file of its own. ``progress`` lines are for people and are in it too."""

    def __init__(self, path: Path | None, progress: Progress) -> None:
        self.path = path
        self._progress = progress
        self._bytes_left = _LOG_BYTES_MAX
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.unlink(missing_ok=True)

    def say(self, line: str) -> None:
        """One line to the person."""
        self.write(f"== {line}\n".encode())
        self._progress(line)

    def write(self, block: bytes) -> None:
        """Output of a command; what is beyond 64 MiB is dropped."""
        if self.path is None or self._bytes_left <= 0:
            return
        with self.path.open("ab") as file:
            file.write(block[: self._bytes_left])
        self._bytes_left -= len(block)


async def run(
    argv: tuple[str, ...],
    log: BuildLog,
    *,
    may_exit: tuple[int, ...] = (0,),
    env: Mapping[str, str] | None = None,
    shown: tuple[str, ...] = (),
    apart: bool = False,
) -> str:
    """Run to the end; what it wrote. Its whole process group dies with a cancellation.

    ``env``: laid over the host's, or with ``apart`` over nothing but a search path. ``shown``: what the person wrote,
    for the message, where ``argv`` is our wrapping. Raises: what ``commands.build_error`` makes of another status.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=(_PLAIN if apart else commands.build_environment(os.environ)) | dict(env or {}),
        start_new_session=True,
    )
    assert process.stdout is not None
    log.write(f"$ {' '.join(shown or argv)}\n".encode(errors="replace"))
    kept = bytearray()
    try:
        # Read in blocks: a progress bar is one endless line.
        while block := await process.stdout.read(1 << 16):
            log.write(block)
            for line in block.decode(errors="replace").splitlines():
                if line.startswith("I: ") and argv[0] == "mmdebstrap" and "signal" not in line:
                    log.say(line[3:])
            kept += block
            del kept[:-_TEXT_BYTES_MAX]
        exit_code = await process.wait()
    finally:
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            await _ended(process)
    text = kept.decode(errors="replace")
    if exit_code not in may_exit:
        raise commands.build_error(shown or argv, exit_code=exit_code, log=text, log_file=log.path)
    return text


async def _ended(process: asyncio.subprocess.Process) -> None:
    # mmdebstrap takes its mounts off when it is asked to end; it is killed only if it does not.
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
