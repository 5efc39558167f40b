"""The Python client: ``torpor.Client`` and ``torpor.AsyncClient``. Needs httpx and nothing of the server."""

from torpor.apps.sdk.aio import AsyncClient, AsyncFiles, AsyncSession
from torpor.apps.sdk.results import CodeError, FileInfo, Result, Resumed, SessionInfo, Token
from torpor.apps.sdk.sync import Client, Files, Session

__all__ = [
    "AsyncClient",
    "AsyncFiles",
    "AsyncSession",
    "Client",
    "CodeError",
    "FileInfo",
    "Files",
    "Result",
    "Resumed",
    "Session",
    "SessionInfo",
    "Token",
]
