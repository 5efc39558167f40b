"""What a node opens, and that a second one needs the store's URL and the keys alone."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap

import pytest

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.objects.cache import CachedObjects
from torpor.adapters.objects.localfs import LocalObjects
from torpor.apps.config import Config
from torpor.apps.object_store import open_objects
from torpor.domain.errors import InvalidArgument, Unavailable
from torpor.domain.session import Durability
from torpor.ports.objects import traffic_noted
from torpor.testing.store import StoreBench

MEMORY = bytes(range(256)) * 4096

# A process that knows nothing but its environment.
SECOND = textwrap.dedent(
    """
    import asyncio, json, os, sys
    from pathlib import Path
    from torpor.adapters.clock.system import SystemClock
    from torpor.adapters.entropy.system import SystemEntropy
    from torpor.adapters.keys.file import FileKeys
    from torpor.apps.config import Config
    from torpor.apps.object_store import open_objects
    from torpor.domain.ids import DEFAULT_TENANT
    from torpor.ports.objects import traffic_noted
    from torpor.store.snapshots import SnapshotStore

    async def main():
        config = Config.read(os.environ)
        clock, entropy = SystemClock(), SystemEntropy()
        opened = await open_objects(config, clock, entropy, owns_cache=True)
        store = SnapshotStore(opened.objects, FileKeys(config.keys_dir, entropy), entropy, clock)
        ref = await store.head(DEFAULT_TENANT, "session")
        into = Path(sys.argv[1])
        reads = []
        for number in range(2):
            with traffic_noted() as traffic:
                report = await store.read(ref, into / str(number))
            memory = report.files["memory"].read_bytes()
            reads.append([memory == bytes(range(256)) * 4096, traffic.is_cold, traffic.cached_bytes > 0])
        print(json.dumps({"durability": opened.durability, "reads": reads}))

    asyncio.run(main())
    """
)


def config_of(home, **settings):
    return Config.read({"TORPOR_HOME": str(home), **{f"TORPOR_{name}": value for name, value in settings.items()}})


async def opened(config, *, owns_cache=True):
    return await open_objects(config, SystemClock(), SystemEntropy(), owns_cache=owns_cache)


async def test_a_folder_gives_disk_and_needs_no_cache(tmp_path):
    for config in (config_of(tmp_path), config_of(tmp_path, STORE_URL=f"file://{tmp_path}/elsewhere")):
        here = await opened(config)
        assert isinstance(here.objects, LocalObjects)
        assert here.direct is here.objects
        assert (here.durability, here.meter, here.cache) == (Durability.DISK, None, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "store"]


async def test_a_bucket_gives_object_and_is_read_through_the_homes_cache(tmp_path, s3):
    there = await opened(config_of(tmp_path, STORE_URL=s3.url()))
    assert there.durability is Durability.OBJECT
    assert isinstance(there.objects, CachedObjects)
    assert there.cache is there.objects
    bench = StoreBench(tmp_path, objects=there.objects)
    stored = await bench.write({"memory": MEMORY})
    read_bytes = there.meter.read_bytes
    with traffic_noted() as traffic:
        assert await bench.read(stored.ref) == {"memory": MEMORY}
    assert there.meter.read_bytes == read_bytes, "what this node wrote it need not fetch"
    assert (traffic.is_cold, traffic.cached_bytes > 0) == (False, True)
    kinds = {info.key.split("/")[3] async for info in there.direct.list("v0/")}
    assert kinds == {"head", "manifests", "packs"}
    await bench.assert_clean()


async def test_no_cache_is_made_without_a_budget_or_beside_its_owner(tmp_path, s3):
    for config, owns_cache in (
        (config_of(tmp_path, STORE_URL=s3.url(), CACHE_BYTES="0"), True),
        (config_of(tmp_path, STORE_URL=s3.url()), False),
    ):
        there = await opened(config, owns_cache=owns_cache)
        assert there.cache is None
        assert there.direct is there.objects
    assert list(tmp_path.iterdir()) == []


async def test_a_store_that_cannot_be_reached_is_found_out_at_the_start(tmp_path, s3):
    with pytest.raises(InvalidArgument, match="TORPOR_STORE_URL"):
        await opened(config_of(tmp_path, STORE_URL="ftp://here"))
    with pytest.raises(Unavailable, match="no such bucket"):
        await opened(config_of(tmp_path, STORE_URL=f"s3://nowhere?endpoint={s3.endpoint}"))


async def test_a_second_process_with_an_empty_home_reads_every_snapshot(tmp_path, s3):
    url, keys = s3.url(), tmp_path / "keys"
    first = await opened(config_of(tmp_path / "first", STORE_URL=url))
    bench = StoreBench(tmp_path, objects=first.objects, keys=FileKeys(keys, SystemEntropy()))
    await bench.write({"memory": MEMORY})
    settings = {"TORPOR_HOME": str(tmp_path / "second"), "TORPOR_STORE_URL": url, "TORPOR_KEYS_DIR": str(keys)}
    second = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SECOND,
        str(tmp_path / "into"),
        env=dict(os.environ) | settings,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await second.communicate()
    assert json.loads(said) == {"durability": "object", "reads": [[True, True, False], [True, False, True]]}
