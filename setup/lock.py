# ruff: noqa: INP001 - a script, not a package
"""Resolve ``requirements.lock`` from ``pyproject.toml``: every platform and Python that is supported, with digests.

What is locked stays as it is unless UPGRADE=1 asks for the newest: a new dependency is no reason to change the others.
The resolver lives in an environment of its own, so that it is no dependency of the project.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
RESOLVER = CHECKOUT / ".cache/lock-venv"
HEADER = "# Made by 'make lock' from pyproject.toml; do not edit.\n"


def main() -> int:
    """Exit status: that of the first command that fails, else 0."""
    python, lock = RESOLVER / "bin/python", CHECKOUT / "requirements.lock"
    resolve = (
        *(python, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
        *("--extra", "server", "--extra", "dev", "--generate-hashes", "--no-emit-index-url", "--no-header"),
        *(["--upgrade"] if os.environ.get("UPGRADE") == "1" else []),
        *("--output-file", lock, "pyproject.toml"),
    )
    for argv in (
        (sys.executable, "-m", "venv", RESOLVER),
        (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"),
        resolve,
    ):
        ended = subprocess.run([str(word) for word in argv], check=False, cwd=CHECKOUT)
        if ended.returncode:
            print(f"cannot lock: {argv[0]} ended with {ended.returncode}; see above", file=sys.stderr)
            return ended.returncode
    lock.write_text(HEADER + lock.read_text())
    print("requirements.lock is new; run make check, and look at the difference before you commit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
