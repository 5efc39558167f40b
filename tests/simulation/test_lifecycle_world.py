"""Random histories of a whole world. A failing seed is named, and kept in seeds.txt.

TORPOR_SEEDS=20000 runs more of them, TORPOR_SEED=7 only that one.
"""

import os
from dataclasses import fields
from pathlib import Path

import pytest

from torpor.domain.session import Status
from torpor.testing.world.conditions import NO_FAULTS, Safeguards
from torpor.testing.world.witness import Violation
from torpor.testing.world.world import World

SEEDS_COUNT = int(os.environ.get("TORPOR_SEEDS", "2000"))
MUTANT_SEEDS_MAX = 2000
KEPT = Path(__file__).parent / "seeds.txt"


def seeds_to_run() -> list[int]:
    if "TORPOR_SEED" in os.environ:
        return [int(os.environ["TORPOR_SEED"])]
    kept = [int(line) for line in KEPT.read_text().splitlines() if line and not line.startswith("#")]
    return list(dict.fromkeys([*kept, *range(SEEDS_COUNT)]))


def keep(seed: int) -> None:
    if str(seed) not in KEPT.read_text().splitlines():
        with KEPT.open("a") as kept:
            kept.write(f"{seed}\n")


def test_every_history_is_safe_and_comes_to_rest() -> None:
    for seed in seeds_to_run():
        try:
            World(seed).run()
        except Violation as violation:
            keep(seed)
            pytest.fail(f"seed {seed}: {violation}\nits story: .venv/bin/python -m torpor.testing.world {seed}")


def test_one_seed_is_one_history() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        World(5, tell=story.append).run()
    assert stories[0] == stories[1]
    assert len(stories[0]) > 50


def test_without_faults_every_start_is_a_resume_of_exactly_what_was_paused() -> None:
    for seed in range(50):
        world = World(seed, faults=NO_FAULTS)
        world.run()
        for record in world.witness.records.values():
            assert record.status is not Status.LOST
            assert record.last_error is None


def test_the_histories_go_everywhere() -> None:
    seen: set[str] = set()
    for seed in range(100):
        World(seed, tell=lambda line: seen.update(line.split())).run()
    assert {status.value for status in Status} <= seen
    assert {"crashes", "client:", "starts:"} <= seen


@pytest.mark.parametrize("safeguard", [field.name for field in fields(Safeguards)])
def test_without_this_safeguard_histories_break(safeguard: str) -> None:
    broken = Safeguards(**{safeguard: False})
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            World(seed, safeguards=broken).run()
        except Violation:
            return
    pytest.fail(f"{MUTANT_SEEDS_MAX} histories without {safeguard} went well: the safeguard or the world is idle")
