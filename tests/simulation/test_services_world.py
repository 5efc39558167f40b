"""Random histories of the real services over ports that fail, in virtual time. A failing seed is named, and kept.

TORPOR_SEEDS=20000 runs more of them, TORPOR_SEED=7 only that one.
"""

import os
import subprocess
import sys

from torpor.domain.session import Status
from torpor.testing.world.conditions import NO_FAULTS
from torpor.testing.world.world import World


def test_one_seed_is_one_history_in_whatever_process_it_runs():
    argv = (sys.executable, "-m", "torpor.testing.world", "5")
    stories = {
        subprocess.run(argv, env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True, check=False).stdout
        for salt in ("1", "2")
    }
    assert len(stories) == 1
    assert len(stories.pop().splitlines()) > 50


def test_without_faults_nothing_is_ever_lost_or_in_error():
    for seed in range(20):
        world = World(seed, faults=NO_FAULTS)
        world.run()
        for record in world.witness.records.values():
            assert record.status is not Status.LOST
            assert record.last_error_code in {None, "conflict"}  # a burst that arrived
