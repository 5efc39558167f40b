"""A second server whose home is empty but for the engine: the store and the keys are all it needs."""

from __future__ import annotations

import asyncio

import pytest
from e2e_home import DEVELOPMENT_HOME, Server, run, sh, traces

from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.adapters.clock.system import SystemClock
from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.objects.localfs import LocalObjects
from torpor.domain.ids import DEFAULT_TENANT
from torpor.domain.session import Durability
from torpor.services.maintenance import Maintenance
from torpor.store.snapshots import SnapshotStore

pytestmark = pytest.mark.engine


async def rebuild(first, second):
    """``store rebuild-catalog`` for the second home over the first one's store; the sessions it found."""
    entropy, clock = SystemEntropy(), SystemClock()
    keys = FileKeys(first.config.keys_dir, entropy)
    catalog = SqliteCatalog(second.config.catalog_file)
    await catalog.open()
    try:
        store = SnapshotStore(LocalObjects(first.config.store_dir), keys, entropy, clock)
        maintenance = Maintenance(store, catalog, keys, Durability.DISK, (clock, entropy))
        rebuilt = await maintenance.rebuild_catalog()
        page = await catalog.page(DEFAULT_TENANT)
        return rebuilt, page.sessions
    finally:
        await catalog.close()


def test_a_second_server_with_an_empty_home_resumes_from_the_store_and_the_keys_alone(server, tmp_path):
    first = server.start()
    ref = first.create(template="data", name="day")["id"]
    run(first, ref, "import numpy, secrets; total = int(numpy.arange(1000).sum()); token = secrets.token_hex(8)")
    sh(first, ref, "mkdir -p /workspace/deep && cd /workspace/deep && echo kept > file && export MARK=17")
    token = run(first, ref, "token")
    first.pause(ref)
    server.stop()

    home = tmp_path / "second"
    home.mkdir(mode=0o700)
    (home / "engines").symlink_to(DEVELOPMENT_HOME / "engines")
    variables = {
        "TORPOR_STORE_URL": server.config.store_dir.as_uri(),
        "TORPOR_KEYS_DIR": str(server.config.keys_dir),
    }
    second = Server(home, **variables)
    rebuilt, sessions = asyncio.run(rebuild(server, second))
    assert ([session.id for session in sessions], rebuilt.unreadable) == ([ref], {})
    assert "data" in rebuilt.templates
    try:
        client = second.start()
        assert run(client, "day", "(total, token)") == f"(499500, {token})"
        assert sh(client, "day", "pwd; cat file; echo $MARK").split() == ["/workspace/deep", "kept", "17"]
        tree = home / "templates" / sessions[0].template_digest / "rootfs"
        assert (tree / "usr/bin/python3").exists()
        again = client.pause("day")
        assert again["snapshot"]["sequence"] > sessions[0].snapshot.sequence
        assert run(client, "day", "token") == token
        client.delete("day")
        assert client.store_check()["clean"]
    finally:
        second.stop()
        for each in second.clients:
            each.close()
    left = traces(home)
    assert left == {"processes": [], "mounts": [], "cgroups": []}
