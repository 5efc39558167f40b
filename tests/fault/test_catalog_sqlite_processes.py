"""Real processes on one SQLite file: races, a kill in the middle of writes."""

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.domain.session import Session
from torpor.testing.contracts.catalog import TENANT, session

WRITES = 60
PROCESSES = 2  # at once; to start one costs more than all that it writes

# Counts up ``generation`` of one record by compare-and-swap and prints each revision that was stored for it.
WRITER = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.domain.errors import StaleRevision
from torpor.testing.contracts.catalog import TENANT, session

async def main(path, writes):
    catalog = SqliteCatalog(Path(path))
    await catalog.open()
    while writes:
        record = await catalog.get(TENANT, session().id)
        try:
            stored = await catalog.replace(replace(record, generation=record.generation + 1))
        except StaleRevision:
            continue
        print(stored.revision, flush=True)
        writes -= 1
    await catalog.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""

OPENER = """
import asyncio, sys
from pathlib import Path
from torpor.adapters.catalog.sqlite import SqliteCatalog

async def main(path):
    catalog = SqliteCatalog(Path(path))
    await catalog.open()
    print(len(await catalog.unfinished()))
    await catalog.close()

asyncio.run(main(sys.argv[1]))
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


async def stored(path: Path, change: Session | None = None) -> Session:
    catalog = SqliteCatalog(path)
    await catalog.open()
    try:
        return await (catalog.insert(change) if change else catalog.get(TENANT, session().id))
    finally:
        await catalog.close()


def test_processes_that_write_at_once_never_lose_an_update(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    asyncio.run(stored(path, session()))
    writers = [start(WRITER, path, WRITES) for _ in range(PROCESSES)]
    revisions = [int(line) for writer in writers for line in writer.communicate(timeout=60)[0].split()]
    assert [writer.returncode for writer in writers] == [0] * PROCESSES
    assert sorted(revisions) == list(range(2, 2 + PROCESSES * WRITES))
    last = asyncio.run(stored(path))
    assert (last.generation, last.revision) == (PROCESSES * WRITES, 1 + PROCESSES * WRITES)


def test_processes_that_open_a_new_catalog_at_once_all_get_it(tmp_path: Path) -> None:
    openers = [start(OPENER, tmp_path / "catalog.db") for _ in range(PROCESSES)]
    assert [opener.communicate(timeout=60)[0].split() for opener in openers] == [["0"]] * PROCESSES


def test_what_was_stored_before_a_kill_is_there_after_it(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    asyncio.run(stored(path, session()))
    for _ in range(2):
        with start(WRITER, path, 1_000_000) as writer:
            assert writer.stdout is not None
            seen = [int(writer.stdout.readline()) for _ in range(25)]
            writer.send_signal(signal.SIGKILL)
            seen += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
        last = asyncio.run(stored(path))
        # The kill may fall between a write and its print, so that the file is one ahead of what was seen.
        assert last.revision in {seen[-1], seen[-1] + 1}
        assert last == replace(session(), revision=last.revision, generation=last.revision - 1)
        assert integrity(path) == "ok"


def integrity(path: Path) -> str:
    program = (
        "import json, sqlite3, sys; print(json.dumps(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone()))"
    )
    answer = start(program, path, "PRAGMA integrity_check").communicate(timeout=60)[0]
    return str(json.loads(answer)[0])
