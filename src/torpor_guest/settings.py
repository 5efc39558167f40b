"""What an agent is told at its start, and its two small values shared by all parts: refusals and the environment."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torpor_guest import LIB_DIR, SETTINGS_PATH, WARMUP_PATH

DEFAULT_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")


class Refused(Exception):
    """A request that cannot be served, as it is told to the host. ``code`` is a wire name of domain/errors.py."""

    def __init__(self, code: str, message: str, **details: Any) -> None:  # noqa: ANN401 - details are free-form JSON
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class Environment:
    """Variables of everything the agent starts. ``revision`` grows when the host changes them. Thread-safe."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._base = dict(base)
        self._changes: dict[str, str] = {}
        self.revision = 0

    def update(self, changes: Mapping[str, str]) -> None:
        """Lay ``changes`` over what holds; for future bursts."""
        with self._lock:
            if any(self._changes.get(name) != value for name, value in changes.items()):
                self._changes.update(changes)
                self.revision += 1

    def values(self) -> dict[str, str]:
        """All variables, for a process that starts now."""
        with self._lock:
            return {**self._base, **self._changes}

    def changes_since(self, revision: int) -> tuple[int, dict[str, str]]:
        """The present revision, and what a process started at ``revision`` has to be told."""
        with self._lock:
            return self.revision, dict(self._changes) if revision != self.revision else {}


@dataclass(frozen=True)
class Settings:
    """An agent's fixed surroundings.

    ``contained``: an ordinary process for tests: files of the contract go below ``root``, only descendants are
    stopped, and steps that would change the machine (hostname, capabilities) are left out. ``user``, ``workdir``: of
    the template, for contexts and shells; without ``workdir`` it is the user's home.
    """

    contained: bool = False
    root: Path = Path("/")
    python: str = "/usr/bin/python3"
    lib_dir: str = LIB_DIR
    warmup: Path = Path(WARMUP_PATH)
    park_timeout_s: float = 0.2
    stop_timeout_s: float = 2.0
    reseed_timeout_s: float = 2.0
    grace_s: float = 2.0
    user: str = "root"
    workdir: str = ""
    environment: Environment = field(default_factory=lambda: Environment(base_environment()))

    def folder_for(self, env: Mapping[str, str]) -> str:
        """Where contexts, shells and processes start that name no folder: the template's, else the home."""
        wanted = (self.workdir, env.get("HOME", "/"))
        return next((folder for folder in wanted if folder and os.path.isdir(folder)), "/")


def base_environment() -> dict[str, str]:
    """Defaults, with the few variables of the agent's own environment that are meant for all."""
    return {**DEFAULT_ENV, **{name: os.environ[name] for name in PASSED_ON if name in os.environ}}


def template_settings(path: Path = Path(SETTINGS_PATH)) -> Settings:
    """PID 1's, with what the template says in its ``{"env", "user", "workdir"}``."""
    said: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    environment = Environment({**base_environment(), **said.get("env", {})})
    return Settings(user=said.get("user", "root"), workdir=said.get("workdir", ""), environment=environment)


def settings_from(arguments: list[str]) -> Settings:
    """``[]`` for PID 1; ``["--contained", DIR, GRACE_S?]`` for tests."""
    if not arguments:
        return template_settings()
    if arguments[0] != "--contained" or len(arguments) not in {2, 3}:
        raise SystemExit("usage: torpor_guest [--contained DIR [GRACE_S]]")
    root = Path(arguments[1])
    return Settings(
        contained=True,
        root=root,
        python=sys.executable,
        lib_dir=str(Path(__file__).resolve().parent.parent),
        warmup=root / "warmup.py",
        grace_s=float(arguments[2]) if len(arguments) > 2 else 2.0,
    )
