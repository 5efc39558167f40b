import fcntl
import os
import subprocess
import sys
import textwrap

import pytest

from torpor.adapters.objects import localfs
from torpor.adapters.objects.localfs import LocalObjects
from torpor.domain.errors import InvalidArgument, NotFound, Unavailable
from torpor.testing.contracts.objects import ObjectStoreContract


@pytest.fixture
def objects(tmp_path):
    return LocalObjects(tmp_path / "store")


class TestLocalObjects(ObjectStoreContract):
    pass


async def test_objects_lie_under_their_keys_for_their_owner_alone(tmp_path, objects):
    await objects.put("a/b", b"hello")
    file = tmp_path / "store" / "objects" / "a" / "b"
    assert file.read_bytes() == b"hello"
    assert file.stat().st_mode & 0o077 == 0
    assert list((tmp_path / "store" / "unfinished").iterdir()) == []


async def test_a_second_store_on_the_folder_sees_the_same_objects(tmp_path, objects):
    info = await objects.put("a", b"1")
    other = LocalObjects(tmp_path / "store")
    assert await other.head("a") == info
    await other.put_if("a", b"2", etag=info.etag)
    assert await objects.get("a") == b"2"


async def test_a_start_sweeps_what_dead_writers_left_and_nothing_else(tmp_path, objects):
    await objects.put("a", b"1")
    unfinished = tmp_path / "store" / "unfinished"
    (unfinished / "dead").write_bytes(b"half")
    (unfinished / "alive").write_bytes(b"half")
    with (unfinished / "alive").open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        other = LocalObjects(tmp_path / "store")
        assert [path.name for path in unfinished.iterdir()] == ["alive"]
    assert [info.key async for info in other.list("")] == ["a"]


async def test_a_listing_longer_than_a_page_is_whole(objects, monkeypatch):
    monkeypatch.setattr(localfs, "LIST_PAGE_COUNT", 3)
    keys = [f"k/{number:02}" for number in range(10)]
    for key in keys:
        await objects.put(key, b"")
    assert [info.key async for info in objects.list("k/")] == keys


async def test_a_key_that_is_a_folder_of_another_is_refused_without_harm(objects):
    await objects.put("a/b", b"1")
    for key in ("a", "a/b/c"):
        with pytest.raises(InvalidArgument):
            await objects.put(key, b"2")
    with pytest.raises((NotFound, InvalidArgument)):
        await objects.get("a/b/c")
    assert [info.key async for info in objects.list("")] == ["a/b"]


async def test_folders_that_become_empty_go(tmp_path, objects):
    await objects.put("a/b/c", b"1")
    await objects.delete("a/b/c")
    assert list((tmp_path / "store" / "objects").iterdir()) == []


async def test_a_store_whose_folder_went_away_is_unavailable(tmp_path, objects):
    (tmp_path / "store" / "unfinished").rmdir()
    with pytest.raises(Unavailable):
        await objects.put("a", b"1")


def test_two_processes_that_race_for_a_key_agree_on_the_winner(tmp_path):
    script = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from torpor.adapters.objects.localfs import LocalObjects
        from torpor.domain.errors import StaleRevision

        async def main():
            objects = LocalObjects(Path(sys.argv[1]))
            wins = 0
            for number in range(40):
                try:
                    await objects.put_if(f"k/{number}", sys.argv[2].encode(), etag=None)
                    wins += 1
                except StaleRevision:
                    pass
            print(wins)

        asyncio.run(main())
        """
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), name], stdout=subprocess.PIPE) for name in "ab"
    ]
    wins = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    written = [(tmp_path / "objects" / "k" / str(number)).read_bytes() for number in range(40)]
    assert wins == [written.count(b"a"), written.count(b"b")]


def test_a_full_disk_is_storage_full_and_leaves_no_part(tmp_path):
    script = textwrap.dedent(
        """
        import asyncio, subprocess, sys
        from pathlib import Path
        from torpor.adapters.objects.localfs import LocalObjects
        from torpor.domain.errors import StorageFull

        async def main(root):
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(root)], check=True)
            objects = LocalObjects(root)
            await objects.put("old", b"kept")
            for write in (objects.put("new", bytes(2**21)), objects.put_if("old", bytes(2**21), etag=None)):
                try:
                    await write
                    print("stored")
                except StorageFull as error:
                    print(error.code)
            print([info.key async for info in objects.list("")], await objects.get("old"))
            print(list((root / "unfinished").iterdir()))

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
    assert done.stdout.splitlines() == ["storage_full", "storage_full", "['old'] b'kept'", "[]"], done.stderr
