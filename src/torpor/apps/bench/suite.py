"""Every bench by its name, in the order of ``torpor bench all``."""

from __future__ import annotations

from typing import Protocol

from torpor.apps.bench import bursts, cold, cycles, density, forks, warm
from torpor.apps.bench.homes import Progress
from torpor.apps.bench.report import Result
from torpor.apps.config import Config


class Bench(Protocol):
    """Measures. Raises: TorporError if what it measured was not right; then there are no figures."""

    async def __call__(self, config: Config, *, quick: bool, progress: Progress) -> list[Result]:
        """Samples taken, checked and summed up."""
        ...


BENCHES: dict[str, Bench] = {
    "resume-local": cycles.measure_resume,
    "resume-warm": warm.measure,
    "resume-cold": cold.measure,
    "pause": cycles.measure_pause,
    "density": density.measure,
    "fork": forks.measure,
    "exec": bursts.measure,
}
