"""A catalog in one SQLite file, for one machine: WAL, durable on return, shared by any number of processes.

Every method is one statement, so no transaction is ever held across an await and none can deadlock.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from torpor.adapters.catalog.pages import check_limit, cursor_for, parse_cursor, place_of
from torpor.adapters.catalog.records import Row, row_for_session, row_for_template, session_for_row, template_for_row
from torpor.adapters.catalog.refusals import (
    id_is_taken,
    name_is_taken,
    no_such_session,
    no_such_template,
    was_changed,
)
from torpor.adapters.catalog.schema import SESSIONS, TEMPLATES, upgrade_schema
from torpor.domain.errors import Corrupt, StorageFull, TorporError, Unavailable
from torpor.domain.ids import SessionId, TenantId
from torpor.domain.session import PAUSED, Session, Status
from torpor.ports.catalog import Page, TemplateRecord

BUSY_TIMEOUT_S = 5.0
RETRY_AFTER_S = 1.0
READERS_MAX = 4
WAL_ATTEMPTS_MAX, WAL_PAUSE_S = 100, 0.01

T = TypeVar("T")

_FINISHED = sorted(PAUSED | {Status.LOST, Status.DELETED})
_LIVE = SESSIONS.c.status != Status.DELETED.value


@dataclass(frozen=True, slots=True)
class _Opened:
    """The file, and the threads that wait for it.

    A statement is a tenth of a millisecond of SQLite's; through an asynchronous driver each took six thread changes and
    ten times as long. The threads are the catalog's own: those of the loop may all be sealing a snapshot. All writes
    share one, since SQLite lets one in at a time and its own queue polls with growing pauses.
    """

    engine: sa.Engine
    readers: ThreadPoolExecutor
    writer: ThreadPoolExecutor

    @classmethod
    def at(cls, path: Path, *, busy_timeout_s: float) -> Self:
        engine = sa.create_engine(
            sa.URL.create("sqlite+pysqlite", database=str(path)),
            isolation_level="AUTOCOMMIT",
            pool_size=READERS_MAX + 1,
            max_overflow=0,
            pool_reset_on_return=None,  # there is no transaction to end
            connect_args={"timeout": busy_timeout_s, "check_same_thread": False},
        )
        sa.event.listen(engine, "connect", _prepare)
        return cls(
            engine,
            ThreadPoolExecutor(READERS_MAX, thread_name_prefix="catalog-read"),
            ThreadPoolExecutor(1, thread_name_prefix="catalog-write"),
        )

    def close(self) -> None:
        for threads in (self.readers, self.writer):
            threads.shutdown()
        self.engine.dispose()


class SqliteCatalog:
    """``ports.catalog.Catalog`` and ``TemplateCatalog`` in the file ``path`` (mode 0600: records hold environments)."""

    def __init__(self, path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._opened: _Opened | None = None

    async def open(self) -> None:
        """Open the file, made if absent, and bring it to this version's schema.

        Raises: Unsupported (made by a newer torpor, or not a catalog), Corrupt, Unavailable, StorageFull.
        """
        assert self._opened is None, "opened twice"
        with _translated(self._path):
            _make_private(self._path)
        opened = self._opened = _Opened.at(self._path, busy_timeout_s=self._busy_timeout_s)
        try:
            await self._run(opened.writer, lambda connection: _upgrade(connection, self._path))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of the file. Idempotent."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await asyncio.to_thread(opened.close)

    async def insert(self, session: Session) -> Session:
        """A new record, at revision 1."""
        row = row_for_session(session) | {"revision": 1}
        stored = session_for_row(row)  # before it is written: one that cannot be read back would end every listing

        def insert(connection: sa.Connection) -> None:
            with _names_taken(session):
                connection.execute(SESSIONS.insert().values(row))

        await self._write(insert)
        return stored

    async def replace(self, session: Session) -> Session:
        """Compare-and-swap on the revision."""
        row = row_for_session(session) | {"revision": session.revision + 1}
        stored = session_for_row(row)  # as above
        mine = (SESSIONS.c.tenant == session.tenant) & (SESSIONS.c.id == session.id)

        def swap(connection: sa.Connection) -> None:
            with _names_taken(session):
                swapped = connection.execute(
                    SESSIONS.update().where(mine, SESSIONS.c.revision == session.revision).values(row)
                )
            if not swapped.rowcount:
                revision = connection.scalar(sa.select(SESSIONS.c.revision).where(mine))
                raise no_such_session(session.id) if revision is None else was_changed(session, revision)

        await self._write(swap)
        return stored

    async def get(self, tenant: TenantId, session: SessionId) -> Session:
        """One record, by id."""
        rows = await self._rows(SESSIONS.select().where(SESSIONS.c.tenant == tenant, SESSIONS.c.id == session))
        if not rows:
            raise no_such_session(session)
        return session_for_row(rows[0])

    async def find(self, tenant: TenantId, name: str) -> Session | None:
        """The live session of that name."""
        rows = await self._rows(SESSIONS.select().where(SESSIONS.c.tenant == tenant, SESSIONS.c.name == name, _LIVE))
        return session_for_row(rows[0]) if rows else None

    async def page(self, tenant: TenantId, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Live sessions, newest first."""
        check_limit(limit)
        place = (SESSIONS.c.created_at_s, SESSIONS.c.id)
        query = SESSIONS.select().where(SESSIONS.c.tenant == tenant, _LIVE)
        if cursor is not None:
            query = query.where(sa.tuple_(*place) < sa.tuple_(*parse_cursor(cursor)))
        query = query.order_by(*(column.desc() for column in place)).limit(limit + 1)
        sessions = tuple(session_for_row(row) for row in await self._rows(query))
        shown = sessions[:limit]
        return Page(shown, cursor_for(place_of(shown[-1])) if len(sessions) > limit else None)

    async def unfinished(self) -> tuple[Session, ...]:
        """What a start has to reconcile."""
        rows = await self._rows(SESSIONS.select().where(SESSIONS.c.status.not_in(_FINISHED)))
        return tuple(session_for_row(row) for row in rows)

    async def due(self, now_s: float) -> tuple[Session, ...]:
        """Those whose next instant has come."""
        rows = await self._rows(SESSIONS.select().where(SESSIONS.c.due_at_s <= now_s))
        return tuple(session_for_row(row) for row in rows)

    async def put_template(self, template: TemplateRecord) -> None:
        """The newest of its name from now on."""
        # Replacing gives the row a new, higher serial: the name is taken over.
        replacing = TEMPLATES.insert().prefix_with("OR REPLACE").values(row_for_template(template))
        await self._write(lambda connection: connection.execute(replacing))

    async def template(self, tenant: TenantId, name: str) -> TemplateRecord:
        """By name, else by digest."""
        named = TEMPLATES.c.name == name
        query = (
            TEMPLATES.select()
            .where(TEMPLATES.c.tenant == tenant, named | (TEMPLATES.c.digest == name))
            .order_by(named.desc(), TEMPLATES.c.serial.desc())
            .limit(1)
        )
        rows = await self._rows(query)
        if not rows:
            raise no_such_template(name, [known.name for known in await self.templates(tenant)])
        return template_for_row(rows[0])

    async def templates(self, tenant: TenantId) -> tuple[TemplateRecord, ...]:
        """The newest of each name."""
        newest = sa.select(sa.func.max(TEMPLATES.c.serial)).where(TEMPLATES.c.tenant == tenant)
        query = TEMPLATES.select().where(TEMPLATES.c.serial.in_(newest.group_by(TEMPLATES.c.name)))
        return tuple(template_for_row(row) for row in await self._rows(query.order_by(TEMPLATES.c.name)))

    async def all_templates(self, tenant: TenantId) -> tuple[TemplateRecord, ...]:
        """Every row, oldest first."""
        query = TEMPLATES.select().where(TEMPLATES.c.tenant == tenant).order_by(TEMPLATES.c.serial)
        return tuple(template_for_row(row) for row in await self._rows(query))

    async def remove_template(self, template: TemplateRecord) -> None:
        """Delete the row."""
        columns = TEMPLATES.c
        mine = (columns.tenant == template.tenant) & (columns.name == template.name)
        removing = TEMPLATES.delete().where(mine, columns.digest == template.digest)
        await self._write(lambda connection: connection.execute(removing))

    async def sessions_of_template(self, digest: str) -> tuple[Session, ...]:
        """Live ones."""
        rows = await self._rows(SESSIONS.select().where(SESSIONS.c.template_digest == digest, _LIVE))
        return tuple(session_for_row(row) for row in rows)

    async def _rows(self, query: sa.Select[Any]) -> list[Row]:
        assert self._opened is not None, "not opened"
        return await self._run(
            self._opened.readers, lambda connection: [dict(row) for row in connection.execute(query).mappings()]
        )

    async def _write(self, work: Callable[[sa.Connection], T]) -> T:
        assert self._opened is not None, "not opened"
        return await self._run(self._opened.writer, work)

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[sa.Connection], T]) -> T:
        """``work`` on a thread and a connection of its own; it goes on to its end although the caller is cancelled."""
        assert self._opened is not None, "not opened"
        engine = self._opened.engine

        def perform() -> T:
            with engine.connect() as connection:
                return work(connection)

        with _translated(self._path):
            return await asyncio.get_running_loop().run_in_executor(threads, perform)


def _make_private(path: Path) -> None:
    """SQLite gives its side files the mode of the main file, so that one is made first."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    # Of two that do this at once to a new file SQLite refuses one without waiting, however long its patience is.
    for attempt in range(WAL_ATTEMPTS_MAX):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == WAL_ATTEMPTS_MAX - 1:
                raise
            threading.Event().wait(WAL_PAUSE_S)
    # NORMAL would lose the newest records at a power cut in WAL mode; a stored record is a promise.
    connection.execute("PRAGMA synchronous = FULL")


def _upgrade(connection: sa.Connection, path: Path) -> None:
    # The write lock comes first, so that of two processes that start at once one migrates and the other finds it done.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        upgrade_schema(connection, path=path)
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")


@contextlib.contextmanager
def _names_taken(session: Session) -> Iterator[None]:
    try:
        yield
    except exc.IntegrityError as error:
        raise (name_is_taken if "sessions.name" in str(error.orig) else id_is_taken)(session) from error


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except exc.DBAPIError as error:
        raise _domain_error(path, error.orig) from error
    except (sqlite3.Error, OSError) as error:
        raise _domain_error(path, error) from error


def _domain_error(path: Path, error: BaseException | None) -> TorporError:
    """SQLite's primary result code decides (https://www.sqlite.org/rescode.html)."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if primary == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) == errno.ENOSPC:
        return StorageFull(f"cannot write catalog {path}: the disk is full; free some space, nothing was changed")
    if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return Corrupt(f"cannot read catalog {path}: {error}; move it away and restore a backup")
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return Unavailable(
            f"cannot reach catalog {path}: another process holds it; repeat the call", retry_after_s=RETRY_AFTER_S
        )
    return Unavailable(
        f"cannot use catalog {path}: {error}; check that its folder exists and is writable", retry_after_s=RETRY_AFTER_S
    )
