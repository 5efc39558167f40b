"""The way down on real sandboxes: stored bytes that changed, and engine builds that came and went."""

from __future__ import annotations

import asyncio
import json
import os
import shutil

import pytest
from e2e_home import run, sh

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor.install import list_builds
from torpor.adapters.engines.gvisor.layout import FILESYSTEM_TAR
from torpor.adapters.engines.gvisor.probe import build_id, sha256_of
from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.objects.localfs import LocalObjects
from torpor.domain.errors import Conflict, Unsupported
from torpor.domain.ids import DEFAULT_TENANT, SessionId
from torpor.store.layout import pack_key
from torpor.store.snapshots import SnapshotStore

pytestmark = pytest.mark.engine


def ask(client, ref, source):
    """What Python said, and how the session came back for it."""
    said = client.code(ref, source, on_piece=lambda *_: None)
    assert not said["error"], said["error"]
    return said["result"]["text/plain"], said["resumed"]


def begin(client):
    """A paused session with a variable in its memory and a file on its disk; its id."""
    ref = client.create(name="day")["id"]
    run(client, ref, "import os; x = os.urandom(4 << 20); y = 7")
    sh(client, ref, "echo kept > /workspace/note")
    client.pause(ref)
    return ref


def assert_disk_only(client, ref, *, because):
    said, resumed = ask(client, ref, "(open('/workspace/note').read().strip(), 'y' in globals())")
    assert said == "('kept', False)"
    assert resumed["outcome"] == "restored_filesystem"
    assert [because in why for why in resumed["stepped_down"]] == [True]


def assert_goes_on(client, ref):
    """It is whole again: what it has now outlives the next pause."""
    run(client, ref, "y = 8")
    client.pause(ref)
    said, resumed = ask(client, ref, "y")
    assert (said, resumed["outcome"], resumed["stepped_down"]) == ("8", "resumed", [])


async def flip_a_byte_of_the_memory(config, ref):
    """In the largest chunk of the newest snapshot that no earlier one has."""
    objects, entropy = LocalObjects(config.store_dir), SystemEntropy()
    store = SnapshotStore(objects, FileKeys(config.keys_dir, entropy), entropy, SystemClock())
    head, *earlier = await store.history(DEFAULT_TENANT, SessionId(ref))
    manifest = await store.open(head)
    inherited = {pack for each in earlier for pack in (await store.open(each)).packs}
    extents = [extent for part in manifest.parts if part.name != FILESYSTEM_TAR for extent in part.extents]
    chunks = [manifest.chunks[extent.chunk_index] for extent in extents]
    own = [c for c in chunks if manifest.packs[c.pack].subject == ref and manifest.packs[c.pack] not in inherited]
    largest = max(own, key=lambda chunk: chunk.sealed_bytes)
    key = pack_key(manifest.packs[largest.pack])
    data = bytearray(await objects.get(key))
    data[largest.offset_bytes + largest.sealed_bytes // 2] ^= 1
    await objects.put(key, bytes(data))


def test_a_flipped_byte_of_the_memory_brings_the_disk_back_and_no_later_snapshot_inherits_it(server):
    client = server.start()
    ref = begin(client)
    asyncio.run(flip_a_byte_of_the_memory(server.config, ref))
    assert not client.store_check()["clean"]
    assert_disk_only(client, ref, because="cannot read v0/")
    server.kill()
    client = server.start()
    assert client.get(ref)["status"] == "running"
    assert_goes_on(client, ref)


def test_an_older_snapshot_takes_the_place_of_an_unreadable_one_only_where_that_is_allowed(server):
    client = server.start()
    ref = begin(client)
    run(client, ref, "y = 8")
    client.pause(ref)
    asyncio.run(flip_a_byte_of_the_memory(server.config, ref))
    assert client.resume(ref, allow_older=True)["resumed"]["outcome"] == "restored_older"
    assert run(client, ref, "(y, len(x))") == f"(7, {4 << 20})"
    assert sh(client, ref, "cat /workspace/note") == "kept"
    assert_goes_on(client, ref)


@pytest.fixture
def engines(home):
    """The home's own builds: that of its template, and, once ``upgrade`` was called, a later one."""
    folder = home / "engines"
    shared = folder.resolve()
    folder.unlink()
    for build in list_builds(shared):
        (folder / build.build).mkdir(parents=True)
        os.link(build.runsc, folder / build.build / "runsc")
        shutil.copy2(build.runsc.parent / "build.json", folder / build.build)
    return folder


def upgrade(engines):
    """The same program under another digest, which makes it another build; its name."""
    latest = list_builds(engines)[-1]
    fresh = engines / "fresh"
    fresh.mkdir()
    shutil.copy2(latest.runsc, fresh / "runsc")
    with (fresh / "runsc").open("ab") as file:
        file.write(b"\0")
    digest = sha256_of(fresh / "runsc")
    name = build_id(latest.version, digest)
    record = json.loads((latest.runsc.parent / "build.json").read_text())
    (fresh / "build.json").write_text(json.dumps({**record, "build": name, "sha256": digest}))
    fresh.rename(engines / name)
    return name


def test_an_engine_upgrade_strands_nobody_and_a_retired_build_steps_its_sessions_down(engines, server):
    client = server.start()
    ref = begin(client)
    old = next(one["engine_build"] for one in client.templates() if one["name"] == "data")
    server.stop()
    new = upgrade(engines)

    client = server.start()
    said, resumed = ask(client, ref, "y")
    assert (said, resumed["outcome"]) == ("7", "resumed"), "by its own build"
    in_use = server.command("engine", "retire", old, "--yes", "--json")
    assert json.loads(in_use.stderr.splitlines()[-1])["details"]["reason"] == "home_in_use"
    client.pause(ref)
    server.stop()

    listed = {build["build"]: build for build in json.loads(server.command("engine", "list", "--json").stdout)}
    assert (listed[old]["sessions_count"], "data" in listed[old]["templates"]) == (1, True)
    assert (listed[new]["sessions_count"], listed[new]["templates"], listed[new]["preferred"]) == (0, [], True)
    warned = server.command("engine", "retire", old)
    assert warned.returncode != 0
    assert b"1 paused session" in warned.stderr
    retired = server.command("engine", "retire", old, "--yes", "--json")
    assert json.loads(retired.stdout)["sessions_count"] == 1
    assert not (engines / old).exists()

    client = server.start()
    assert_disk_only(client, ref, because=old)
    assert_goes_on(client, ref)
    with pytest.raises((Unsupported, Conflict), match=old):
        client.create()
