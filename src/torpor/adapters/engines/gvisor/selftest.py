"""The proof that a build works here: run → checkpoint → restore twice → compare, and the same for the filesystem part.

It needs no template: the guest's root is this host's own, read-only under its overlay, and its program runs in the
python that runs us.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torpor.adapters.engines.gvisor.config import GVisorConfig
from torpor.adapters.engines.gvisor.engine import GVisorEngine
from torpor.domain.errors import EngineError, TorporError
from torpor.domain.ids import InstanceId
from torpor.ports.clock import Clock
from torpor.ports.engine import Checkpoint, EngineCapabilities, InstanceShape

ANSWER_TIMEOUT_S = 30.0
MARK = "/torpor-self-test"
# Counts lines; each answer says whether the mark was there when the program began.
PROGRAM = f"""
import os
had_mark, count = os.path.exists({MARK!r}), 0
open({MARK!r}, "w").close()
while True:
    for line in os.read(0, 4096).splitlines():
        count += 1
        os.write(1, b"%d %d\\n" % (count, had_mark))
"""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What was proved of a build. ``failure``: empty if all that the build offers works."""

    capabilities: EngineCapabilities
    failure: str = ""
    steps_ms: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True if the build may be used."""
        return not self.failure

    def to_json(self) -> dict[str, Any]:
        """For build.json."""
        return {**asdict(self), "capabilities": asdict(self.capabilities)}


async def self_test(runsc: Path, clock: Clock) -> SelfTest:
    """Try ``runsc`` on this host; about two seconds. Leaves nothing. Raises: Unsupported if it cannot run at all."""
    runtime_dir = Path(f"/run/torpor/self-test-{os.getpid()}")
    cgroup_parent = f"/torpor-self-test-{os.getpid()}"
    engine = GVisorEngine(GVisorConfig(runsc=runsc, runtime_dir=runtime_dir, cgroup_parent=cgroup_parent), clock)
    capabilities = await engine.capabilities()
    images = Path(tempfile.mkdtemp(prefix="torpor-self-test-", dir=_memory_folder()))
    trial = _Trial(engine, images, clock)
    try:
        await trial.run(filesystem_part=capabilities.filesystem_part)
    except TorporError as error:
        return SelfTest(capabilities, failure=error.message, steps_ms=trial.steps_ms)
    finally:
        for instance in await engine.instances():
            await engine.destroy(instance)
        await engine.retire()
        await asyncio.to_thread(shutil.rmtree, images)
    return SelfTest(capabilities, steps_ms=trial.steps_ms)


class _Trial:
    """One run of the proof."""

    def __init__(self, engine: GVisorEngine, images: Path, clock: Clock) -> None:
        self.steps_ms: dict[str, float] = {}
        self._engine = engine
        self._images = images
        self._clock = clock
        python = str(Path(sys.executable).resolve())
        self._shape = InstanceShape(rootfs=Path("/"), argv=(python, "-I", "-S", "-u", "-c", PROGRAM))

    async def run(self, *, filesystem_part: bool) -> None:
        """The whole proof. Raises: TorporError at the first thing that does not hold."""
        first = InstanceId("0" * 19 + "1")
        await self._timed("create", self._engine.create(first, self._shape))
        await self._timed("start", self._engine.start(first))
        await self._expect(first, "1 0")
        checkpoint = await self._timed("checkpoint", self._engine.checkpoint(first, self._images))
        for number in (2, 3):
            await self._restore(InstanceId(f"{number:020d}"), checkpoint)
        await self._engine.thaw(first)
        await self._expect(first, "2 0")
        if filesystem_part:
            assert checkpoint.filesystem_file is not None
            fourth = InstanceId("0" * 19 + "4")
            await self._engine.create(fourth, self._shape, filesystem=self._images / checkpoint.filesystem_file)
            await self._engine.start(fourth)
            await self._expect(fourth, "1 1")

    async def _restore(self, instance: InstanceId, checkpoint: Checkpoint) -> None:
        await self._engine.create(instance, self._shape)
        requirements = checkpoint.requirements
        await self._timed("restore", self._engine.restore(instance, checkpoint.directory, requirements=requirements))
        await self._expect(instance, "2 0")

    async def _expect(self, instance: InstanceId, expected: str) -> None:
        """Send a line; the answer must be ``expected``."""
        channel = await self._engine.attach(instance)
        try:
            await channel.write(b"\n")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = (await channel.read(100)).decode().strip()
        except TimeoutError as error:
            raise EngineError(f"cannot trust the build: {instance} did not answer in {ANSWER_TIMEOUT_S} s") from error
        finally:
            await channel.close()
        if answer != expected:
            raise EngineError(f"cannot trust the build: {instance} answered {answer!r} where {expected!r} is right")

    async def _timed(self, step: str, work: Any) -> Any:  # noqa: ANN401 - gives back what the step gives
        began_s = self._clock.monotonic_s()
        result = await work
        self.steps_ms[step] = round((self._clock.monotonic_s() - began_s) * 1000, 1)
        return result


def _memory_folder() -> str | None:
    """A folder in memory, since an image is plaintext; the default where there is none."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108 - a fresh folder of mode 0700 is made in it
