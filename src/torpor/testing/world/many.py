"""Many seeds at once: each processor takes every so many-th of them, in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass

from torpor.testing.world.witness import Violation
from torpor.testing.world.world import World

COLLECT_EVERY = 25  # seeds


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed in which an invariant does not hold, and which."""

    seed: int
    violation: str


def run_seeds(seeds: Sequence[int], *, processes_count: int | None = None) -> list[Failure]:
    """Run them all; the failures, by seed."""
    count = processes_count or len(os.sched_getaffinity(0))
    shares = [seeds[start::count] for start in range(count)]
    if count == 1:
        return run_share(seeds)
    # Spawned: a fork of a process with threads may hang, and one test run has many.
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        failures = [failure for share in pool.map(run_share, shares) for failure in share]
    return sorted(failures, key=lambda failure: failure.seed)


def run_share(seeds: Sequence[int]) -> list[Failure]:
    """Run them in this process; the failures."""
    failures = []
    was_enabled = gc.isenabled()
    gc.disable()  # it would look at everything that was imported, again and again
    gc.collect()
    gc.freeze()
    try:
        for number, seed in enumerate(seeds, 1):
            if number % COLLECT_EVERY == 0:
                gc.collect()
            try:
                World(seed).run()
            except Violation as violation:
                failures.append(Failure(seed, str(violation)))
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
    return failures
