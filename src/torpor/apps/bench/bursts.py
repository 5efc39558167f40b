"""Bursts, files and creation over HTTP: what our own code adds to what the engine takes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torpor.adapters.clock.system import SystemClock
from torpor.apps.bench.homes import TEMPLATE, Progress, bench_home, raw_parts, serving
from torpor.apps.bench.raw import RawParts
from torpor.apps.bench.report import Bound, Result, median, result
from torpor.apps.bench.warm import no_op_ms
from torpor.apps.client import Client
from torpor.apps.config import Config
from torpor.apps.sdk.transport import gathered
from torpor.domain.errors import Corrupt, EngineError
from torpor.domain.ids import InstanceId, id_from_entropy

Value = TypeVar("Value")

RUNS, RUNS_QUICK = 100, 10
COLD_RUNS, COLD_RUNS_QUICK = 20, 10  # one takes four seconds
CODE_ALLOWANCE_MS = 3.0
# For a second after its restore a sandbox tells the time by system calls (gVisor calibrates its vDSO page first), and
# Python asks for it at each lock: 2 ms of a burst. What that costs is in the benches of resumes and of creation.
SETTLED_S = 2.0
WARM_UP_RUNS = 20
STDOUT_MB_S_MIN = 100.0
FILES_MB_S_MIN = 200.0
CREATE_SHARE_MAX = 0.1
CREATE_APART_S = 0.8  # in which a node makes the clone for the next one; of creates in a row most go without
MOVED_BYTES = 64 * 1000 * 1000
BLOCK_BYTES = 1 << 20
PIECE_BYTES = 256 * 1024  # as torpor.Client sends
IMPORTS = "import numpy, pandas, IPython; print(pandas.__version__, flush=True)"
PRODUCER = "/tmp/producer"  # noqa: S108 - inside the sandbox
C_PRODUCER = """
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    static char block[1 << 20];
    long left = atol(words[1]);
    while (left > 0) {
        ssize_t done = write(1, block, left < (long)sizeof block ? left : (long)sizeof block);
        if (done <= 0) return 1;
        left -= done;
    }
    return 0;
}
"""
PYTHON_PRODUCER = (
    f"import os, sys\nblock = bytes({BLOCK_BYTES})\nleft = int(sys.argv[1])\n"
    "while left > 0: left -= os.write(1, block[:left])\n"
)


async def measure(config: Config, *, quick: bool, progress: Progress) -> list[Result]:
    """All of them, on one session; creations and cold starts on their own."""
    runs = RUNS_QUICK if quick else RUNS
    results: list[Result] = []
    async with bench_home(config) as home, serving(home) as server, raw_parts(config) as parts:
        client = server.client
        ref = client.create(template=TEMPLATE)["id"]
        await SystemClock().sleep(SETTLED_S)
        results += await asyncio.to_thread(_code, client, ref, runs)
        progress(f"exec: {runs} repetitions of 1+1")
        results.append(await _stdout(client, ref, parts, runs))
        progress(f"exec: {runs} repetitions of stdout")
        results += await asyncio.to_thread(_files, client, ref, runs)
        progress(f"exec: {runs} repetitions of files")
        client.delete(ref)
        results.append(await _creation(client, parts, runs, COLD_RUNS_QUICK if quick else COLD_RUNS))
    return results


def _code(client: Client, ref: str, runs: int) -> list[Result]:
    no_op: list[float] = []
    code: list[float] = []
    for _ in range(WARM_UP_RUNS):
        client.code(ref, "1+1", on_piece=_ignore)
    for _ in range(runs):
        no_op.append(no_op_ms(client))
        took_s, said = _timed(lambda: client.code(ref, "1+1", on_piece=_ignore))
        if said["result"]["text/plain"] != "2":
            raise Corrupt(f"cannot trust this run: 1+1 gave {said}")
        code.append(took_s * 1000)
    return [
        result(
            "exec_code",
            code,
            unit="ms",
            bound=Bound(median(no_op) + CODE_ALLOWANCE_MS),
            rule="`1+1` over HTTP, two seconds after the restore, p50 <= a no-op route in the same run + 3 ms",
        ),
        result("exec_no_op", no_op, unit="ms", rule="GET /v1/health, the no-op route"),
    ]


async def _stdout(client: Client, ref: str, parts: RawParts, runs: int) -> Result:
    program, language = await asyncio.to_thread(_producer)
    client.write_file(ref, PRODUCER, [program], mode=0o755)
    argv = [PRODUCER] if language == "C" else ["python3", PRODUCER]
    speeds = [await asyncio.to_thread(_stdout_mb_s, client, ref, [*argv, str(MOVED_BYTES)]) for _ in range(runs)]
    raw = [await _raw_stdout_mb_s(parts) for _ in range(min(runs, RUNS_QUICK))]
    return result(
        "exec_stdout",
        speeds,
        unit="MB/s",
        raw=raw,
        bound=Bound(STDOUT_MB_S_MIN, at_least=True),
        rule=f"64 MB of a producer in {language} through the client p50 >= 100 MB/s; raw: PID 1's own stdout",
    )


def _stdout_mb_s(client: Client, ref: str, argv: list[str]) -> float:
    count = 0

    def take(_stream: str, piece: object) -> None:
        nonlocal count
        assert isinstance(piece, bytes)
        count += len(piece)

    took_s, said = _timed(lambda: client.execute(ref, argv, on_piece=take))
    if count != MOVED_BYTES or said["exit_code"] != 0:
        raise Corrupt(f"cannot trust this run: {count} bytes came, exit code {said['exit_code']}")
    return MOVED_BYTES / 1e6 / took_s


async def _raw_stdout_mb_s(parts: RawParts) -> float:
    """What the engine's pipe gives, from the first byte on, without an agent."""
    shape = replace(parts.shape, argv=("python3", "-c", PYTHON_PRODUCER, str(MOVED_BYTES)))
    instance = InstanceId(id_from_entropy(parts.entropy.bytes(20)))
    await parts.engine.create(instance, shape)
    try:
        channel = await parts.engine.attach(instance)
        await parts.engine.start(instance)
        clock, count = SystemClock(), len(await channel.read(BLOCK_BYTES))
        first_bytes, began_s = count, clock.monotonic_s()
        while count < MOVED_BYTES and (data := await channel.read(BLOCK_BYTES)):
            count += len(data)
        took_s = clock.monotonic_s() - began_s
        await channel.close()
    finally:
        await parts.engine.destroy(instance)
    if count != MOVED_BYTES:
        raise EngineError(f"cannot measure the raw engine: {count} bytes of its stdout came")
    return (count - first_bytes) / 1e6 / took_s


def _producer() -> tuple[bytes, str]:
    """A program that writes as many bytes as it is told, and what it is written in."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return PYTHON_PRODUCER.encode(), "Python"
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "producer.c", Path(folder) / "producer"
        source.write_text(C_PRODUCER, encoding="ascii")
        subprocess.run((compiler, "-O2", "-static", "-o", program, source), check=True, capture_output=True)
        return program.read_bytes(), "C"


def _files(client: Client, ref: str, runs: int) -> list[Result]:
    data = os.urandom(MOVED_BYTES)
    digest = hashlib.blake2b(data).digest()
    up: list[float] = []
    down: list[float] = []
    for _ in range(runs):
        took_s, said = _timed(lambda: client.write_file(ref, "/workspace/moved", _pieces(data)))
        if said["size_bytes"] != len(data):
            raise Corrupt(f"cannot trust this run: {said} was written")
        up.append(MOVED_BYTES / 1e6 / took_s)
        took_s, found = _timed(lambda: _read(client, ref))
        if hashlib.blake2b(found).digest() != digest:
            raise Corrupt("cannot trust this run: a file did not come back as it was written")
        down.append(MOVED_BYTES / 1e6 / took_s)
    bound = Bound(FILES_MB_S_MIN, at_least=True)
    return [
        result("exec_upload", up, unit="MB/s", bound=bound, rule="a file of 64 MB into a session p50 >= 200 MB/s"),
        result("exec_download", down, unit="MB/s", bound=bound, rule="the same file out of it p50 >= 200 MB/s"),
    ]


def _pieces(data: bytes) -> Iterator[bytes]:
    view = memoryview(data)
    return (bytes(view[start : start + PIECE_BYTES]) for start in range(0, len(data), PIECE_BYTES))


def _read(client: Client, ref: str) -> bytes:
    with client.reading(ref, "/workspace/moved") as (pieces, _):
        return gathered(pieces)


async def _creation(client: Client, parts: RawParts, runs: int, cold_runs: int) -> Result:
    created: list[float] = []
    for _ in range(runs):
        await SystemClock().sleep(CREATE_APART_S)
        created.append(await asyncio.to_thread(_created_ms, client))
    cold = [await _cold_ms(parts) for _ in range(cold_runs)]
    return result(
        "exec_create",
        created,
        unit="ms",
        raw=cold,
        bound=Bound(CREATE_SHARE_MAX * median(cold)),
        rule=f"create to first output, {CREATE_APART_S} s after the last one, p50 <= 1/10 of raw: "
        f"a cold run with the same imports, n = {cold_runs}",
    )


def _created_ms(client: Client) -> float:
    first_s: list[float] = []
    clock = SystemClock()
    began_s = clock.monotonic_s()
    ref = client.create(template=TEMPLATE)["id"]
    said = client.code(ref, IMPORTS, on_piece=lambda *_: first_s.append(clock.monotonic_s() - began_s))
    client.delete(ref)
    if said["error"] or not first_s:
        raise Corrupt(f"cannot trust this run: {said['error']}")
    return first_s[0] * 1000


async def _cold_ms(parts: RawParts) -> float:
    """``runsc create`` and ``start``, which is what ``runsc run`` does, to the first output of Python."""
    instance = InstanceId(id_from_entropy(parts.entropy.bytes(20)))
    clock = SystemClock()
    began_s = clock.monotonic_s()
    await parts.engine.create(instance, replace(parts.shape, argv=("python3", "-c", IMPORTS)))
    try:
        channel = await parts.engine.attach(instance)
        await parts.engine.start(instance)
        said = await channel.read(BLOCK_BYTES)
        took_ms = (clock.monotonic_s() - began_s) * 1000
        await channel.close()
    finally:
        await parts.engine.destroy(instance)
    if not said.strip():
        raise EngineError("cannot measure the raw engine: its Python said nothing")
    return took_ms


def _timed(deed: Callable[[], Value]) -> tuple[float, Value]:
    clock = SystemClock()
    began_s = clock.monotonic_s()
    value = deed()
    return clock.monotonic_s() - began_s, value


def _ignore(_stream: str, _piece: object) -> None:
    """Output that nobody looks at."""
