"""What is left after a writer died, was refused, was answered nothing, or was cancelled."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap

import pytest

from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.objects.localfs import LocalObjects
from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.errors import StaleRevision, StorageFull, Unavailable
from torpor.testing.store import StoreBench

IMAGE = random.Random(1).randbytes(17 << 20)  # two packs
CHANGED = random.Random(2).randbytes(17 << 20)

# Between the first pack and the pointer; each costs a second.
ALSO_KILLED = (("after", 1), ("after", 2), ("before", 3), ("before", 4))

# A writer that kills itself at its n-th change of the object store, before or after the change.
WRITER = textwrap.dedent(
    """
    import asyncio, dataclasses, os, signal, sys
    from pathlib import Path
    from torpor.store.snapshots import PartSource
    from torpor.adapters.entropy.system import SystemEntropy
    from torpor.adapters.keys.file import FileKeys
    from torpor.adapters.objects.localfs import LocalObjects
    from torpor.testing.store import StoreBench

    folder, when, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    class Dying(LocalObjects):
        changes = 0

        def _write(self, key, data, etag):
            Dying.changes += 1  # under the interpreter lock as good as atomic; packs are written side by side
            number = Dying.changes
            if number == count and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            info = super()._write(key, data, etag)
            if number == count and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return info

    async def main():
        bench = StoreBench(
            folder,
            objects=Dying(folder / "objects"),
            keys=FileKeys(folder / "keys", SystemEntropy()),
            seed=os.getpid(),
        )
        head = await bench.store.head("default", "session")
        request = await bench.request({}, sequence=2, parent=head, wrapped_key=(folder / "wrapped").read_bytes())
        await bench.store.write(dataclasses.replace(request, parts=(PartSource("pages.img", folder / "changed"),)))
        print("stored")

    asyncio.run(main())
    """
)


@pytest.fixture
async def disk(tmp_path):
    """A store on disk with one snapshot in it, and what a second process needs to write the next."""
    keys = FileKeys(tmp_path / "keys", SystemEntropy())
    bench = StoreBench(tmp_path, objects=LocalObjects(tmp_path / "objects"), keys=keys)
    stored = await bench.write({"pages.img": IMAGE})
    (tmp_path / "wrapped").write_bytes((await bench.key("default", "session")).wrapped)
    (tmp_path / "changed").write_bytes(CHANGED)
    return bench, stored.ref


@pytest.mark.parametrize(
    ("when", "count"),
    [
        ("before", 1),
        ("after", 3),
        *(pytest.param(*killed, marks=pytest.mark.slow) for killed in ALSO_KILLED),
    ],
)
async def test_a_writer_killed_before_the_pointer_leaves_the_old_head_and_a_clean_store(disk, when, count):
    bench, first = disk
    assert _write(bench.folder, when, count).returncode == -signal.SIGKILL
    again = StoreBench(bench.folder, objects=LocalObjects(bench.folder / "objects"), keys=bench.keys)
    assert await again.store.head("default", "session") == first
    report = await again.store.check()
    assert report.clean, report.problems
    assert len(report.unreferenced) <= count
    assert list((bench.folder / "objects" / "unfinished").iterdir()) == []
    assert await again.read(first) == {"pages.img": IMAGE}
    assert _write(bench.folder, "never", 0).stdout == b"stored\n"
    await _assert_second_is_head(again)


async def test_a_writer_killed_after_the_pointer_has_stored_its_snapshot(disk):
    bench, _ = disk
    assert _write(bench.folder, "after", 4).returncode == -signal.SIGKILL
    await _assert_second_is_head(bench)


async def _assert_second_is_head(bench):
    head = await bench.store.head("default", "session")
    assert head.sequence == 2
    assert await bench.read(head) == {"pages.img": CHANGED}
    await bench.assert_clean()


def _write(folder, when, count):
    argv = [sys.executable, "-c", WRITER, str(folder), when, str(count)]
    return subprocess.run(argv, check=False, capture_output=True, timeout=120)


class Faulty(MemoryObjects):
    """Raises ``error`` at the n-th change; with ``late`` the change has happened all the same."""

    def __init__(self, *, error=Unavailable, late=False):
        super().__init__()
        self.error, self.late, self.left = error, late, -1

    def _write(self, key, data):
        self.left -= 1
        if self.left == 0 and not self.late:
            raise self.error("a fault")
        info = super()._write(key, data)
        if self.left == 0:
            raise self.error("an answer that was lost")
        return info


@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_a_full_disk_loses_nothing_and_leaves_nothing(tmp_path, count):
    objects = Faulty(error=StorageFull)
    bench = StoreBench(tmp_path, objects=objects)
    first = await bench.write({"pages.img": IMAGE})
    before = [info.key async for info in objects.list("")]
    objects.left = count
    with pytest.raises(StorageFull):
        await bench.write({"pages.img": CHANGED}, sequence=2, parent=first.ref)
    assert [info.key async for info in objects.list("")] == before
    assert await bench.store.head("default", "session") == first.ref
    await bench.assert_clean()
    second = await bench.write({"pages.img": CHANGED}, sequence=2, parent=first.ref)
    assert await bench.read(second.ref) == {"pages.img": CHANGED}
    await bench.assert_clean()


@pytest.mark.parametrize("error", [Unavailable, StaleRevision, StorageFull])
async def test_a_pointer_whose_answer_was_lost_is_read_back(tmp_path, error):
    objects = Faulty(error=error, late=True)
    bench = StoreBench(tmp_path, objects=objects)
    objects.left = 4
    stored = await bench.write({"pages.img": IMAGE})
    assert objects.left == 0
    assert await bench.store.head("default", "session") == stored.ref
    await bench.assert_clean()


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3])
async def test_an_unavailable_store_can_be_asked_again(tmp_path, late, count):
    objects = Faulty(late=late)
    bench = StoreBench(tmp_path, objects=objects)
    request = await bench.request({"pages.img": IMAGE})
    objects.left = count
    with pytest.raises(Unavailable):
        await bench.store.write(request)
    assert await bench.store.head("default", "session") is None
    await bench.assert_clean()
    stored = await bench.store.write(request)
    assert await bench.read(stored.ref) == {"pages.img": IMAGE}
    await bench.assert_clean()


async def test_two_writers_of_one_sequence_end_with_one_head(tmp_path):
    bench = StoreBench(tmp_path)
    requests = [await bench.request({"a": IMAGE[:4096]}, snapshot=name) for name in ("one", "two")]
    results = await asyncio.gather(*map(bench.store.write, requests), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["StaleRevision", "StoredSnapshot"]
    report = await bench.store.check()
    assert (report.clean, report.unreferenced, report.snapshot_count) == (True, (), 1)


async def test_a_cancelled_write_moves_no_head(tmp_path):
    bench = StoreBench(tmp_path)
    request = await bench.request({"pages.img": IMAGE})
    writing = asyncio.ensure_future(bench.store.write(request))
    while not [info async for info in bench.objects.list("")]:
        await asyncio.sleep(0)
        assert not writing.done()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await bench.store.head("default", "session") is None
    await bench.assert_clean()


async def test_a_cancelled_read_leaves_no_file_and_no_writer(tmp_path):
    bench = StoreBench(tmp_path)
    stored = await bench.write({"pages.img": IMAGE})
    reading = asyncio.ensure_future(bench.store.read(stored.ref, tmp_path / "back"))
    while not (tmp_path / "back" / "pages.img").exists():
        await asyncio.sleep(0)
        assert not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert list((tmp_path / "back").iterdir()) == []
    await bench.assert_clean()


def test_a_full_target_folder_is_storage_full_and_leaves_no_file(tmp_path):
    script = textwrap.dedent(
        """
        import asyncio, os, subprocess, sys
        from pathlib import Path
        from torpor.domain.errors import StorageFull
        from torpor.testing.store import StoreBench

        async def main(folder):
            bench = StoreBench(folder)
            stored = await bench.write({"pages.img": os.urandom(4 << 20)})
            (folder / "back").mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder / "back")], check=True)
            try:
                await bench.store.read(stored.ref, folder / "back")
                print("read")
            except StorageFull as error:
                print(error.code, list((folder / "back").iterdir()), (await bench.store.check()).clean)

        asyncio.run(main(Path(sys.argv[1])))
        """
    )
    own_mounts = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    done = subprocess.run(
        [*own_mounts, sys.executable, "-c", script, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "storage_full [] True\n", done.stderr
