"""What this machine has, and what it lacks. Reads only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

Which = Callable[[str], str | None]

# Tool -> the package that brings it, the same on Debian and Ubuntu.
TOOL_PACKAGES = {"ip": "iproute2", "mmdebstrap": "mmdebstrap"}
CERTIFICATES_FILE = Path("/etc/ssl/certs/ca-certificates.crt")
DISK_BYTES_MIN = 4 << 30


@dataclass(frozen=True)
class Lacking:
    """Packages to install before a goal, with the reason of each."""

    reasons: dict[str, str]

    @property
    def packages(self) -> tuple[str, ...]:
        """Their names, sorted."""
        return tuple(sorted(self.reasons))


def lacking_packages(goal: str, *, which: Which = shutil.which, venv_works: bool, has_ensurepip: bool) -> Lacking:
    """What ``goal`` (``check`` or ``engine``) needs that is not there."""
    reasons: dict[str, str] = {}
    if not venv_works and not has_ensurepip:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        name = "python3-venv" if _is_distributions_default() else f"python{version}-venv"
        reasons[name] = "makes the virtual environment"
    if goal == "engine":
        for tool, package in TOOL_PACKAGES.items():
            if which(tool) is None:
                reasons[package] = f"brings {tool}"
        if not CERTIFICATES_FILE.exists():
            reasons["ca-certificates"] = "for encrypted downloads"
    return Lacking(reasons)


def venv_works(python: Path) -> bool:
    """True if the virtual environment's interpreter starts, has pip, and is new enough."""
    if not python.exists():
        return False
    probe = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([python, "-I", "-c", probe], check=False, capture_output=True).returncode == 0


def has_ensurepip() -> bool:
    """False where the distribution has split it off, as Debian does."""
    return find_spec("ensurepip") is not None


def is_root() -> bool:
    """Tell whether this process may install packages, make namespaces and mounts."""
    return os.geteuid() == 0


def installed_packages() -> frozenset[str]:
    """All packages that dpkg has installed; empty where there is no dpkg."""
    try:
        listing = subprocess.run(
            ["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}${binary:Package}\n"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return frozenset()
    return frozenset(line[3:] for line in listing.splitlines() if line.startswith("ii "))


def has_package_lists(names: Iterable[str]) -> bool:
    """True if apt knows where to get every one of them, so that no ``apt-get update`` is needed."""
    for name in names:
        policy = subprocess.run(["apt-cache", "policy", name], check=False, capture_output=True, text=True).stdout
        if "Candidate:" not in policy or "Candidate: (none)" in policy:
            return False
    return True


def candidate_version(name: str) -> tuple[int, int]:
    """Major and minor version of the package that apt would install; (0, 0) if there is none."""
    try:
        policy = subprocess.run(["apt-cache", "policy", name], check=False, capture_output=True, text=True).stdout
    except OSError:
        return 0, 0
    return parsed_candidate(policy)


def parsed_candidate(policy: str) -> tuple[int, int]:
    """The same from what ``apt-cache policy`` says. Pure."""
    found = re.search(r"^ *Candidate: (?:\d+:)?(\d+)\.(\d+)", policy, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def free_bytes(path: Path) -> int:
    """Room left where ``path`` is or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _is_distributions_default() -> bool:
    default = Path("/usr/bin/python3")
    return default.exists() and Path(sys.executable).resolve() == default.resolve()
