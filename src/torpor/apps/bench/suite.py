"""Every bench: the command that runs it, and the results whose bounds the project promises (SPECIFICATION.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torpor.apps.bench import bursts, cold, cycles, density, forks, memory, warm
from torpor.apps.bench.homes import Progress
from torpor.apps.bench.report import Result
from torpor.apps.config import Config


class Measure(Protocol):
    """Measures. Raises: TorporError if what it measured was not right; then there are no figures."""

    async def __call__(self, config: Config, *, quick: bool, progress: Progress) -> list[Result]:
        """Samples taken, checked and summed up."""
        ...


@dataclass(frozen=True, slots=True)
class Bench:
    """``command``: what follows ``torpor bench``. ``promised``: results with a bound that it always has."""

    command: str
    measure: Measure
    promised: tuple[str, ...]


BENCHES = {
    "resume-local": Bench("resume --tier local", cycles.measure_resume, ("resume_local_64mb", "resume_local_256mb")),
    "resume-warm": Bench("resume --tier warm", warm.measure, ("resume_warm_64mb", "resume_warm_256mb")),
    "resume-cold": Bench("resume --tier cold", cold.measure, ("resume_cold", "resume_cold_again")),
    "pause": Bench(
        "pause", cycles.measure_pause, ("pause_stop_64mb", "pause_stop_256mb", "second_pause_new_share_256mb")
    ),
    "density": Bench("density", density.measure, ("density_stored", "density_server_growth", "density_ls")),
    "fork": Bench("fork", forks.measure, ("fork_10",)),
    "exec": Bench("exec", bursts.measure, ("exec_code", "exec_stdout", "exec_upload", "exec_download", "exec_create")),
    "memory": Bench("memory", memory.measure, ("memory_peak",)),
}
ALL: tuple[Measure, ...] = (
    cycles.measure_both,  # resume-local and pause, of the same repetitions
    warm.measure,
    cold.measure,
    density.measure,
    forks.measure,
    bursts.measure,
    memory.measure,
)


def chosen(name: str) -> tuple[Sequence[Measure], frozenset[str]]:
    """What to run for a bench or ``all``, and the promised results that must come of it."""
    if name == "all":
        return ALL, frozenset(result for bench in BENCHES.values() for result in bench.promised)
    return (BENCHES[name].measure,), frozenset(BENCHES[name].promised)
