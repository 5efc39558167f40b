"""The Python client: ``torpor.Client`` and ``torpor.AsyncClient``. Needs httpx and websockets, no server."""

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
