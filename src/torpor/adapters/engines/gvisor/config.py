"""What a composition root tells the gVisor engine. Pure: no files are touched here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MEMORY_OVERHEAD_BYTES = 64 * 1024 * 1024  # sentry, gofer and page tables; 40 MiB measured for an idle sandbox
SOCKET_PATH_LENGTH_MAX = 107  # sun_path of a UNIX socket, without its final NUL


def _ignore(event: str) -> None:
    """Take no note of an event."""
    del event


@dataclass(frozen=True, slots=True)
class GVisorConfig:
    """Where the engine lives and how patient it is.

    ``runtime_dir`` is private to one data folder and short: it holds control sockets, whose paths are limited.
    ``cgroup_parent`` is an absolute path below the cgroup mounts, such as ``/torpor/h1a2b3c4d``.
    ``on_event`` is told ``create``, ``start``, ``checkpoint`` and ``restore`` after each one that succeeded.
    """

    runsc: Path
    runtime_dir: Path
    cgroup_parent: str
    command_timeout_s: float = 60.0
    capture_timeout_s: float = 300.0
    resolv_conf: bytes = b""
    ca_bundle: bytes = b""
    on_event: Callable[[str], None] = _ignore
