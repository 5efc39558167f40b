"""A second node with an empty home: the store and the keys are enough to list, to resume cold, and to go on."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace

import pytest
from stored_nodes import Shared, make_tree, node, silent, value

from torpor.adapters.catalog.memory import MemoryCatalog
from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.adapters.keys.memory import MemoryKeys
from torpor.adapters.templates.digest import digest_tree
from torpor.domain.errors import Conflict, Corrupt, GuestError, InvalidArgument, NotFound
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.session import Durability, Limits, Policy, Status
from torpor.domain.snapshot import Lender, SnapshotRef
from torpor.services.maintenance import Maintenance
from torpor.services.rebuild import GENERATION_STEP, rebuild_catalog
from torpor.services.requests import CreateRequest
from torpor.services.templates import PUBLIC_TENANT, RootFilesystem
from torpor.store.format import sealed_stream
from torpor.store.snapshots import ForkRequest


async def build(services, engine, home):
    digest = make_tree(home)
    rootfs = RootFilesystem("data", digest, home / digest / "rootfs")
    record, _ = await services.templates.capture_golden(rootfs, engine, Limits(cpus=1.5), silent)
    return record


@pytest.fixture
def shared():
    return Shared()


@pytest.fixture
async def first(shared, tmp_path):
    """A node that has built a template, with a paused session in which ``x`` is 41."""
    async with node(shared, tmp_path / "one") as (services, catalog, engine):
        record = await build(services, engine, tmp_path / "one")
        request = CreateRequest(
            name="day",
            template="data",
            metadata={"a": "b"},
            env={"K": "v"},
            policy=Policy(idle_s=77.0, timeout_s=500.0),
        )
        await services.sessions.create(TENANT, request)
        await value(services, "day", "set x 41")
        paused = await services.sessions.pause(TENANT, "day")
        yield services, catalog, paused, record


async def test_the_store_and_the_keys_are_enough_for_a_cold_resume(shared, first, tmp_path):
    _, _, paused, record = first
    async with node(shared, tmp_path / "two") as (services, catalog, _):
        rebuilt = await rebuild_catalog(services.store, catalog, shared.clock, Durability.OBJECT)
        assert (rebuilt.sessions, rebuilt.templates, rebuilt.unreadable) == ([paused.id], ["data"], {})
        assert await catalog.template(PUBLIC_TENANT, "data") == record
        found = await services.sessions.get(TENANT, "day")
        assert (found.status, found.durability) == (Status.PAUSED_DURABLE, Durability.OBJECT)
        same = ("id", "tenant", "template", "template_digest", "name", "persistence", "limits", "metadata", "env")
        same += ("wrapped_key", "policy", "paused_at_s", "created_at_s", "hard_deadline_at_s", "forked_from")
        assert [getattr(found, name) for name in same] == [getattr(paused, name) for name in same]
        assert found.snapshot.ref == paused.snapshot.ref
        assert found.generation >= paused.generation + GENERATION_STEP
        bursts = await asyncio.gather(*(services.sessions.code(TENANT, "day", "get x") for _ in range(5)))
        assert {burst.result.result["text/plain"] for burst in bursts} == {"41"}
        tree = tmp_path / "two" / record.digest / "rootfs"
        assert digest_tree(tree).digest == record.digest
        again = await services.sessions.pause(TENANT, "day")
        assert again.snapshot.sequence > paused.snapshot.sequence
        await value(services, "day", "incr x")
        assert (await services.store.check()).clean


async def test_a_rebuild_is_idempotent_and_leaves_known_records_alone(shared, first):
    services, catalog, paused, _ = first
    before = await services.sessions.get(TENANT, "day")
    rebuilt = await rebuild_catalog(services.store, catalog, shared.clock, Durability.DISK)
    assert (rebuilt.sessions, rebuilt.templates, rebuilt.known_count) == ([], [], 2)
    assert await services.sessions.get(TENANT, "day") == before
    fresh = MemoryCatalog()
    assert (await rebuild_catalog(services.store, fresh, shared.clock, Durability.DISK)).sessions == [paused.id]
    assert (await rebuild_catalog(services.store, fresh, shared.clock, Durability.DISK)).sessions == []


async def test_a_shredded_session_does_not_come_back_with_its_objects(shared, first):
    services, _, paused, _ = first
    kept = {info.key: await shared.objects.get(info.key) async for info in shared.objects.list("")}
    await services.sessions.delete(TENANT, "day")
    for key, data in kept.items():
        await shared.objects.put(key, data)
    fresh = MemoryCatalog()
    rebuilt = await rebuild_catalog(services.store, fresh, shared.clock, Durability.DISK)
    assert (rebuilt.sessions, rebuilt.shredded_count) == ([], 1)
    with pytest.raises(NotFound):
        await fresh.get(TENANT, paused.id)


async def test_a_taken_name_stays_with_who_has_it(shared, first):
    services, _, paused, _ = first
    fresh = MemoryCatalog()
    await fresh.insert(replace(paused, id="other000000000000000", revision=0))
    rebuilt = await rebuild_catalog(services.store, fresh, shared.clock, Durability.DISK)
    assert rebuilt.renamed == {paused.id: "day"}
    assert (await fresh.get(TENANT, paused.id)).name is None


async def test_an_older_snapshot_comes_back_as_lost_and_only_if_that_is_allowed(shared, first, tmp_path):
    services, _, paused, _ = first
    await value(services, "day", "set x 42")
    later = await services.sessions.pause(TENANT, "day")
    ref = SnapshotRef.from_json(later.snapshot.ref)
    await shared.objects.delete(f"v0/{TENANT}/{ref.subject}/manifests/{ref.sequence:08d}-{ref.snapshot}")
    async with node(shared, tmp_path / "two") as (second, catalog, _):
        rebuilt = await rebuild_catalog(second.store, catalog, shared.clock, Durability.OBJECT)
        assert (rebuilt.older, rebuilt.sessions) == ([paused.id], [paused.id])
        assert (await second.sessions.get(TENANT, "day")).status is Status.LOST
        with pytest.raises(Conflict):
            await second.sessions.code(TENANT, "day", "get x")
        await second.sessions.resume(TENANT, "day", allow_older=True)
        assert await value(second, "day", "get x") == "41"


async def test_a_tree_is_stored_once_however_often_its_golden_snapshot_is_taken(shared, first, tmp_path):
    services, catalog, _, record = first
    subjects = [found async for found in services.store.subjects() if found.owner.tenant == PUBLIC_TENANT]
    assert len(subjects) == 2
    async with node(shared, tmp_path / "one", catalog=catalog) as (again, _, engine):
        rootfs = RootFilesystem("data", record.digest, tmp_path / "one" / record.digest / "rootfs")
        newer, _ = await again.templates.capture_golden(rootfs, engine, Limits(), silent)
    subjects = [found async for found in services.store.subjects() if found.owner.tenant == PUBLIC_TENANT]
    assert len(subjects) == 3
    metas = [found.manifest.meta for found in subjects]
    assert len({str(meta["rootfs"]) for meta in metas if "rootfs" in meta}) == 1
    fresh = MemoryCatalog()
    await rebuild_catalog(services.store, fresh, shared.clock, Durability.DISK)
    assert (await fresh.template(PUBLIC_TENANT, "data")).golden == newer.golden
    assert base64.b64decode(newer.wrapped_key)


async def test_trees_of_different_templates_share_what_they_have_in_common(shared, first, tmp_path):
    services, catalog, _, record = first
    async with node(shared, tmp_path / "one", catalog=catalog) as (again, _, engine):
        digest = make_tree(tmp_path / "one", "one-file-more")
        rootfs = RootFilesystem("other", digest, tmp_path / "one" / digest / "rootfs")
        other, _ = await again.templates.capture_golden(rootfs, engine, Limits(), silent)
    refs = []
    for golden in (record.golden, other.golden):
        manifest = await services.store.open(SnapshotRef.from_json(golden))
        refs.append(SnapshotRef.from_json(manifest.meta["rootfs"]))
    manifest = await services.store.open(refs[1])
    assert manifest.parent == refs[0]
    prefix = f"v0/{PUBLIC_TENANT}/{refs[1].subject}/"
    assert sum([info.size_bytes async for info in shared.objects.list(prefix)]) < 1 << 20
    async with node(shared, tmp_path / "three") as (third, fresh, _):
        await services.store.delete_subject(PUBLIC_TENANT, refs[0].subject)
        await rebuild_catalog(third.store, fresh, shared.clock, Durability.DISK)
        blueprint = await third.templates.blueprint(TENANT, "other")
        assert digest_tree(blueprint.shape.rootfs).digest == digest


def maintenance_of(shared, services, catalog):
    return Maintenance(services.store, catalog, shared.keys, Durability.DISK, (shared.clock, shared.entropy))


async def pieces(data):
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


@pytest.fixture
def cheap(monkeypatch):
    monkeypatch.setattr(sealed_stream, "_COSTS", (10, 8, 1))


@pytest.mark.usefixtures("cheap")
async def test_an_exported_session_becomes_a_new_one_elsewhere_which_goes_on_where_it_was(shared, first, tmp_path):
    services, catalog, paused, record = first
    export = await maintenance_of(shared, services, catalog).export_session(paused, "correct horse")
    assert export.filename == f"day-{paused.snapshot.sequence}.torpor"
    data = b"".join([piece async for piece in export.pieces])
    other = Shared()
    other.entropy = SeededEntropy(99)
    other.keys = MemoryKeys(other.entropy)
    async with node(other, tmp_path / "other") as (second, there, engine):
        upkeep = maintenance_of(other, second, there)
        with pytest.raises(NotFound, match=record.digest):
            await upkeep.import_session(TENANT, pieces(data), "correct horse")
        assert [info.key async for info in other.objects.list("")] == []
        await build(second, engine, tmp_path / "other")
        arrived = await upkeep.import_session(TENANT, pieces(data), "correct horse", name="night")
        assert (arrived.status, arrived.name, arrived.generation) == (Status.PAUSED_LOCAL, "night", 0)
        assert arrived.id != paused.id
        assert arrived.timeline[-1].event == "imported"
        assert await value(second, "night", "get x") == "41"
        again = await upkeep.import_session(TENANT, pieces(data), "correct horse")
        assert again.name is None
        with pytest.raises(Conflict, match="exists: use it"):
            await upkeep.import_session(TENANT, pieces(data), "correct horse", name="night")
        with pytest.raises(InvalidArgument, match="passphrase"):
            await upkeep.import_session(TENANT, pieces(data), "wrong horse")
        await second.sessions.pause(TENANT, "night")
        assert (await second.store.check()).clean


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize(
    "said",
    [
        {"env": {"TOKEN": 1}},
        {"env": ["TOKEN"]},
        {"env": {"A=B": "c"}},
        {"metadata": {"owner": ["me"]}},
        {"policy": {"idle_s": "soon"}},
        {"policy": {"retention_s": -1.0}},
        {"limits": {"cpus": "many"}},
        {"persistence": "eternal"},
        {"instant_s": "today"},
        {"memory_files": None},
    ],
)
async def test_a_file_that_says_what_no_session_can_be_is_refused_and_leaves_nothing(shared, first, tmp_path, said):
    services, catalog, paused, _ = first
    key = await shared.keys.create(TENANT, "forged")
    source = SnapshotRef.from_json(paused.snapshot.ref)
    forged = await services.store.fork(
        ForkRequest(source, TENANT, "forged", "forged", sequence=1, wrapped_key=key.wrapped, meta=said)
    )
    data = b"".join([piece async for piece in services.store.export(forged.ref, "correct horse")])
    real = SqliteCatalog(tmp_path / "catalog.sqlite3")
    await real.open()
    try:
        await real.put_template(await catalog.template(PUBLIC_TENANT, paused.template_digest))
        before = {info.key async for info in shared.objects.list("")}
        with pytest.raises((Corrupt, InvalidArgument)):
            await maintenance_of(shared, services, real).import_session(TENANT, pieces(data), "correct horse")
        assert {info.key async for info in shared.objects.list("")} == before
        assert (await real.page(TENANT)).sessions == ()
    finally:
        await real.close()


async def test_garbage_of_a_session_is_told_and_what_nobody_knows_is_abandoned(shared, first):
    services, catalog, paused, _ = first
    upkeep = maintenance_of(shared, services, catalog)
    for number in range(3):
        await value(services, "day", f"set x {number}")
        await services.sessions.pause(TENANT, "day")
    report = await upkeep.collect_garbage(dry_run=True, grace_s=0)
    assert {garbage.reason for garbage in report.plan.remove} == {"superseded"}
    await shared.objects.delete(f"v0/{TENANT}/{paused.id}/head")
    assert (await upkeep.collect_garbage(grace_s=0)).plan.headless == (Lender(TENANT, paused.id),)
    lost = MemoryCatalog()
    assert (await maintenance_of(shared, services, lost).collect_garbage(dry_run=True, grace_s=0)).plan.remove == ()
    other, _ = await services.sessions.create(TENANT, CreateRequest(template="data"))
    await lost.insert(await services.sessions.pause(TENANT, other.id))
    report = await maintenance_of(shared, services, lost).collect_garbage(dry_run=True, grace_s=0)
    assert {garbage.reason for garbage in report.plan.remove} == {"abandoned"}
    with pytest.raises(InvalidArgument, match="grace"):
        await upkeep.collect_garbage(grace_s=-1)
    with pytest.raises(InvalidArgument, match="keep"):
        await upkeep.collect_garbage(keep=0)


async def test_a_build_that_fails_leaves_nothing_in_the_store_but_what_was_there(shared, tmp_path):
    async def not_ready(_guest):
        raise GuestError("its ready check ended with 1")

    async with node(shared, tmp_path / "one") as (services, _, engine):
        digest = make_tree(tmp_path / "one")
        rootfs = RootFilesystem("data", digest, tmp_path / "one" / digest / "rootfs")
        for build_before in (False, True):
            if build_before:
                await services.templates.capture_golden(rootfs, engine, Limits(), silent)
            before = {info.key async for info in shared.objects.list("")}
            with pytest.raises(GuestError, match="ready check"):
                await services.templates.capture_golden(rootfs, engine, Limits(), silent, check=not_ready)
            assert {info.key async for info in shared.objects.list("")} == before
        session, _ = await services.sessions.create(TENANT, CreateRequest(template="data"))
        assert (await services.sessions.pause(TENANT, session.id)).snapshot is not None
        assert (await services.store.check()).clean
