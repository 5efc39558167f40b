"""Engine builds side by side: each session by its own, an upgrade strands nobody, and a retired one steps down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_sessions import value

from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.adapters.engines.fake import FakeHost
from torpor.domain.errors import Conflict, NotFound, Unsupported
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.session import Limits, Persistence, Status
from torpor.services.builds import Builds
from torpor.services.requests import CreateRequest, ForkRequest, Outcome
from torpor.services.templates import PUBLIC_TENANT, RootFilesystem
from torpor.testing.node import FakeMachine, fake_engine, open_fake

OLD, NEW = "fake-1", "fake-2"


@pytest.fixture
async def catalog(tmp_path):
    one = SqliteCatalog(tmp_path / "catalog.sqlite3")
    await one.open()
    yield one
    await one.close()


@pytest.fixture
def machine(catalog):
    return FakeMachine(catalog=catalog)


@pytest.fixture
def hosts():
    return {OLD: FakeHost(), NEW: FakeHost()}


def installed(hosts, *builds):
    return [fake_engine(hosts[build], build) for build in builds]


async def silent(_line):
    return None


async def begin(node, name="day", **options):
    await node.sessions.create(TENANT, CreateRequest(name=name, **options))
    await value(node, name, "set x 1")
    return await node.sessions.pause(TENANT, name)


async def rebuild_template(node, engine):
    """The same root filesystem, captured under the build of ``engine``."""
    template = (await node.templates.list())[0]
    rootfs = RootFilesystem(template.name, template.digest, node.services.templates._rootfs_at(template.digest))
    await node.templates.capture_golden(rootfs, engine, Limits(), silent)


def builds_of(node, catalog):
    return Builds(catalog, catalog, node.store)


async def test_after_an_upgrade_every_paused_session_comes_back_by_its_own_build(machine, hosts):
    async with open_fake(machine, engines=installed(hosts, OLD)) as first:
        paused = await begin(first)
        assert paused.snapshot.engine_build == OLD
    async with open_fake(machine, engines=installed(hosts, OLD, NEW)) as second:
        await rebuild_template(second, second.engine)
        young = await begin(second, "young")
        assert young.snapshot.engine_build == NEW
        for name, build in (("day", OLD), ("young", NEW)):
            session, told = await second.sessions.resume(TENANT, name)
            assert (told.outcome, await value(second, name, "get x")) == (Outcome.RESUMED, "1")
            assert session.instance in hosts[build].instances
            assert (await second.sessions.pause(TENANT, name)).snapshot.engine_build == build
        ((fork, told),) = await second.services.forks.fork(TENANT, "day", ForkRequest(names=("night",)))
        assert (told.outcome, fork.snapshot.engine_build) == (Outcome.RESUMED, OLD)


async def test_a_removed_build_steps_its_sessions_down_and_says_so(machine, hosts):
    async with open_fake(machine, engines=installed(hosts, OLD, NEW)) as first:
        await rebuild_template(first, installed(hosts, OLD)[0])
        await begin(first)
    async with open_fake(machine, engines=installed(hosts, NEW)) as second:
        with pytest.raises(Unsupported, match=OLD):
            await second.sessions.create(TENANT, CreateRequest())
        _, told = await second.sessions.resume(TENANT, "day")
        assert (told.outcome, len(told.stepped_down)) == (Outcome.RESTORED_FILESYSTEM, 1)
        assert OLD in told.stepped_down[0]
        assert (await second.sessions.pause(TENANT, "day")).snapshot.engine_build == NEW


async def test_builds_are_counted_by_what_needs_them(machine, hosts, catalog):
    async with open_fake(machine, engines=installed(hosts, OLD, NEW)) as node:
        await begin(node)
        await begin(node, "disk", persistence=Persistence.FILESYSTEM)
        await node.sessions.create(TENANT, CreateRequest(name="up"))
        use = await builds_of(node, catalog).use(NEW)
        assert [session.name for session in use.resting] == ["day"]
        assert [session.name for session in use.awake] == ["up"]
        assert ([template.name for template in use.templates], use.diskless) == (["data"], ())
        use = await builds_of(node, catalog).use(OLD)
        assert (use.resting, use.awake, use.templates) == ((), (), ())


async def test_a_record_of_before_builds_were_noted_is_counted_by_its_manifest(machine, hosts, catalog):
    async with open_fake(machine, engines=installed(hosts, OLD)) as node:
        paused = await begin(node)
        await catalog.replace(replace(paused, snapshot=replace(paused.snapshot, engine_build="")))
        use = await builds_of(node, catalog).use(OLD)
        assert [session.id for session in use.resting] == [paused.id]


async def test_a_build_is_retired_only_when_nothing_is_lost_and_only_if_that_is_meant(machine, hosts, catalog):
    async with open_fake(machine, engines=installed(hosts, OLD, NEW)) as node:
        await begin(node)
        builds = builds_of(node, catalog)

        async def reason(build, names=(OLD, NEW), *, agreed=True):
            with pytest.raises(Conflict) as refused:
                await builds.check_retirable(build, names, agreed=agreed)
            return refused.value.details["reason"]

        assert await reason(NEW, agreed=False) == "build_needed"
        assert await reason(NEW, (NEW,)) == "only_build"
        use = await builds.check_retirable(NEW, (OLD, NEW), agreed=True)
        assert [session.name for session in use.resting] == ["day"]
        assert await builds.check_retirable(OLD, (OLD, NEW), agreed=False)
        await node.sessions.resume(TENANT, "day")
        assert await reason(NEW) == "build_in_use"


async def test_a_session_without_a_disk_of_its_own_holds_its_build(machine, hosts, catalog, monkeypatch):
    monkeypatch.setattr("torpor.services.builds.filesystem_file", lambda _meta: None)
    async with open_fake(machine, engines=installed(hosts, OLD, NEW)) as node:
        await begin(node)
        with pytest.raises(Conflict, match="no filesystem part") as refused:
            await builds_of(node, catalog).check_retirable(NEW, (OLD, NEW), agreed=True)
        assert refused.value.details["reason"] == "build_holds_memory"


def install_by_hand(home, build):
    folder = home / "engines" / build
    folder.mkdir(parents=True)
    (folder / "runsc").write_bytes(b"")
    record = {"build": build, "runsc": "runsc", "version": build, "sha256": build * 4, "route": "path", "probe": {}}
    (folder / "build.json").write_text(json.dumps(record))


@pytest.fixture
def home(environment):
    path = Path(environment["TORPOR_HOME"])
    path.mkdir(mode=0o700)
    return path


def test_the_command_line_lists_and_retires_builds(torpor, home):
    assert json.loads(torpor("engine", "list", "--json").stdout) == []
    for build in (OLD, NEW):
        install_by_hand(home, build)
    listed = json.loads(torpor("engine", "list", "--json").stdout)
    assert [(b["build"], b["preferred"], b["sessions_count"], b["templates"]) for b in listed] == [
        (OLD, False, 0, []),
        (NEW, True, 0, []),
    ]
    assert b"PAUSED" in torpor("engine", "list").stdout
    unknown = torpor("engine", "retire", "none-such", "--json")
    assert json.loads(unknown.stderr)["code"] == NotFound.code
    done = torpor("engine", "retire", OLD)
    assert done.stdout.startswith(b"retired fake-1; 0 paused sessions")
    assert not (home / "engines" / OLD).exists()
    only = torpor("engine", "retire", NEW, "--yes", "--json")
    assert json.loads(only.stderr)["details"]["reason"] == "only_build"
    assert (home / "engines" / NEW / "runsc").exists()


async def test_a_lost_session_counts_as_resting(machine, hosts, catalog):
    async with open_fake(machine, engines=installed(hosts, OLD)) as node:
        await begin(node)
        session, _ = await node.sessions.resume(TENANT, "day")
        hosts[OLD].kill(session.instance)
    async with open_fake(machine, engines=installed({OLD: FakeHost()}, OLD)) as node:
        assert (await node.sessions.get(TENANT, "day")).status is Status.LOST
        assert len((await builds_of(node, catalog).use(OLD)).resting) == 1
        assert (await catalog.templates(PUBLIC_TENANT))[0].engine_build == OLD
