"""Running runsc, and burying what it leaves: sandboxes and gofers outlive the command that made them and become ours.

The server is a child subreaper, so that they come to it and not to an init that may take its time (1.5 s instead of
40 ms for a delete, measured). Only pids that are known to be ours by adoption are ever waited for: asyncio's own
children keep their exit status.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torpor.domain.errors import EngineError, Unsupported

OUTPUT_BYTES_MAX = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended. Both outputs are cut at their last ``OUTPUT_BYTES_MAX`` bytes."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str


async def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    stdio: tuple[int, int] | None = None,
) -> Completed:
    """Run ``argv`` to its end. With ``stdio`` those are its stdin and stdout, and nothing is collected.

    The exit code is a value. Raises: Unsupported if the binary cannot be run, EngineError if time runs out.
    """
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    stdin, stdout, stderr = (stdio[0], stdio[1], null) if stdio else (null, pipe, pipe)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env
        )
    except (FileNotFoundError, PermissionError, OSError) as error:
        raise Unsupported(
            f"cannot run {argv[0]}: {error.strerror}; install a build with `torpor engine install gvisor`",
            binary=argv[0],
        ) from error
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise EngineError(f"cannot wait for {argv[0]}: not done within {timeout_s} s", argv=list(argv)) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    assert process.returncode is not None
    return Completed(tuple(argv), process.returncode, _tail(out), _tail(err))


def _tail(output: bytes | None) -> str:
    return (output or b"")[-OUTPUT_BYTES_MAX:].decode(errors="replace")


def started_at(pid: int) -> int | None:
    """The start time of a live process in clock ticks since boot, which with its pid names it; None if it is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def name_processes(pids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Those of ``pids`` that live, with their start times."""
    named = ((pid, started_at(pid)) for pid in pids)
    return tuple((pid, started) for pid, started in named if started is not None)


def living(processes: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Those of ``processes`` that still live and are still the same."""
    return tuple(pid for pid, started in processes if started_at(pid) == started)


class Reaper:
    """Adopts orphans and buries them as soon as they die. Used from one event loop."""

    def __init__(self) -> None:
        self._is_subreaper = False
        self._adopted: set[int] = set()

    def become_subreaper(self) -> None:
        """Ask the kernel to hand orphaned descendants to this process. Idempotent."""
        if self._is_subreaper:
            return
        # SAFETY: changes only who inherits orphans; those we do not know are left alone, as an init would find them.
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise EngineError(f"cannot become a subreaper: {os.strerror(ctypes.get_errno())}")
        self._is_subreaper = True

    def adopt(self, pids: Iterable[int]) -> None:
        """Bury each of ``pids`` when it dies, whether it is our child yet or not. Idempotent."""
        loop = asyncio.get_running_loop()
        for pid in set(pids) - self._adopted:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                self._adopted.add(pid)
                loop.add_reader(handle, self._bury, loop, handle, pid)

    async def wait_dead(self, pids: Iterable[int], *, timeout_s: float) -> None:
        """Return once all of ``pids`` are dead and buried. Raises: EngineError if time runs out."""
        loop = asyncio.get_running_loop()
        for pid in pids:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            dead = loop.create_future()
            loop.add_reader(handle, _resolve, dead)
            try:
                async with asyncio.timeout(timeout_s):
                    await dead
            except TimeoutError as error:
                raise EngineError(f"cannot end process {pid}: it outlives its SIGKILL by {timeout_s} s") from error
            finally:
                loop.remove_reader(handle)
                os.close(handle)
            _wait_for(pid)

    def _bury(self, loop: asyncio.AbstractEventLoop, handle: int, pid: int) -> None:
        loop.remove_reader(handle)
        os.close(handle)
        self._adopted.discard(pid)
        _wait_for(pid)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _wait_for(pid: int) -> None:
    """Take the exit status of a dead child; nothing if somebody else's child it is, or was."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
