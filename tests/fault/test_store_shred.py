"""What a shred is worth: old copies of objects and catalog are brought back, and nobody can open them."""

import shutil

import pytest

from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.objects.localfs import LocalObjects
from torpor.domain.errors import KeyDestroyed
from torpor.store.snapshots import SubjectWithoutHead
from torpor.testing.store import StoreBench


@pytest.fixture
def folders(tmp_path):
    return tmp_path / "objects", tmp_path / "keys", tmp_path


def bench_of(folders):
    objects, keys, folder = folders
    return StoreBench(folder, objects=LocalObjects(objects), keys=FileKeys(keys, SystemEntropy()))


async def test_a_shredded_subject_stays_shut_when_old_versions_of_its_objects_return(folders):
    bench = bench_of(folders)
    image = b"of this session alone" * 5000
    first = await bench.write({"pages.img": image})
    second = await bench.write({"pages.img": image + b"2"}, sequence=2, parent=first.ref)
    wrapped = (await bench.key("default", "session")).wrapped  # the catalog's copy of it comes back as well
    shutil.copytree(folders[0], folders[2] / "backup")
    listed = [info.key async for info in bench.objects.list("v0/")]

    done = await bench.store.delete_subject("default", "session")
    assert (done.removed_count, done.borrowed_count) == (len(listed), 0)
    assert done.key_destroyed_at_s > 0
    assert await bench.keys.is_destroyed("default", "session")
    assert [info.key async for info in bench.objects.list("v0/")] == []

    shutil.rmtree(folders[0])
    shutil.copytree(folders[2] / "backup", folders[0])
    again = bench_of(folders)
    for ref in (first.ref, second.ref):
        with pytest.raises(KeyDestroyed):
            await again.read(ref)
    with pytest.raises(KeyDestroyed):
        await again.keys.unwrap("default", "session", wrapped)
    with pytest.raises(KeyDestroyed):
        await again.keys.create("default", "session")
    [found] = [found async for found in again.store.subjects()]
    assert (type(found), found.is_destroyed) == (SubjectWithoutHead, True)
    report = await again.store.check()
    assert (report.clean, len(report.shredded)) == (True, 2)
    swept = await again.store.collect_garbage()
    assert len(swept.removed) == len(listed)
    assert [info.key async for info in again.objects.list("v0/")] == []


async def test_a_shred_is_repeatable_and_says_what_relatives_still_hold(folders):
    bench = bench_of(folders)
    first = await bench.write({"pages.img": b"shared" * 5000})
    await bench.write({"pages.img": b"shared" * 5000}, subject="fork", parent=first.ref)
    done = await bench.store.delete_subject("default", "session")
    assert done.borrowed_count == 1
    again = await bench.store.delete_subject("default", "session")
    assert (again.removed_count, again.borrowed_count) == (0, 1)
    await bench.store.delete_subject("default", "fork")
    swept = await bench.store.collect_garbage()
    assert [garbage.reason for garbage in swept.removed] == ["shredded"]
    assert [info.key async for info in bench.objects.list("v0/")] == []
