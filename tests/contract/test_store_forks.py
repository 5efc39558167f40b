"""A fork names its source's chunks, is durable before it runs, and outlives its source."""

import random

import pytest

from torpor.adapters.objects.localfs import LocalObjects
from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.errors import InvalidArgument, KeyDestroyed, NotFound, StaleRevision
from torpor.store.snapshots import ForkRequest
from torpor.testing.store import StoreBench

IMAGE = random.Random(1).randbytes(3 << 20)


@pytest.fixture(params=["memory", "localfs"])
def bench(request, tmp_path):
    objects = MemoryObjects() if request.param == "memory" else LocalObjects(tmp_path / "objects")
    return StoreBench(tmp_path, objects=objects)


async def fork(bench, source, *, subject="fork", sequence=1, tenant="default", **other):
    key = await bench.key(tenant, subject)
    fields = {"snapshot": f"snapshot-{sequence}", "wrapped_key": key.wrapped, **other}
    return await bench.store.fork(ForkRequest(source, tenant, subject, sequence=sequence, **fields))


async def keys_of(bench):
    return [info.key async for info in bench.objects.list("")]


async def test_a_fork_copies_no_data_and_reads_as_its_source_does(bench):
    source = await bench.write({"pages.img": IMAGE, "upper.tar": b"x" * 5000}, meta={"a": 1, "b": 2}, region="eu")
    before = await keys_of(bench)
    forked = await fork(bench, source.ref, meta={"b": 3}, generation=7)
    assert sorted(set(await keys_of(bench)) - set(before)) == [
        "v0/default/fork/head",
        "v0/default/fork/manifests/00000001-snapshot-1",
    ]
    assert (forked.chunk_count, forked.new_chunk_count) == (source.chunk_count, 0)
    assert forked.new_bytes < 10_000
    assert await bench.read(forked.ref) == {"pages.img": IMAGE, "upper.tar": b"x" * 5000}
    manifest, original = await bench.store.open(forked.ref), await bench.store.open(source.ref)
    assert (manifest.parent, manifest.template, manifest.cut_key) == (source.ref, None, original.cut_key)
    assert (manifest.meta, manifest.header.generation) == ({"a": 1, "b": 3}, 7)
    assert manifest.header.region == "eu"
    assert [(lender.tenant, lender.subject) for lender in manifest.header.lenders] == [("default", "session")]
    assert await bench.store.head("default", "fork") == forked.ref
    await bench.assert_clean()


async def test_a_fork_of_a_template_crosses_tenants_and_has_it_as_its_template(bench):
    golden = await bench.write({"pages.img": IMAGE}, tenant="public", subject="template")
    clone = await fork(bench, golden.ref, of_template=True)
    manifest = await bench.store.open(clone.ref)
    assert (manifest.parent, manifest.template) == (None, golden.ref)
    again = await fork(bench, clone.ref, subject="second")
    manifest = await bench.store.open(again.ref)
    assert (manifest.parent, manifest.template) == (clone.ref, golden.ref)
    with pytest.raises(InvalidArgument, match="of tenant public"):
        await fork(bench, golden.ref, subject="third")
    await bench.assert_clean()


async def test_a_fork_outlives_its_source_and_its_sources_source(bench):
    first = await bench.write({"pages.img": IMAGE})
    second = await fork(bench, first.ref, subject="second")
    third = await fork(bench, second.ref, subject="third")
    await bench.store.delete_subject("default", "session")
    await bench.store.delete_subject("default", "second")
    assert await bench.read(third.ref) == {"pages.img": IMAGE}
    assert not [key for key in await keys_of(bench) if "/manifests/" in key and "/third/" not in key]
    await bench.assert_clean()
    await bench.store.delete_subject("default", "third")


async def test_a_fork_goes_on_with_a_history_of_its_own(bench):
    source = await bench.write({"pages.img": IMAGE})
    forked = await fork(bench, source.ref)
    changed = IMAGE + bytes(4095) + b"z"
    later = await bench.write({"pages.img": changed}, subject="fork", sequence=2, parent=forked.ref)
    assert later.new_chunk_count <= 2
    await bench.store.delete_subject("default", "session")
    assert await bench.read(later.ref) == {"pages.img": changed}
    await bench.assert_clean()


async def test_a_repeated_fork_answers_without_writing_and_another_is_stale(bench):
    source = await bench.write({"pages.img": IMAGE})
    forked = await fork(bench, source.ref)
    before = await keys_of(bench)
    again = await fork(bench, source.ref)
    assert (again.ref, again.new_bytes, again.chunk_count) == (forked.ref, 0, forked.chunk_count)
    with pytest.raises(StaleRevision):
        await fork(bench, source.ref, snapshot="another")
    assert await keys_of(bench) == before
    with pytest.raises(InvalidArgument, match="own subject"):
        await fork(bench, source.ref, subject="session", sequence=2)


@pytest.mark.parametrize(("removal", "error"), [("delete_subject", KeyDestroyed), ("delete_snapshot", NotFound)])
async def test_a_source_removed_while_it_is_forked_refuses_the_fork_and_leaves_nothing(bench, removal, error):
    source = await bench.write({"pages.img": IMAGE})
    put = bench.objects.put

    async def put_after_removal(key, data):
        bench.objects.put = put
        if removal == "delete_subject":
            await bench.store.delete_subject("default", "session")
        else:
            await bench.store.delete_snapshot(source.ref)
        return await put(key, data)

    await bench.key("default", "fork")
    bench.objects.put = put_after_removal
    with pytest.raises(error, match="meanwhile"):
        await fork(bench, source.ref)
    assert not [key for key in await keys_of(bench) if key.startswith("v0/default/fork")]
    assert await bench.store.head("default", "fork") is None
    await bench.assert_clean()
