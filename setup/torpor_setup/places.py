"""Where the set-up puts things. Pure.

::

    .venv/                          the virtual environment
    .cache/
    ├── home/                       TORPOR_HOME of development: engines/, templates/, store, keys, catalog
    ├── engines -> home/engines     where tests look
    ├── templates -> home/templates
    ├── stamps/STEP                 digest of the inputs a step was last done with
    └── logs/STEP.log
    /var/cache/torpor/              per machine: package layers and engine builds, so that a second clone is quick
    /var/lib/torpor/setup.json      system packages that set-up installed
    /run/torpor/hXXXXXXXX/          what runs under this checkout's home
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

MACHINE_CACHE = Path("/var/cache/torpor")
MACHINE_RECORD = Path("/var/lib/torpor/setup.json")
RUNTIME_ROOT = Path("/run/torpor")


@dataclass(frozen=True)
class Places:
    """Paths of one checkout."""

    checkout: Path

    @property
    def venv(self) -> Path:
        """The virtual environment."""
        return self.checkout / ".venv"

    @property
    def venv_python(self) -> Path:
        """Its interpreter."""
        return self.venv / "bin/python"

    @property
    def torpor(self) -> Path:
        """The installed command line."""
        return self.venv / "bin/torpor"

    @property
    def cache(self) -> Path:
        """All else that set-up makes inside the checkout."""
        return self.checkout / ".cache"

    @property
    def home(self) -> Path:
        """TORPOR_HOME of development."""
        return self.cache / "home"

    @property
    def stamps(self) -> Path:
        """One file per finished step."""
        return self.cache / "stamps"

    @property
    def logs(self) -> Path:
        """One file per step that ran."""
        return self.cache / "logs"

    @property
    def home_id(self) -> str:
        """The name of this home under ``/run/torpor`` and in cgroups; as torpor.apps.config makes it."""
        return "h" + hashlib.sha256(str(self.home.resolve()).encode()).hexdigest()[:8]
