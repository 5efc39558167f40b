"""Pause and resume at two image sizes, each repetition beside the raw engine's, so that noise meets both alike."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from torpor.apps.bench.homes import TEMPLATE, Progress, bench_home, raw_parts, serving
from torpor.apps.bench.raw import RawParts, content_of, raw_sandbox
from torpor.apps.bench.report import Bound, Result, median, result
from torpor.apps.bench.session import Cycle, bench_session
from torpor.apps.client import Client
from torpor.apps.config import Config

SIZES_MIB = (64, 256)
RUNS, RUNS_QUICK = 100, 10
FETCH_BYTES_PER_MS = 0.8e9 / 1000
RESUME_ALLOWANCE_MS = 25.0
STOP_RATIO_MAX = 1.2
SECOND_PAUSE_SHARE_MAX = 0.03


@dataclass(slots=True)
class Samples:
    """All repetitions at one size."""

    size_mib: int
    pages_bytes: int = 0
    raw_checkpoint_ms: list[float] = field(default_factory=list)
    raw_restore_ms: list[float] = field(default_factory=list)
    cycles: list[Cycle] = field(default_factory=list)
    idle_shares: list[float] = field(default_factory=list)

    @property
    def image_bytes(self) -> int:
        """Both parts of our snapshots, the median."""
        return sorted(int(cycle.snapshot["image_bytes"]) for cycle in self.cycles)[len(self.cycles) // 2]


async def measure_resume(config: Config, *, quick: bool, progress: Progress) -> list[Result]:
    """Local resumes: request to first output."""
    return resume_results(await measure(config, quick=quick, progress=progress))


async def measure_pause(config: Config, *, quick: bool, progress: Progress) -> list[Result]:
    """Pauses: stop time and bytes written."""
    return pause_results(await measure(config, quick=quick, progress=progress))


async def measure_both(config: Config, *, quick: bool, progress: Progress) -> list[Result]:
    """Both of the same repetitions."""
    measured = await measure(config, quick=quick, progress=progress)
    return resume_results(measured) + pause_results(measured)


async def measure(config: Config, *, quick: bool, progress: Progress) -> list[Samples]:
    """Both sizes."""
    runs = RUNS_QUICK if quick else RUNS
    async with bench_home(config) as home, serving(home) as server, raw_parts(config) as parts:
        return [await _measure_size(server.client, parts, size_mib, runs, progress) for size_mib in SIZES_MIB]


async def _measure_size(client: Client, parts: RawParts, size_mib: int, runs: int, progress: Progress) -> Samples:
    samples = Samples(size_mib)
    content = await content_of(parts, size_mib)
    async with raw_sandbox(parts, content) as raw:
        samples.pages_bytes = raw.pages_bytes
        with bench_session(client, TEMPLATE, content) as session:
            session.cycle()  # the first pause writes everything; the figures are of a session that lives
            for number in range(1, runs + 1):
                samples.raw_checkpoint_ms.append(await raw.checkpoint_ms())
                samples.raw_restore_ms.append(await raw.restore_ms())
                samples.cycles.append(await asyncio.to_thread(session.cycle))
                if number % 10 == 0:
                    progress(f"{size_mib} MB: {number} of {runs} repetitions")
            await asyncio.to_thread(client.pause, session.ref)
            for _ in range(runs):
                samples.idle_shares.append(await asyncio.to_thread(session.idle_share))
    return samples


def resume_results(measured: list[Samples]) -> list[Result]:
    """Request to first output, over HTTP, on the client's clock."""
    results = []
    for samples in measured:
        raw = samples.raw_restore_ms
        bound = Bound(median(raw) + samples.image_bytes / FETCH_BYTES_PER_MS + RESUME_ALLOWANCE_MS)
        results.append(
            result(
                f"resume_local_{samples.size_mib}mb",
                [cycle.first_output_ms for cycle in samples.cycles],
                unit="ms",
                raw=raw,
                bound=bound,
                rule="p50 <= raw restore into a created sandbox + image / 0.8 GB/s + 25 ms",
                image_bytes=samples.image_bytes,
            )
        )
        results += [
            result(
                f"resume_local_{samples.size_mib}mb.{step}",
                [float(cycle.resumed["timings_ms"].get(step, 0.0)) for cycle in samples.cycles],
                unit="ms",
                rule="a step of the above; claim and fetch run at once",
            )
            for step in ("open", "claim", "fetch", "restore", "ready", "total")
        ]
    return results


def pause_results(measured: list[Samples]) -> list[Result]:
    """Stop time, time to durable, and what a pause of an idle session writes."""
    results = []
    for samples in measured:
        raw = samples.raw_checkpoint_ms
        results.append(
            result(
                f"pause_stop_{samples.size_mib}mb",
                _steps(samples, "stop"),
                unit="ms",
                raw=raw,
                bound=Bound(STOP_RATIO_MAX * median(raw)),
                rule="p50 <= 1.2 x raw checkpoint",
                image_bytes=samples.image_bytes,
            )
        )
        results += [
            result(
                f"pause_{samples.size_mib}mb.{step}",
                _steps(samples, step),
                unit="ms",
                rule="a step of the pause; total is request to durable",
            )
            for step in ("quiesce", "checkpoint", "seal", "total")
        ]
        results.append(
            result(
                f"burst_pause_new_share_{samples.size_mib}mb",
                [cycle.snapshot["new_bytes"] / cycle.snapshot["image_bytes"] for cycle in samples.cycles],
                unit="ratio",
                rule="bytes written by a pause after one small burst, of its image",
                image_bytes=samples.image_bytes,
            )
        )
        results.append(
            result(
                f"second_pause_new_share_{samples.size_mib}mb",
                samples.idle_shares,
                unit="ratio",
                bound=Bound(SECOND_PAUSE_SHARE_MAX) if samples.size_mib == max(SIZES_MIB) else None,
                rule="bytes written by a pause of an idle session <= 3 % of its image",
                image_bytes=samples.image_bytes,
            )
        )
    return results


def _steps(samples: Samples, step: str) -> list[float]:
    return [float(cycle.snapshot["timings_ms"][step]) for cycle in samples.cycles]
