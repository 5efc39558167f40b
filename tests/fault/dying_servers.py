"""Fake servers that die. Run as a program: for each line ``FOLDER POINT[:NTH]`` a forked child serves and is killed.

What outlives a server is on disk below FOLDER: objects, keys, catalog. The instances of the fake engine live in the
process, so its death is that of a whole node. The child writes into ``FOLDER/diary`` what was acknowledged to a client.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.fake import FakeHost
from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.objects.localfs import LocalObjects
from torpor.apps.crashing import VARIABLE, arm_crash
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.session import Durability
from torpor.services.maintenance import Maintenance
from torpor.services.requests import CreateRequest, ForkRequest
from torpor.testing.node import FakeMachine, open_fake

ROUNDS = 3


@asynccontextmanager
async def served(folder: Path):
    """A server over what lies in ``folder``, on a node that is new; with the store's maintenance."""
    entropy = SystemEntropy()
    catalog = SqliteCatalog(folder / "catalog.sqlite3")
    keys = FileKeys(folder / "keys", entropy)
    await catalog.open()
    try:
        machine = FakeMachine(FakeHost(), LocalObjects(folder / "objects"), entropy, catalog, keys)
        async with open_fake(machine) as node:
            yield node, Maintenance(node.store, catalog, keys, Durability.DISK, (SystemClock(), entropy))
    finally:
        await catalog.close()


async def value(node, ref, source):
    """The value of the last statement."""
    burst = await node.sessions.code(TENANT, ref, source)
    assert burst.result.error is None, burst.result.error
    return burst.result.result["text/plain"] if burst.result.result else ""


async def begin(folder: Path) -> None:
    """A template, and the session ``day``, paused with x = 1."""
    async with served(folder) as (node, _):
        await node.sessions.create(TENANT, CreateRequest(name="day"))
        await value(node, "day", "incr x")
        await node.sessions.pause(TENANT, "day")


async def work(folder: Path, crash: str) -> None:
    """Everything that a server does, one after the other, until it dies of ``crash``."""

    def note(line: str) -> None:
        with (folder / "diary").open("a") as diary:
            diary.write(f"{line}\n")

    async with served(folder) as (node, maintenance):
        arm_crash({VARIABLE: crash})
        note("paused 1")
        for _ in range(ROUNDS):
            x = await value(node, "day", "incr x")
            note(f"said {x}")
            await node.sessions.pause(TENANT, "day")
            note(f"paused {x}")
        await node.services.forks.fork(TENANT, "day", ForkRequest(names=("night",)))
        note("forked night")
        note("deleting night")
        await node.sessions.delete(TENANT, "night")
        note("deleted night")
        await node.sessions.create(TENANT, CreateRequest(name="noon"))
        note("created noon")
        await maintenance.collect_garbage(grace_s=0)
        note("collected")


def child(folder: Path, crash: str) -> int:
    """Fork one that works; how it ended, as ``os.waitpid`` says it."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    asyncio.run(begin(folder) if crash == "begin" else work(folder, crash))
    os._exit(0)


def main() -> None:
    """Serve the lines on stdin: one answer each, the wait status."""
    for line in sys.stdin:
        folder, crash = line.split()
        print(child(Path(folder), crash), flush=True)


if __name__ == "__main__":
    main()
