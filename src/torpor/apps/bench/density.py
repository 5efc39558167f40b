"""Many paused sessions: what each costs the store and the server, and what stays of it on the machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from torpor.adapters.clock.system import SystemClock
from torpor.apps.bench.homes import TEMPLATE, Progress, Server, bench_home, serving
from torpor.apps.bench.report import Bound, Result, result
from torpor.apps.bench.session import BenchSession
from torpor.apps.client import Client
from torpor.apps.config import Config
from torpor.domain.errors import Corrupt
from torpor.domain.ids import DEFAULT_TENANT

SESSIONS, SESSIONS_QUICK = 200, 10
WARM_UP_SESSIONS = 20  # before the first reading: measured, it takes 14 until the allocator has what it needs
OWN_BYTES = 20 * 1000 * 1000
STORED_BYTES_MAX = 25 * 1000 * 1000
GROWTH_BYTES_MAX = 200 * 1000
LISTINGS = 100
LISTING_MS_MAX = 50.0
WOKEN = 5


async def measure(config: Config, *, quick: bool, progress: Progress) -> list[Result]:
    """Make them, pause them, count; then wake a few, which must have kept what was theirs."""
    count = SESSIONS_QUICK if quick else SESSIONS
    async with bench_home(config) as home, serving(home) as server:
        for _ in range(WARM_UP_SESSIONS):
            session, _ = await asyncio.to_thread(_paused, server.client)
            await asyncio.to_thread(server.client.delete, session.ref)
        before_bytes = server.resident_bytes
        sessions: list[BenchSession] = []
        instances: set[str] = set()
        for number in range(1, count + 1):
            session, instance = await asyncio.to_thread(_paused, server.client)
            sessions.append(session)
            instances.add(instance)
            if number % 10 == 0:
                progress(f"density: {number} of {count} sessions are paused")
        grown_bytes = server.resident_bytes - before_bytes
        listings_ms = [await asyncio.to_thread(_listing_ms, server.client, count) for _ in range(LISTINGS)]
        left = await asyncio.to_thread(_processes_of, server, instances)
        if left:
            raise Corrupt(f"paused sessions have left processes: {left}")
        stored = [await asyncio.to_thread(_stored_bytes, home, session.ref) for session in sessions]
        for session in sessions[:: max(1, count // WOKEN)]:
            await asyncio.to_thread(session.wake)
            await asyncio.to_thread(server.client.pause, session.ref)
    return _results(stored, grown_bytes / count, listings_ms)


def _paused(client: Client) -> tuple[BenchSession, str]:
    """A new session that holds its own random bytes, paused; and the instance that it had."""
    created = client.create(template=TEMPLATE)
    session = BenchSession(client, created["id"], f"import os; ballast = os.urandom({OWN_BYTES})")
    client.pause(created["id"])
    return session, str(created["instance"])


def _stored_bytes(home: Path, ref: str) -> int:
    """Everything of it in the store: chunks, manifest, head."""
    folder = home / "store/objects/v0" / DEFAULT_TENANT / ref
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _listing_ms(client: Client, count: int) -> float:
    """All sessions, as ``torpor ls`` asks for them."""
    clock = SystemClock()
    began_s = clock.monotonic_s()
    found = sum(session["status"] == "paused" for session in client.sessions())
    took_ms = (clock.monotonic_s() - began_s) * 1000
    if found != count:
        raise Corrupt(f"cannot trust this run: {found} sessions are listed as paused, not {count}")
    return took_ms


def _processes_of(server: Server, instances: set[str]) -> list[str]:
    """Command lines of processes of these sandboxes of the server's; its pool and its clones have others."""
    runtime = Config.read({"TORPOR_HOME": str(server.home)}).runtime_dir
    assert len(instances) > 1
    assert "None" not in instances
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if str(runtime) in line and any(instance in line for instance in instances):
            found.append(line)
    return found


def _results(stored: list[int], grown_bytes: float, listings_ms: list[float]) -> list[Result]:
    return [
        result(
            "density_stored",
            [float(size_bytes) for size_bytes in stored],
            unit="bytes",
            bound=Bound(STORED_BYTES_MAX, percent=100),
            rule="in the store for each paused session that holds 20 MB of its own <= 25 MB, the largest of them",
        ),
        result(
            "density_server_growth",
            [grown_bytes],
            unit="bytes",
            bound=Bound(GROWTH_BYTES_MAX),
            rule=f"the server's resident memory, growth for each of {len(stored)} paused sessions <= 0.2 MB",
        ),
        result(
            "density_ls",
            listings_ms,
            unit="ms",
            bound=Bound(LISTING_MS_MAX, percent=95),
            rule=f"all {len(stored)} sessions over HTTP, as `torpor ls` asks: p95 <= 50 ms",
        ),
    ]
