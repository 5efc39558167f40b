"""ports.answers.AnswerBook in a SQLite file of its own: short-lived rows, which the catalog's backups need not hold."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from torpor.domain.errors import Conflict, StorageFull, TorporError, Unavailable
from torpor.ports.answers import KEPT_S, Keyed, StoredAnswer

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    tenant TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL, begun_at_s REAL NOT NULL,
    state TEXT NOT NULL, status INTEGER, body BLOB, PRIMARY KEY (tenant, key)
) WITHOUT ROWID
"""
_BEGUN, _DONE, _UNKNOWN = "begun", "done", "unknown"


class SqliteAnswers:
    """One server's book; ``path`` None keeps it in memory. ``open`` it first."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self._database: sqlite3.Connection | None = None

    async def open(self) -> None:
        """What the last server had begun and not finished is unknown from here on."""
        await asyncio.to_thread(self._open)

    async def close(self) -> None:
        """Idempotent."""
        database, self._database = self._database, None
        if database is not None:
            await asyncio.to_thread(database.close)

    async def begin(self, request: Keyed, *, now_s: float) -> StoredAnswer | None:
        """See the port."""
        async with self._lock:
            return await asyncio.to_thread(self._begin, request, now_s)

    async def finish(self, request: Keyed, answer: StoredAnswer) -> None:
        """See the port."""
        await self._write(
            "UPDATE answers SET state = ?, status = ?, body = ? WHERE tenant = ? AND key = ?",
            (_DONE, answer.status, answer.body, request.tenant, request.key),
        )

    async def forget(self, request: Keyed) -> None:
        """See the port."""
        await self._write("DELETE FROM answers WHERE tenant = ? AND key = ?", (request.tenant, request.key))

    async def doubt(self, request: Keyed) -> None:
        """See the port."""
        await self._write(
            "UPDATE answers SET state = ? WHERE tenant = ? AND key = ?", (_UNKNOWN, request.tenant, request.key)
        )

    def _open(self) -> None:
        with _failures(self._path):
            # Used by one thread at a time: the lock sees to it.
            database = sqlite3.connect(self._path or ":memory:", check_same_thread=False, isolation_level=None)
            if self._path is not None:
                self._path.chmod(0o600)
                database.execute("PRAGMA journal_mode = WAL")
            database.execute(_SCHEMA)
            database.execute("UPDATE answers SET state = ? WHERE state = ?", (_UNKNOWN, _BEGUN))
        self._database = database

    def _begin(self, request: Keyed, now_s: float) -> StoredAnswer | None:
        assert self._database is not None
        with _failures(self._path):
            self._database.execute("DELETE FROM answers WHERE begun_at_s < ?", (now_s - KEPT_S,))
            added = self._database.execute(
                "INSERT OR IGNORE INTO answers (tenant, key, fingerprint, begun_at_s, state) VALUES (?, ?, ?, ?, ?)",
                (request.tenant, request.key, request.fingerprint, now_s, _BEGUN),
            ).rowcount
            if added:
                return None
            fingerprint, state, status, body = self._database.execute(
                "SELECT fingerprint, state, status, body FROM answers WHERE tenant = ? AND key = ?",
                (request.tenant, request.key),
            ).fetchone()
        if fingerprint != request.fingerprint:
            raise Conflict(
                "cannot use this Idempotency-Key again: it was sent with another request; make a new key for each",
                reason="key_reused",
                field="Idempotency-Key",
            )
        if state != _DONE:
            raise _unfinished(state)
        return StoredAnswer(status, body)

    async def _write(self, statement: str, values: tuple[object, ...]) -> None:
        def write() -> None:
            assert self._database is not None
            with _failures(self._path):
                self._database.execute(statement, values)

        async with self._lock:
            await asyncio.to_thread(write)


def _unfinished(state: str) -> TorporError:
    if state == _BEGUN:
        return Conflict(
            "cannot answer yet: the first request with this Idempotency-Key is still worked on; repeat it",
            reason="in_progress",
            retry_after_s=1.0,
        )
    return Conflict(
        "cannot tell what became of the first request with this Idempotency-Key: the server ended meanwhile; "
        "look at `torpor ls`, then use a new key",
        reason="outcome_unknown",
    )


@contextlib.contextmanager
def _failures(path: Path | None) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        kind = StorageFull if full else Unavailable
        raise kind(f"cannot use {path or 'the book of answers'}: {error}") from error
