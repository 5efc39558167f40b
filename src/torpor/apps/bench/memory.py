"""Peak memory of storing and reading an image of 2 GiB and a changed clone of it, in a process of its own."""

from __future__ import annotations

import asyncio
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.objects.localfs import LocalObjects
from torpor.apps.bench.homes import Progress
from torpor.apps.bench.report import Bound, Result, result
from torpor.apps.config import Config
from torpor.domain.errors import Corrupt, TorporError
from torpor.domain.ids import DEFAULT_TENANT, SnapshotId, TenantId, id_from_entropy
from torpor.store.snapshots import PartSource, ReadOptions, Resident, SnapshotRef, SnapshotStore, WriteRequest

IMAGE_BYTES, IMAGE_BYTES_QUICK = 2 * 1024**3, 512 * 1024**2
GROWTH_BYTES_MAX = 256 * 1024**2
PART = "pages.img"
PAGE_BYTES = 4096
STEP_BYTES = 16 * 1024**2
CHANGED_PAGES_APART = 97
TIMEOUT_S = 600


async def measure(config: Config, *, quick: bool, progress: Progress) -> list[Result]:
    """One run; what it needs is the same every time."""
    folder = config.home / "bench" / id_from_entropy(SystemEntropy().bytes(20))
    folder.mkdir(parents=True)
    size_bytes = IMAGE_BYTES_QUICK if quick else IMAGE_BYTES
    try:
        progress(f"memory: an image of {size_bytes >> 20} MiB is written, read, changed, written and read")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", __name__, str(folder), str(size_bytes)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(TIMEOUT_S):
            said, complaint = await process.communicate()
    finally:
        await asyncio.to_thread(shutil.rmtree, folder)
    if process.returncode != 0:
        raise TorporError(f"cannot measure memory: {complaint.decode(errors='replace')[-500:]}")
    return [
        result(
            "memory_peak",
            [float(said)],
            unit="bytes",
            bound=Bound(GROWTH_BYTES_MAX),
            rule=f"peak resident memory beyond the start, image of {size_bytes >> 20} MiB (2 GiB unless --quick) "
            "<= 256 MiB",
            image_bytes=size_bytes,
        )
    ]


async def _run(folder: Path, size_bytes: int) -> int:
    """Write, read, hold, change, write the clone, read it; the growth of peak memory."""
    image = folder / "image"
    await asyncio.to_thread(_make, image, size_bytes)
    entropy = SystemEntropy()
    keys = FileKeys(folder / "keys", entropy)
    store = SnapshotStore(LocalObjects(folder / "store"), keys, entropy, SystemClock())
    request = await _request(keys, image, "template")
    before_bytes = _peak_bytes()
    stored = await store.write(request)
    await store.read(stored.ref, folder / "back")
    held = Resident.indexed(await store.open(stored.ref), folder / "back", frozenset({PART}))
    await asyncio.to_thread(_change, image, size_bytes)
    clone = await store.write(replace(await _request(keys, image, "clone", template=stored.ref), resident=held))
    await store.read(clone.ref, folder / "clone", options=ReadOptions(resident=held))
    grown_bytes = _peak_bytes() - before_bytes
    if not await asyncio.to_thread(_same, image, folder / "clone" / PART):
        raise Corrupt("cannot trust this run: the clone that was read is not what was written")
    return grown_bytes


async def _request(keys: FileKeys, image: Path, subject: str, template: SnapshotRef | None = None) -> WriteRequest:
    key = await keys.create(TenantId(DEFAULT_TENANT), subject)
    return WriteRequest(
        tenant=TenantId(DEFAULT_TENANT),
        subject=subject,
        snapshot=SnapshotId(id_from_entropy(SystemEntropy().bytes(20))),
        sequence=1,
        wrapped_key=key.wrapped,
        parts=(PartSource(PART, image, PAGE_BYTES),),
        parent=None,
        template=template,
        requirements={},
        meta={},
    )


def _make(image: Path, size_bytes: int) -> None:
    """A quarter each: noise, text, noise, zeros."""
    entropy, quarter = SystemEntropy(), STEP_BYTES // 4
    with image.open("wb") as file:
        for _ in range(size_bytes // STEP_BYTES):
            file.write(entropy.bytes(quarter) + b"text" * (quarter // 4) + entropy.bytes(quarter))
            file.seek(quarter, 1)
        file.truncate(size_bytes)


def _change(image: Path, size_bytes: int) -> None:
    with image.open("r+b") as file:
        for page in range(0, size_bytes // PAGE_BYTES, CHANGED_PAGES_APART):
            file.seek(page * PAGE_BYTES + 8)
            file.write(b"changed")


def _same(one: Path, other: Path) -> bool:
    with one.open("rb") as left, other.open("rb") as right:
        while data := left.read(STEP_BYTES):
            if data != right.read(STEP_BYTES):
                return False
        return not right.read(1)


def _peak_bytes() -> int:
    """Of this program's memory alone: a process's ``ru_maxrss`` begins with what its parent had when it was started."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024


if __name__ == "__main__":
    print(asyncio.run(_run(Path(sys.argv[1]), int(sys.argv[2]))))
