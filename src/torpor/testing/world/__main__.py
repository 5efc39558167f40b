"""``python -m torpor.testing.world SEED`` tells the story of one seed; ``--seeds A-B`` runs them all and is brief."""

from __future__ import annotations

import argparse
import sys
import time

from torpor.testing.world.many import run_seeds
from torpor.testing.world.witness import Violation
from torpor.testing.world.world import World


def main() -> int:
    """1 if an invariant does not hold in a seed."""
    parser = argparse.ArgumentParser(prog="python -m torpor.testing.world", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="tell the story of this seed")
    parser.add_argument("--seeds", metavar="A-B", help="run seeds A up to and with B, on every processor")
    given = parser.parse_args()
    if given.seeds:
        first, _, last = given.seeds.partition("-")
        return _many(range(int(first), int(last or first) + 1))
    if given.seed is None:
        parser.error("give a seed, or --seeds A-B")
    return _one(given.seed)


def _one(seed: int) -> int:
    try:
        World(seed, tell=print).run()
    except Violation as violation:
        print(f"violation: {violation}")
        return 1
    print("all is well")
    return 0


def _many(seeds: range) -> int:
    began_s = time.monotonic()
    failures = run_seeds(seeds)
    for failure in failures:
        print(f"seed {failure.seed}: {failure.violation}")
    print(f"{len(seeds)} seeds in {time.monotonic() - began_s:.1f} s, {len(failures)} of them broken")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
