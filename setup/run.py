# ruff: noqa: INP001 - a script, not a package; torpor_setup beside it is one
"""The set-up of a checkout: ``python3 setup/run.py check|engine|undo|links``. Called by the Makefile, not by hand.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this is what tells an older Python so
    sys.exit(f"cannot set up: Python 3.11 or newer is needed, this is {sys.version.split()[0]}; set PYTHON=python3.X")

from torpor_setup.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
