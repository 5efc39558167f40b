"""What may be said with a request; everything left out has the server's default. Shared by both clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from torpor.apps.sdk.results import Listeners

_LISTENERS = frozenset(Listeners.__annotations__)


class Clocks(TypedDict, total=False):
    """Seconds; None: never. Defaults: pause after 30 s without work, delete 30 days after a pause, no other end.

    ``timeout_s``: run time until ``timeout_action`` (``pause`` or ``kill``). ``ttl_s``: delete so long from now.
    """

    idle_s: float | None
    timeout_s: float | None
    timeout_action: str
    ttl_s: float | None
    retention_s: float | None
    on_resume: str


class CreateOptions(Clocks, total=False):
    """Of a new session. Defaults: template ``data``, persistence ``memory``, and the template's limits.

    ``disk_bytes`` must be the template's.
    """

    template: str
    cpus: float
    memory_bytes: int
    disk_bytes: int
    metadata: Mapping[str, str]
    env: Mapping[str, str]
    persistence: str


class CodeOptions(Listeners, total=False):
    """``context``: whose variables; ``timeout_s``: no limit unless given."""

    context: str
    timeout_s: float | None


class ShellOptions(Listeners, total=False):
    """``shell``: whose directory and variables; ``timeout_s``: no limit unless given."""

    shell: str
    timeout_s: float | None


class ExecOptions(Listeners, total=False):
    """Of a process. ``detach``: start it and return; it lives on across pauses."""

    env: Mapping[str, str]
    cwd: str
    user: str
    stdin: bytes
    timeout_s: float | None
    detach: bool


def split(options: Mapping[str, Any]) -> tuple[Listeners, dict[str, Any]]:
    """Who listens, and what is sent."""
    listeners: Any = {name: value for name, value in options.items() if name in _LISTENERS and value is not None}
    return listeners, {name: value for name, value in options.items() if name not in _LISTENERS}
