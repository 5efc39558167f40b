"""Random histories of the real services over ports that fail, in virtual time. A failing seed is named, and kept.

TORPOR_SEEDS=20000 runs more of them, TORPOR_SEED=7 only that one.
"""

import gc
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torpor.domain.session import Status
from torpor.testing.world.conditions import NO_FAULTS
from torpor.testing.world.many import run_share
from torpor.testing.world.witness import Violation
from torpor.testing.world.world import World

SEEDS_COUNT = int(os.environ.get("TORPOR_SEEDS", "2000"))
SHARES_COUNT = 20  # tests that may run at once, each of some seconds
MUTANT_SEEDS_MAX = 400
# Histories that broke without one safeguard or another: tried first, since most of the rest shows nothing.
TELLING = (0, 1, 2, 11, 13, 72)
KEPT = Path(__file__).parent / "seeds.txt"

_spec = importlib.util.spec_from_file_location("torpor_safeguards", Path(__file__).parent / "safeguards.py")
safeguards = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(safeguards)


@pytest.fixture(autouse=True, scope="module")
def template() -> None:
    """Captured once in a process: before all tests, so that none captures it while it has removed a safeguard."""
    World(0).run()


def seeds_to_run(share: int) -> list[int]:
    if "TORPOR_SEED" in os.environ:
        return [int(os.environ["TORPOR_SEED"])] if share == 0 else []
    return [*range(share, SEEDS_COUNT, SHARES_COUNT)]


def kept_seeds() -> list[int]:
    return [int(line.split()[0]) for line in KEPT.read_text().splitlines() if line and not line.startswith("#")]


def check(seeds: list[int]) -> None:
    failures = run_share(seeds)
    for failure in failures:
        if failure.seed not in kept_seeds():
            with KEPT.open("a") as kept:
                kept.write(f"{failure.seed}\n")
    told = [f"seed {failure.seed}: {failure.violation}" for failure in failures]
    assert not told, "\n".join([*told, "the story of one: .venv/bin/python -m torpor.testing.world SEED"])


def test_histories_that_once_broke_hold() -> None:
    check(kept_seeds())


@pytest.mark.parametrize("share", range(SHARES_COUNT))
def test_every_history_is_safe_and_comes_to_rest(share: int) -> None:
    check(seeds_to_run(share))


def test_one_seed_is_one_history_in_whatever_process_it_runs() -> None:
    argv = (sys.executable, "-m", "torpor.testing.world", "5")
    stories = {
        subprocess.run(argv, env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True, check=False).stdout
        for salt in ("1", "2")
    }
    assert len(stories) == 1
    assert len(stories.pop().splitlines()) > 50


def test_without_faults_nothing_is_ever_lost() -> None:
    for seed in range(20):
        world = World(seed, faults=NO_FAULTS)
        world.run()
        assert all(record.status is not Status.LOST for record in world.witness.records.values())


def test_the_histories_go_everywhere() -> None:
    seen: set[str] = set()
    for seed in range(60):
        World(seed, tell=lambda line: seen.update(line.split())).run()
    assert {status.value for status in Status} - {Status.PAUSED_DURABLE.value} <= seen
    assert {"fork", "snapshot", "set_clocks", "delete", "resume_older", "counted:", "out", "dies", "power"} <= seen


@pytest.mark.parametrize("removed", safeguards.SAFEGUARDS, ids=lambda removed: removed.__name__)
def test_without_this_safeguard_histories_break(removed) -> None:
    gc.disable()
    try:
        with removed():
            for seed in dict.fromkeys((*TELLING, *range(MUTANT_SEEDS_MAX))):
                World(seed).run()
    except Violation:
        return
    finally:
        gc.enable()
    pytest.fail(f"{MUTANT_SEEDS_MAX} histories went well without it: the safeguard or the world is idle")
