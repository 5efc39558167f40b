"""Resumes from the warm tier: a session whose instance stayed in memory, frozen, after its pause was durable.

The raw engine beside it: a sandbox that runs answers the same burst over its own channel.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from torpor.adapters.clock.system import SystemClock
from torpor.apps.bench.homes import TEMPLATE, Progress, bench_home, raw_parts, serving
from torpor.apps.bench.raw import RawParts, content_of, running_sandbox
from torpor.apps.bench.report import Bound, Result, result
from torpor.apps.bench.session import CHECK, BenchSession, Cycle, bench_session
from torpor.apps.client import Client
from torpor.apps.config import Config
from torpor.domain.errors import Corrupt

SIZES_MIB = (64, 256)
RUNS, RUNS_QUICK = 100, 10
FIRST_OUTPUT_MS_MAX = 10.0
WARM_BYTES = 4 * 1024**3


@dataclass(slots=True)
class _Samples:
    size_mib: int
    raw_ms: list[float] = field(default_factory=list)
    no_op_ms: list[float] = field(default_factory=list)
    cycles: list[Cycle] = field(default_factory=list)


async def measure(config: Config, *, quick: bool, progress: Progress) -> list[Result]:
    """Both sizes; each repetition pauses, then wakes by a burst, beside the raw engine and a no-op route."""
    runs = RUNS_QUICK if quick else RUNS
    results: list[Result] = []
    variables = {"TORPOR_WARM_BYTES": str(WARM_BYTES)}
    async with bench_home(config) as home, serving(home, variables) as server, raw_parts(config) as parts:
        for size_mib in SIZES_MIB:
            samples = await _measure_size(server.client, parts, size_mib, runs)
            progress(f"warm, {size_mib} MB: {runs} repetitions")
            results += _results(samples)
    return results


async def _measure_size(client: Client, parts: RawParts, size_mib: int, runs: int) -> _Samples:
    samples = _Samples(size_mib)
    content = await content_of(parts, size_mib)
    async with running_sandbox(parts, content) as raw:
        with bench_session(client, TEMPLATE, content) as session:
            session.cycle()
            for _ in range(runs):
                samples.raw_ms.append(await raw.burst_ms(CHECK))
                samples.no_op_ms.append(await asyncio.to_thread(no_op_ms, client))
                samples.cycles.append(await asyncio.to_thread(_warm_cycle, session))
    return samples


def _warm_cycle(session: BenchSession) -> Cycle:
    cycle = session.cycle()
    if cycle.resumed["tier"] != "warm":
        raise Corrupt(f"cannot trust this run: a resume came from the tier {cycle.resumed['tier']}, not warm")
    return cycle


def no_op_ms(client: Client) -> float:
    """One round trip over HTTP that does nothing."""
    clock = SystemClock()
    began_s = clock.monotonic_s()
    client.health()
    return (clock.monotonic_s() - began_s) * 1000


def _results(samples: _Samples) -> list[Result]:
    name = f"resume_warm_{samples.size_mib}mb"
    return [
        result(
            name,
            [cycle.first_output_ms for cycle in samples.cycles],
            unit="ms",
            raw=samples.raw_ms,
            bound=Bound(FIRST_OUTPUT_MS_MAX),
            rule="request to first output p50 <= 10 ms; raw: the same burst over the channel of a sandbox that runs",
        ),
        result(
            f"{name}.ready",
            [float(cycle.resumed["timings_ms"]["ready"]) for cycle in samples.cycles],
            unit="ms",
            rule="a step of the above: take from the warm tier, thaw, contract until READY",
        ),
        result(
            f"{name}.no_op",
            samples.no_op_ms,
            unit="ms",
            rule="a round trip over HTTP that does nothing, in the same run",
        ),
    ]
