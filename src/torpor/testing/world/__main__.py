"""``python -m torpor.testing.world SEED``: the story of one seed, and how it ends."""

from __future__ import annotations

import sys

from torpor.testing.world.witness import Violation
from torpor.testing.world.world import World


def main() -> int:
    """Tell a seed's story. 1 if an invariant does not hold in it."""
    try:
        World(int(sys.argv[1]), tell=print).run()
    except Violation as violation:
        print(f"violation: {violation}")
        return 1
    print("all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
