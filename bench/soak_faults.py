"""What goes wrong in a soak: a server killed and started again, a sandbox killed, a full disk."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor.cgroup import Cgroup, hierarchies_of
from torpor.domain.errors import TorporError

if TYPE_CHECKING:
    from soak_report import Report

STORE_BYTES = 2 << 30
LEFT_BYTES = 1 << 20  # of a full disk
FULL_S = 4.0
RESIZES_MAX = 10


def sandboxes(server: Any, instance: str) -> list[int]:
    """Process ids of runsc that serve an instance."""
    runtime, found = f"{server.config.runtime_dir}/".encode(), []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
            if b"--root=" in line and runtime in line and instance.encode() in line:
                found.append(int(folder.name))
    return found


def is_frozen_instance(server: Any, instance: str) -> bool:
    """True if the instance uses no processor time: so stand those of the pool."""
    hierarchies = hierarchies_of(Path("/proc/self/mountinfo").read_text())
    name = f"/torpor/{server.config.runtime_dir.name}/s/{instance}"
    return bool(Cgroup(name, hierarchies, SystemClock()).is_frozen())


class Faults:
    """Strikes one after another; each is over when ``strike`` returns."""

    def __init__(self, server: Any, chance: random.Random, report: Report) -> None:
        self._server = server
        self._random = chance
        self._report = report

    def strike(self, sessions: Iterable[str]) -> None:
        """Any of them."""
        fault = self._random.choice((self.kill_server, self.kill_sandbox, self.kill_sandbox, self.fill_disk))
        self._report.faults[fault.__name__] += 1
        fault(sorted(sessions))

    def kill_server(self, _sessions: list[str]) -> None:
        """SIGKILL, and a new one."""
        self._server.kill()
        self._server.start()

    def kill_sandbox(self, sessions: list[str]) -> None:
        """SIGKILL for every process of one instance."""
        with contextlib.suppress(TorporError):
            instance = self._server.clients[-1].get(self._random.choice(sessions or ["none"]))["instance"]
            for pid in sandboxes(self._server, instance) if instance else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def fill_disk(self, _sessions: list[str]) -> None:
        """The store's disk has no room for a while."""
        store = str(self._server.home / "store")
        # A file system cannot be made smaller than what it holds, and writers may be quicker than the look at it.
        if any(self._has_resized(store, shutil.disk_usage(store).used + LEFT_BYTES) for _ in range(RESIZES_MAX)):
            time.sleep(FULL_S)
        assert self._has_resized(store, STORE_BYTES), "the store's disk has lost its size"

    def _has_resized(self, store: str, size_bytes: int) -> bool:
        done = subprocess.run(("mount", "-o", f"remount,size={size_bytes}", store), capture_output=True, check=False)
        return done.returncode == 0
