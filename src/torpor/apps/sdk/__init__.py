"""The Python client: ``torpor.Client`` and ``torpor.AsyncClient``. Needs httpx and websockets, no server.

Each is loaded when it is asked for: whoever waits needs no asyncio, the command line neither of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torpor.apps.sdk.aio import AsyncClient, AsyncFiles, AsyncSession
    from torpor.apps.sdk.aio_processes import AsyncPort, AsyncProcess, AsyncTerminal
    from torpor.apps.sdk.inside import FileChange, LogEntry, OutputLost, ProcessExited, ProcessInfo, ProcessOutput
    from torpor.apps.sdk.processes import Port, Process, Terminal
    from torpor.apps.sdk.results import CodeError, FileInfo, Result, Resumed, SessionInfo, Token
    from torpor.apps.sdk.sync import Client, Files, Session

__all__ = [
    "AsyncClient",
    "AsyncFiles",
    "AsyncPort",
    "AsyncProcess",
    "AsyncSession",
    "AsyncTerminal",
    "Client",
    "CodeError",
    "FileChange",
    "FileInfo",
    "Files",
    "LogEntry",
    "OutputLost",
    "Port",
    "Process",
    "ProcessExited",
    "ProcessInfo",
    "ProcessOutput",
    "Result",
    "Resumed",
    "Session",
    "SessionInfo",
    "Terminal",
    "Token",
]

_HOMES = {
    "aio": ("AsyncClient", "AsyncFiles", "AsyncSession"),
    "aio_processes": ("AsyncPort", "AsyncProcess", "AsyncTerminal"),
    "inside": ("FileChange", "LogEntry", "OutputLost", "ProcessExited", "ProcessInfo", "ProcessOutput"),
    "processes": ("Port", "Process", "Terminal"),
    "results": ("CodeError", "FileInfo", "Result", "Resumed", "SessionInfo", "Token"),
    "sync": ("Client", "Files", "Session"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'torpor.apps.sdk' has no attribute {name!r}")
    return getattr(import_module(f"torpor.apps.sdk.{_HOME_OF[name]}"), name)
