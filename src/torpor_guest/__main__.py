"""Entry of PID 1: the interpreter is given this directory, and its parent holds the packages."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from torpor_guest.agent import main  # noqa: E402 - the path above finds it

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
