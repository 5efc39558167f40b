"""Cold resumes: a node that has never met the session, given the store's URL and the keys, and an empty cache.

Every repetition takes a new home on a new server process. A second cold resume, on a node whose cache holds an older
snapshot of the session, must fetch only what changed since: that is asserted, not just measured.

What they are compared with, the local resume, is the first one of a new server process too, after the same rest, on a
node whose cache holds the session's newest snapshot. A server that has just done the same is faster by what any
process gains that way, and a cold resume never meets such a one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torpor.adapters.clock.system import SystemClock
from torpor.apps.bench.bucket import CREDENTIALS, Bucket, bucket_of
from torpor.apps.bench.homes import (
    TEMPLATE,
    Progress,
    Server,
    bench_home,
    environment_of,
    node_home,
    patched_environment,
    raw_parts,
    serving,
)
from torpor.apps.bench.raw import content_of, raw_sandbox
from torpor.apps.bench.report import Bound, Result, median, result
from torpor.apps.bench.session import BenchSession, Waking
from torpor.apps.config import Config
from torpor.apps.node import Role, open_node
from torpor.domain.errors import Corrupt

SIZE_MIB = 64
RUNS, RUNS_QUICK = 30, 2  # one takes about twenty seconds: three server processes
RUNS_EMPTY = 3
FETCH_BYTES_PER_MS = 0.3 * 1024**3 / 1000
CHANGE_BYTES = 1 << 20
OVERHEAD_BYTES_MAX = 1 << 20  # manifests, heads
SETTLED_S = 0.5
STEPS = ("open", "claim", "fetch", "restore", "ready", "total")


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A cold resume, and the bytes that came from the bucket for it."""

    waking: Waking
    fetched_bytes: int


@dataclass(slots=True)
class _Samples:
    local_ms: list[float] = field(default_factory=list)
    raw_ms: list[float] = field(default_factory=list)
    first: list[_Fetch] = field(default_factory=list)
    second: list[_Fetch] = field(default_factory=list)
    changed_bytes: list[int] = field(default_factory=list)
    empty: list[_Fetch] = field(default_factory=list)


async def measure(config: Config, *, quick: bool, progress: Progress) -> list[Result]:
    """Local resumes, then cold ones through the bucket, of one session."""
    runs = RUNS_QUICK if quick else RUNS
    samples = _Samples()
    async with bench_home(config) as home:
        session = await _prepared(config, home, samples, runs)
        async with bucket_of(home / "store") as bucket:
            variables = {**bucket.variables, "TORPOR_KEYS_DIR": str(home / "keys")}
            for _ in range(min(runs, RUNS_EMPTY)):
                async with node_home(config, with_rootfs=False) as node:
                    samples.empty.append((await _resume(node, variables, bucket, session))[0])
            progress(f"cold on a node without the root filesystem: {len(samples.empty)} repetitions")
            await _repeat(config, variables, bucket, session, samples, runs, progress)
    return _results(samples)


async def _prepared(config: Config, home: Path, samples: _Samples, runs: int) -> BenchSession:
    """A paused session in the home's store."""
    async with raw_parts(config) as parts:
        content = await content_of(parts, SIZE_MIB)
        async with serving(home) as server, raw_sandbox(parts, content) as raw:
            ref = server.client.create(template=TEMPLATE, name="cold")["id"]
            session = BenchSession(server.client, ref, content)
            await asyncio.to_thread(session.cycle)
            for _ in range(runs):
                samples.raw_ms.append(await raw.restore_ms())
            await asyncio.to_thread(server.client.pause, ref)
    return session


async def _repeat(
    config: Config,
    variables: Mapping[str, str],
    bucket: Bucket,
    session: BenchSession,
    samples: _Samples,
    runs: int,
    progress: Progress,
) -> None:
    """Each round: an empty node takes the session and changes it, another takes it back, and again from its cache."""
    async with node_home(config, with_rootfs=True) as older:
        await _resume(older, variables, bucket, session)
        for number in range(1, runs + 1):
            async with node_home(config, with_rootfs=True) as node:
                first, changed_bytes = await _resume(node, variables, bucket, session)
                samples.first.append(first)
                second, _ = await _resume(older, variables, bucket, session)
            samples.local_ms.append(await _resume_local(older, variables, bucket, session))
            samples.second.append(second)
            samples.changed_bytes.append(changed_bytes)
            if second.fetched_bytes > changed_bytes + OVERHEAD_BYTES_MAX:
                raise Corrupt(
                    f"a second cold resume fetched {second.fetched_bytes} bytes, but only {changed_bytes} had changed"
                )
            if number % 5 == 0:
                progress(f"cold: {number} of {runs} repetitions")


async def _resume(
    home: Path, variables: Mapping[str, str], bucket: Bucket, session: BenchSession
) -> tuple[_Fetch, int]:
    """Wake the session on the node of ``home``, change a little of it, and pause it; also the bytes that it wrote."""
    await _rebuilt(home, variables)
    async with _settled(home, variables, bucket) as server:
        mine = session.through(server.client)
        before_bytes = await bucket.given_bytes()
        waking = await asyncio.to_thread(mine.wake)
        fetched_bytes = await bucket.given_bytes() - before_bytes
        if waking.resumed["tier"] != "cold" or not fetched_bytes:
            raise Corrupt(f"cannot trust this run: a cold resume came from the tier {waking.resumed['tier']}")
        await asyncio.to_thread(mine.change, CHANGE_BYTES)
        snapshot = (await asyncio.to_thread(server.client.pause, session.ref))["snapshot"]
    return _Fetch(waking, fetched_bytes), int(snapshot["new_bytes"])


async def _resume_local(home: Path, variables: Mapping[str, str], bucket: Bucket, session: BenchSession) -> float:
    """Wake the session on the node of ``home``, which has paused it, and pause it; ms to its first output."""
    async with _settled(home, variables, bucket) as server:
        mine = session.through(server.client)
        waking = await asyncio.to_thread(mine.wake)
        if waking.resumed["tier"] != "local":
            raise Corrupt(f"cannot trust this run: a local resume came from the tier {waking.resumed['tier']}")
        await asyncio.to_thread(server.client.pause, session.ref)
    return waking.first_output_ms


async def _rebuilt(home: Path, variables: Mapping[str, str]) -> None:
    """The node's catalog from the store alone."""
    (home / "catalog.sqlite3").unlink(missing_ok=True)
    config = replace(
        Config.read(environment_of(variables), home=str(home)), keys=Path(variables["TORPOR_KEYS_DIR"]), cache_bytes=0
    )
    with patched_environment(CREDENTIALS):  # the bucket's client looks for them there
        async with open_node(config, Role.build(config)) as node:
            await node.maintenance.rebuild_catalog()


@contextlib.asynccontextmanager
async def _settled(home: Path, variables: Mapping[str, str], bucket: Bucket) -> AsyncIterator[Server]:
    """A server of the home that has what every session of its template needs: it fetches that when it starts."""
    clock = SystemClock()
    async with serving(home, variables) as server:
        given_bytes = -1
        while given_bytes != (given_bytes := await bucket.given_bytes()):
            await clock.sleep(SETTLED_S)
        yield server


def _results(samples: _Samples) -> list[Result]:
    local_ms = median(samples.local_ms)
    return [
        result(
            "resume_cold_local",
            samples.local_ms,
            unit="ms",
            raw=samples.raw_ms,
            rule="the same session, local, on a new server too",
        ),
        *_cold("resume_cold", samples.first, local_ms, "a node with an empty cache"),
        *_cold("resume_cold_again", samples.second, local_ms, "a node whose cache holds an older snapshot"),
        result(
            "resume_cold_again.changed",
            [float(size_bytes) for size_bytes in samples.changed_bytes],
            unit="bytes",
            rule="new in the store since that node saw it; asserted of each: no more than that and 1 MiB was fetched",
        ),
        *_cold("resume_cold_empty", samples.empty, None, "a node without the template's root filesystem"),
    ]


def _cold(name: str, fetches: list[_Fetch], local_ms: float | None, what: str) -> list[Result]:
    fetched = [float(fetch.fetched_bytes) for fetch in fetches]
    bound = None if local_ms is None else Bound(local_ms + median(fetched) / FETCH_BYTES_PER_MS)
    return [
        result(
            name,
            [fetch.waking.first_output_ms for fetch in fetches],
            unit="ms",
            bound=bound,
            rule=f"{what}: request to first output{'' if bound is None else ' p50 <= local + fetched / 0.3 GiB/s'}",
        ),
        *(
            result(
                f"{name}.{step}",
                [float(fetch.waking.resumed["timings_ms"].get(step, 0.0)) for fetch in fetches],
                unit="ms",
                rule="a step of the above; claim and fetch run at once",
            )
            for step in STEPS
        ),
        result(f"{name}.fetched", fetched, unit="bytes", rule="bytes that the bucket gave for it"),
    ]
