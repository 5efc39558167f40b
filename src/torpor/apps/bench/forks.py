"""A running session is forked into ten: request to all of them ready, beside what the raw engine needs for as many."""

from __future__ import annotations

import asyncio

from torpor.adapters.clock.system import SystemClock
from torpor.apps.bench.homes import TEMPLATE, Progress, bench_home, raw_parts, serving
from torpor.apps.bench.raw import content_of, raw_sandbox
from torpor.apps.bench.report import Bound, Result, median, result
from torpor.apps.bench.session import BenchSession, bench_session
from torpor.apps.client import Client
from torpor.apps.config import Config

SIZE_MIB = 64
COPIES = 10
RUNS, RUNS_QUICK = 30, 10  # one takes about ten seconds
RESTORES_RATIO_MAX = 1.3


async def measure(config: Config, *, quick: bool, progress: Progress) -> list[Result]:
    """Each repetition: ten raw sandboxes at once; one live capture; one fork into ten, each of which is checked."""
    runs = RUNS_QUICK if quick else RUNS
    raw_ms: list[float] = []
    capture_ms: list[float] = []
    fork_ms: list[float] = []
    async with bench_home(config) as home, serving(home) as server, raw_parts(config) as parts:
        content = await content_of(parts, SIZE_MIB)
        async with raw_sandbox(parts, content) as raw:
            with bench_session(server.client, TEMPLATE, content) as session:
                await asyncio.to_thread(server.client.snapshot, session.ref)  # the first one writes everything
                for number in range(1, runs + 1):
                    raw_ms.append(await raw.restores_ms(COPIES))
                    capture_ms.append(await asyncio.to_thread(_capture_ms, server.client, session))
                    fork_ms.append(await asyncio.to_thread(_fork_ms, server.client, session))
                    if number % 5 == 0:
                        progress(f"fork: {number} of {runs} repetitions")
    return [
        result(
            f"fork_{COPIES}",
            fork_ms,
            unit="ms",
            raw=raw_ms,
            bound=Bound(median(capture_ms) + RESTORES_RATIO_MAX * median(raw_ms)),
            rule="request to all ten ready p50 <= one capture + 1.3 x ten raw creates and restores at once",
        ),
        result("fork_capture", capture_ms, unit="ms", rule="one live capture of the same session, durable"),
    ]


def _capture_ms(client: Client, session: BenchSession) -> float:
    session.change(0)  # something has happened since the last capture
    clock = SystemClock()
    began_s = clock.monotonic_s()
    client.snapshot(session.ref)
    return (clock.monotonic_s() - began_s) * 1000


def _fork_ms(client: Client, session: BenchSession) -> float:
    session.change(0)
    clock = SystemClock()
    began_s = clock.monotonic_s()
    copies = client.fork(session.ref, count=COPIES)
    took_ms = (clock.monotonic_s() - began_s) * 1000
    for copy in copies:
        session.at(copy["id"]).check()
        client.delete(copy["id"])
    return took_ms
