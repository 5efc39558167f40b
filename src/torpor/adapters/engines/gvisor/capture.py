"""The order of a checkpoint: two parts, one instant (docs/design/002-two-parts-one-instant.md).

pause → filesystem part → memory part → verify; the instance stays paused. On any failure, or if the caller gives up:
files removed → resume, so that the instance goes on as if nothing had been tried. A sandbox that died is not resumed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.adapters.engines.gvisor import process
from torpor.adapters.engines.gvisor.driver import Driver
from torpor.adapters.engines.gvisor.images import FILESYSTEM_FILE, MEMORY_FILES, Parts, check_files
from torpor.adapters.engines.gvisor.record import Pause, Record, with_pause, write_record
from torpor.domain.errors import EngineError, TorporError
from torpor.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class Subject:
    """The instance that is captured."""

    bundle: Path
    record: Record
    driver: Driver


class Stopwatch:
    """Milliseconds of steps, by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps_ms: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the block."""
        began_s = self._clock.monotonic_s()
        yield
        self._steps_ms[name] = round((self._clock.monotonic_s() - began_s) * 1000, 3)

    @property
    def steps_ms(self) -> Mapping[str, float]:
        """What each step took so far."""
        return dict(self._steps_ms)


async def pause(subject: Subject) -> None:
    """Stop the guest; the record says so. On failure it runs."""
    write_record(subject.bundle, with_pause(subject.record, Pause.PAUSING))
    try:
        await subject.driver.pause()
    except EngineError:
        write_record(subject.bundle, with_pause(subject.record, Pause.NO))
        raise
    write_record(subject.bundle, with_pause(subject.record, Pause.YES))


async def resume(subject: Subject) -> None:
    """Let a paused guest go on; the record says so."""
    write_record(subject.bundle, with_pause(subject.record, Pause.RESUMING))
    await subject.driver.resume()
    write_record(subject.bundle, with_pause(subject.record, Pause.NO))


async def capture(subject: Subject, into: Path, clock: Clock, parts: Parts) -> Mapping[str, float]:
    """Write the parts into ``into`` and leave the guest paused; what each step took.

    Raises: StorageFull, EngineError; then ``into`` is empty and the guest runs, unless its sandbox died.
    """
    watch = Stopwatch(clock)
    async with contextlib.AsyncExitStack() as undo:
        undo.callback(_remove_files, into)
        with watch.step("pause"):
            await pause(subject)
        undo.push_async_callback(_resume_if_alive, subject)
        if parts.filesystem_file is not None:
            with watch.step("filesystem"):
                await subject.driver.tar(into / parts.filesystem_file)
        if parts.memory_files:
            with watch.step("memory"):
                await subject.driver.checkpoint(into)
        check_files(into, parts.files)
        undo.pop_all()
    return watch.steps_ms


async def _resume_if_alive(subject: Subject) -> None:
    try:
        await resume(subject)
    except TorporError:
        if process.living(subject.record.processes[:1]):
            raise


def _remove_files(into: Path) -> None:
    for name in (*MEMORY_FILES, FILESYSTEM_FILE):
        with contextlib.suppress(FileNotFoundError):
            (into / name).unlink()
