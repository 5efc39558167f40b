"""What a bad file, a full disk or a long lock turn into."""

import sqlite3
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.domain.errors import Corrupt, InvalidArgument, StorageFull, Unavailable, Unsupported
from torpor.domain.ids import SessionId
from torpor.testing.contracts.catalog import TENANT, session


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[SqliteCatalog]:
    catalog = SqliteCatalog(tmp_path / "catalog.db", busy_timeout_s=0.05)
    await catalog.open()
    yield catalog
    await catalog.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


async def reopen(path: Path) -> None:
    catalog = SqliteCatalog(path)
    try:
        await catalog.open()
    finally:
        await catalog.close()


def execute(path: Path, *statements: str) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        rows = [row for statement in statements for row in connection.execute(statement)]
        connection.commit()
        return rows
    finally:
        connection.close()


async def test_a_record_that_could_not_be_read_back_is_not_written(catalog: SqliteCatalog) -> None:
    stored = await catalog.insert(session())
    for wrong in ({"TOKEN": 1}, {"TOKEN": None}):
        env: Any = wrong
        with pytest.raises((InvalidArgument, Corrupt)):
            await catalog.replace(replace(stored, env=env))
        with pytest.raises((InvalidArgument, Corrupt)):
            await catalog.insert(replace(session(), id=SessionId("z" * 20), env=env))
    assert (await catalog.page(TENANT)).sessions == (stored,)


async def test_a_locked_database_is_unavailable_for_now(catalog: SqliteCatalog, tmp_path: Path) -> None:
    stored = await catalog.insert(session())
    holder = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable) as refusal:
        await catalog.replace(replace(stored, node="n1"))
    assert refusal.value.details["retry_after_s"] > 0
    assert await catalog.get(TENANT, stored.id) == stored  # readers do not wait for a writer
    holder.execute("ROLLBACK")
    holder.close()
    assert (await catalog.replace(replace(stored, node="n1"))).revision == 2


async def test_a_full_disk_changes_nothing_and_later_writes_work(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    await catalog.open()
    stored = await catalog.insert(session())
    assert catalog._opened is not None
    catalog._opened.engine.dispose()
    pages = execute(tmp_path / "catalog.db", "PRAGMA page_count")[0][0]

    def fill(connection: Any, _record: object) -> None:
        connection.cursor().execute(f"PRAGMA max_page_count = {limit}")

    sa.event.listen(catalog._opened.engine, "connect", fill)
    limit = pages
    with pytest.raises(StorageFull, match="nothing was changed"):
        await catalog.replace(replace(stored, metadata={"much": "x" * 100_000}))
    assert await catalog.get(TENANT, stored.id) == stored
    catalog._opened.engine.dispose()
    limit = pages + 1000
    assert (await catalog.replace(replace(stored, metadata={"much": "x" * 100_000}))).revision == 2
    await catalog.close()


@pytest.mark.engine  # needs root, for a file system of its own
async def test_a_really_full_disk_is_storage_full(small_disk: Path) -> None:
    catalog = SqliteCatalog(small_disk / "catalog.db")
    try:
        await catalog.open()
        stored = await catalog.insert(session())
        with pytest.raises(StorageFull):
            await catalog.replace(replace(stored, metadata={"much": "x" * 600_000}))
        assert await catalog.get(TENANT, stored.id) == stored
    finally:
        await catalog.close()


async def test_a_schema_of_a_newer_version_is_refused_with_the_way_out(catalog: SqliteCatalog, tmp_path: Path) -> None:
    await catalog.insert(session())
    execute(tmp_path / "catalog.db", "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Unsupported, match="run that version again") as refusal:
        await reopen(tmp_path / "catalog.db")
    assert refusal.value.details["schema"] == "9999"


async def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    execute(tmp_path / "catalog.db", "CREATE TABLE recipes (name TEXT)")
    with pytest.raises(Unsupported, match="another program"):
        await reopen(tmp_path / "catalog.db")
    assert execute(tmp_path / "catalog.db", "SELECT name FROM sqlite_master") == [("recipes",)]


async def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"not a database, but long enough to have a header of 100 bytes" * 10)
    with pytest.raises(Corrupt, match="restore a backup"):
        await reopen(tmp_path / "catalog.db")


async def test_a_row_that_does_not_parse_is_corrupt_and_alone(catalog: SqliteCatalog, tmp_path: Path) -> None:
    broken = await catalog.insert(session(1))
    whole = await catalog.insert(session(2))
    execute(tmp_path / "catalog.db", f"UPDATE sessions SET document = '{{' WHERE id = '{broken.id}'")
    with pytest.raises(Corrupt):
        await catalog.get(TENANT, broken.id)
    assert await catalog.get(TENANT, whole.id) == whole


async def test_a_place_that_cannot_hold_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "catalog.db"):
        with pytest.raises(Unavailable, match="check that its folder exists"):
            await reopen(path)


async def test_the_files_are_for_their_owner_alone(catalog: SqliteCatalog, tmp_path: Path) -> None:
    await catalog.insert(session(env={"TOKEN": "secret"}))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("catalog.db*")}
    assert modes == {"catalog.db": 0o600, "catalog.db-shm": 0o600, "catalog.db-wal": 0o600}


async def test_records_are_kept_in_wal_and_fully_synchronous(catalog: SqliteCatalog) -> None:
    assert catalog._opened is not None
    with catalog._opened.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


async def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    await catalog.open()
    await catalog.close()
    await catalog.close()
