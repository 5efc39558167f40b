import dataclasses
import os
import random

import pytest

from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.objects.localfs import LocalObjects
from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.errors import Corrupt, InvalidArgument, KeyDestroyed, NotFound, StaleRevision
from torpor.store.snapshots import PartSource, ProblemKind
from torpor.testing.store import StoreBench

PAGE = 4096


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


@pytest.fixture(params=["memory", "localfs"])
def objects(request, tmp_path):
    return MemoryObjects() if request.param == "memory" else LocalObjects(tmp_path / "objects")


@pytest.fixture
def bench(objects, tmp_path):
    return StoreBench(tmp_path, objects=objects)


async def keys_of(objects, prefix=""):
    return [info.key async for info in objects.list(prefix)]


async def test_parts_come_back_as_they_were(bench):
    parts = {"pages.img": noise(3 << 20) + bytes(1 << 20) + noise(1000, 2), "upper.tar": noise(5000), "empty": b""}
    stored = await bench.write(parts, requirements={"build": "x"}, meta={"paused_at": 1.5}, generation=4, region="eu")
    assert await bench.read(stored.ref) == parts
    manifest = await bench.store.open(stored.ref)
    assert (manifest.requirements, manifest.meta) == ({"build": "x"}, {"paused_at": 1.5})
    assert (manifest.header.generation, manifest.header.region) == (4, "eu")
    assert stored.image_bytes == sum(map(len, parts.values()))
    assert await bench.store.head("default", "session") == stored.ref
    await bench.assert_clean()


async def test_new_bytes_are_all_that_was_written(bench, objects):
    stored = await bench.write({"pages.img": noise(33 << 20)})
    sizes = [info.size_bytes async for info in objects.list("")]
    assert stored.new_bytes == sum(sizes)
    assert len(await keys_of(objects, "v0/default/session/packs/")) == 3
    await bench.assert_clean()


async def test_zeros_cost_nothing_and_come_back_as_holes(bench, tmp_path):
    stored = await bench.write({"pages.img": bytes(16 << 20) + noise(PAGE) + bytes(16 << 20)})
    assert (stored.new_chunk_count, stored.new_bytes < 10_000) == (1, True)
    report = await bench.store.read(stored.ref, tmp_path / "back")
    status = os.stat(report.files["pages.img"])
    assert status.st_size == (32 << 20) + PAGE
    assert status.st_blocks * 512 <= 64 * 1024
    await bench.assert_clean()


async def test_an_unchanged_image_is_not_stored_again(bench):
    image = noise(8 << 20)
    first = await bench.write({"pages.img": image})
    second = await bench.write({"pages.img": image}, sequence=2, parent=first.ref)
    assert (second.chunk_count, second.new_chunk_count) == (first.chunk_count, 0)
    assert second.new_bytes < 10_000
    assert await bench.read(second.ref) == {"pages.img": image}
    await bench.assert_clean()


async def test_of_a_changed_image_only_the_changed_chunks_are_stored(bench):
    image = noise(16 << 20)
    changed = image[: 8 << 20] + noise(PAGE, 2) + image[8 << 20 :]
    first = await bench.write({"pages.img": image})
    second = await bench.write({"pages.img": changed}, sequence=2, parent=first.ref)
    assert 1 <= second.new_chunk_count <= 3
    assert await bench.read(second.ref) == {"pages.img": changed}
    assert await bench.read(first.ref) == {"pages.img": image}
    await bench.assert_clean()


async def test_equal_chunks_of_one_image_are_stored_once(bench):
    piece = noise(6 << 20)
    stored = await bench.write({"one": piece, "two": piece})
    assert stored.new_bytes < 7 << 20
    assert await bench.read(stored.ref) == {"one": piece, "two": piece}
    await bench.assert_clean()


async def test_a_clone_names_its_templates_chunks_and_needs_its_key_no_more(bench):
    image = noise(8 << 20)
    golden = await bench.write({"pages.img": image}, tenant="public", subject="template")
    clone = await bench.write({"pages.img": image + noise(PAGE, 2)}, subject="clone", template=golden.ref)
    assert clone.new_chunk_count <= 2
    later = await bench.write({"pages.img": image}, subject="clone", sequence=2, parent=clone.ref, template=golden.ref)
    assert later.new_chunk_count <= 1
    await bench.keys.destroy("public", "template")
    assert await bench.read(clone.ref) == {"pages.img": image + noise(PAGE, 2)}
    with pytest.raises(KeyDestroyed):
        await bench.read(golden.ref)
    report = await bench.store.check()
    assert (report.clean, len(report.shredded), report.snapshot_count) == (True, 1, 2)


async def cloned(bench, image, changed, **other):
    """Stored as template, and the changed image as a clone's first snapshot; the template in memory."""
    template = (await bench.write({"pages.img": image}, subject="template")).ref
    held = await bench.resident(template)
    return template, held, await bench.write({"pages.img": changed}, template=template, resident=held, **other)


async def test_of_changed_chunks_only_the_changed_pages_are_stored(bench):
    image = noise(8 << 20)
    changed = bytearray(image)
    for page in range(0, 2048, 50):
        changed[page * PAGE : page * PAGE + 8] = b"changed!"
    _, held, stored = await cloned(bench, image, bytes(changed))
    assert 41 * PAGE < stored.new_bytes < 41 * PAGE + 10_000
    assert await bench.read(stored.ref) == {"pages.img": changed}
    assert await bench.read(stored.ref, resident=held) == {"pages.img": changed}
    await bench.assert_clean()


async def test_what_was_stored_of_a_changed_chunk_is_not_stored_again(bench):
    image = noise(2 << 20)
    template, held, first = await cloned(bench, image, image[: 1 << 20] + noise(PAGE, 2) + image[(1 << 20) + PAGE :])
    changed = image[: 1 << 20] + noise(PAGE, 2) + image[(1 << 20) + PAGE : -PAGE] + noise(PAGE, 3)
    second = await bench.write({"pages.img": changed}, sequence=2, parent=first.ref, template=template, resident=held)
    assert (first.new_chunk_count, second.new_chunk_count) == (1, 1)
    assert await bench.read(second.ref) == {"pages.img": changed}
    await bench.assert_clean()


async def test_a_chunk_of_which_little_is_held_stays_whole(bench):
    image = noise(1 << 20)
    changed = noise(1 << 20, 2) + image[: 4 * PAGE]
    _, _, stored = await cloned(bench, image, changed)
    (part,) = (await bench.store.open(stored.ref)).parts
    assert all(extent.first_granule == 0 for extent in part.extents)
    assert await bench.read(stored.ref) == {"pages.img": changed}
    await bench.assert_clean()


async def test_an_image_in_memory_that_is_no_relative_lends_nothing(bench):
    image = noise(1 << 20)
    stranger = await bench.resident((await bench.write({"pages.img": image}, subject="stranger")).ref)
    stored = await bench.write({"pages.img": image[:-PAGE] + noise(PAGE, 2)}, resident=stranger)
    assert (await bench.store.open(stored.ref)).header.lenders == ()
    assert stored.new_bytes > 1 << 20
    await bench.assert_clean()


async def test_a_clone_of_single_pages_needs_the_packs_they_lie_in_and_nothing_else(bench, objects):
    image = noise(1 << 20)
    _, _, stored = await cloned(bench, image, image[: 100 * PAGE] + noise(PAGE, 2) + image[101 * PAGE :])
    await bench.store.delete_subject("default", "template")
    assert (await bench.read(stored.ref))["pages.img"][: 100 * PAGE] == image[: 100 * PAGE]
    for key in await keys_of(objects, "v0/default/template/packs/"):
        await objects.delete(key)
    with pytest.raises(Corrupt):
        await bench.read(stored.ref)
    assert {problem.kind for problem in (await bench.store.check()).problems} == {ProblemKind.MISSING_PACK}


async def test_sessions_of_different_tenants_share_no_chunk(bench, objects):
    image = noise(4 << 20)
    stored = [await bench.write({"pages.img": image}, tenant=tenant) for tenant in ("acme", "globex")]
    manifests = [await bench.store.open(one.ref) for one in stored]
    assert [one.new_chunk_count for one in stored] == [one.chunk_count for one in stored]
    for manifest, tenant in zip(manifests, ("acme", "globex"), strict=True):
        assert {pack.tenant for pack in manifest.packs} == {tenant}
    assert not {chunk.key for chunk in manifests[0].chunks} & {chunk.key for chunk in manifests[1].chunks}
    sealed = [await objects.get(key) for key in await keys_of(objects) if "/packs/" in key]
    assert not any(image[at : at + 64] in data for data in sealed for at in range(0, len(image), 65536))
    await bench.assert_clean()


async def test_a_parent_of_another_tenant_is_refused(bench):
    first = await bench.write({"pages.img": noise(PAGE)}, tenant="acme")
    with pytest.raises(InvalidArgument) as caught:
        await bench.write({"pages.img": noise(PAGE)}, tenant="globex", parent=first.ref)
    assert caught.value.details["field"] == "parent"
    await bench.assert_clean()


async def test_an_older_sequence_does_not_move_the_head_back(bench, objects):
    newer = await bench.write({"pages.img": noise(PAGE)}, sequence=5)
    before = await keys_of(objects)
    for sequence in (4, 5):
        with pytest.raises(StaleRevision):
            await bench.write({"pages.img": noise(PAGE, 2)}, sequence=sequence, snapshot="late")
    assert await bench.store.head("default", "session") == newer.ref
    assert await keys_of(objects) == before
    await bench.assert_clean()


async def test_a_repeated_write_answers_without_writing(bench, objects):
    request = await bench.request({"pages.img": noise(1 << 20)})
    first, before = await bench.store.write(request), await keys_of(objects)
    second = await bench.store.write(request)
    assert (second.ref, second.new_bytes, second.chunk_count) == (first.ref, 0, first.chunk_count)
    assert await keys_of(objects) == before
    await bench.assert_clean()


async def test_single_parts_can_be_read(bench, tmp_path):
    stored = await bench.write({"pages.img": noise(4 << 20), "upper.tar": noise(1024)})
    report = await bench.store.read(stored.ref, tmp_path / "back", parts=["upper.tar"])
    assert (list(report.files), report.image_bytes) == (["upper.tar"], 1024)
    assert report.bytes_read < 4096
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["upper.tar"]
    with pytest.raises(InvalidArgument, match=r"pages\.img, upper\.tar"):
        await bench.store.read(stored.ref, tmp_path / "back", parts=["else"])
    await bench.assert_clean()


async def test_a_reference_opens_its_own_manifest_only(bench):
    first = await bench.write({"pages.img": noise(PAGE)})
    second = await bench.write({"pages.img": noise(PAGE)}, sequence=2)
    with pytest.raises(NotFound):
        await bench.store.open(dataclasses.replace(first.ref, sequence=9))
    with pytest.raises(Corrupt):
        await bench.store.open(dataclasses.replace(first.ref, digest=second.ref.digest))
    await bench.assert_clean()


async def test_a_manifest_moved_to_another_place_is_corrupt(bench, objects):
    first = await bench.write({"pages.img": noise(PAGE)})
    data = await objects.get("v0/default/session/manifests/00000001-snapshot-1")
    await objects.put("v0/default/session/manifests/00000002-snapshot-1", data)
    with pytest.raises(Corrupt):
        await bench.store.open(dataclasses.replace(first.ref, sequence=2))
    report = await bench.store.check()
    assert [problem.kind for problem in report.problems] == [ProblemKind.CORRUPT_MANIFEST]


async def test_bad_requests_are_refused_before_anything_is_written(bench, objects, tmp_path):
    request = await bench.request({"pages.img": noise(PAGE)})
    part = request.parts[0]
    wrong = {
        "sequence": -1,
        "snapshot": "a/b",
        "parts": (),
        "meta": {"a": object()},
    }
    for field, value in wrong.items():
        with pytest.raises(InvalidArgument) as caught:
            await bench.store.write(dataclasses.replace(request, **{field: value}))
        assert caught.value.details["field"] == field
    for parts in ((part, part), (PartSource("x", tmp_path / "absent"),), (PartSource("x", tmp_path),)):
        with pytest.raises(InvalidArgument) as caught:
            await bench.store.write(dataclasses.replace(request, parts=parts))
        assert caught.value.details["field"] == "parts"
    with pytest.raises(InvalidArgument):
        await bench.store.write(dataclasses.replace(request, parts=(dataclasses.replace(part, granule_bytes=100),)))
    assert await keys_of(objects) == []
    await bench.assert_clean()


async def test_deleting_the_newest_snapshot_moves_the_head_to_the_one_before(bench):
    image = noise(1 << 20)
    refs = [(await bench.write({"pages.img": image}, sequence=sequence)).ref for sequence in (1, 2, 3)]
    await bench.store.delete_snapshot(refs[1])
    assert await bench.store.head("default", "session") == refs[2]
    await bench.store.delete_snapshot(refs[2])
    await bench.store.delete_snapshot(refs[2])
    assert await bench.store.head("default", "session") == refs[0]
    assert await bench.read(refs[0]) == {"pages.img": image}
    await bench.assert_clean()
    await bench.store.delete_snapshot(refs[0])
    assert await bench.store.head("default", "session") is None
    await bench.assert_clean()


async def test_deleting_a_subject_shreds_it_and_spares_its_forks(bench, objects):
    image = noise(6 << 20)
    first = await bench.write({"pages.img": image})
    second = await bench.write({"pages.img": image + noise(1 << 20, 2)}, sequence=2, parent=first.ref)
    fork = await bench.write({"pages.img": image}, subject="fork", parent=first.ref)
    other = await bench.write({"pages.img": noise(1 << 20, 3)}, subject="other")
    for _ in range(2):
        await bench.store.delete_subject("default", "session")
        assert await bench.store.head("default", "session") is None
        for ref in (first.ref, second.ref):
            with pytest.raises(NotFound):
                await bench.store.open(ref)
        assert await bench.read(fork.ref) == {"pages.img": image}
        assert await bench.read(other.ref) == {"pages.img": noise(1 << 20, 3)}
        assert len(await keys_of(objects, "v0/default/session/")) == 1
        await bench.assert_clean()
    with pytest.raises(KeyDestroyed):
        await bench.write({"pages.img": image}, sequence=3)
    await bench.store.delete_subject("default", "fork")
    await bench.store.delete_subject("default", "other")
    await bench.store.delete_subject("default", "session")
    assert await keys_of(objects) == []


async def test_a_relative_that_cannot_be_opened_makes_all_packs_stay(bench, objects):
    first = await bench.write({"pages.img": noise(1 << 20)})
    fork = await bench.write({"pages.img": noise(1 << 20)}, subject="fork", parent=first.ref)
    key = "v0/default/fork/manifests/00000001-snapshot-1"
    right = await objects.get(key)
    await objects.put(key, right[:-1])
    await bench.store.delete_subject("default", "session")
    await objects.put(key, right)
    assert await bench.read(fork.ref) == {"pages.img": noise(1 << 20)}
    await bench.assert_clean()


async def test_check_names_each_kind_of_damage(bench, objects):
    refs = {}
    for number, name in enumerate(["lost", "pack", "chunk", "manifest", "head", "gone"]):
        refs[name] = (await bench.write({"pages.img": noise(64 << 10, number)}, subject=name)).ref

    async def pack_of(name):
        return (await keys_of(objects, f"v0/default/{name}/packs/"))[0]

    async def damage(key, at):
        data = bytearray(await objects.get(key))
        data[at] ^= 1
        await objects.put(key, bytes(data))

    await objects.delete(await pack_of("lost"))
    await damage(await pack_of("pack"), 3)
    await damage(await pack_of("chunk"), 1000)
    await damage("v0/default/manifest/manifests/00000001-snapshot-1", -1)
    await damage("v0/default/head/head", 20)
    await objects.delete("v0/default/gone/manifests/00000001-snapshot-1")
    await objects.put("v0/default/stranger", b"?")
    report = await bench.store.check()
    assert [(problem.kind.value, problem.key.split("/")[2]) for problem in report.problems] == [
        ("corrupt_chunk", "chunk"),
        ("corrupt_head", "head"),
        ("corrupt_manifest", "manifest"),
        ("corrupt_pack", "chunk"),
        ("corrupt_pack", "pack"),
        ("missing_manifest", "gone"),
        ("missing_pack", "lost"),
    ]
    assert "v0/default/stranger" in report.unreferenced
    assert await bench.read(refs["pack"]) == {"pages.img": noise(64 << 10, 1)}
    for name in ("lost", "chunk", "manifest"):
        with pytest.raises(Corrupt):
            await bench.read(refs[name])


async def test_check_looks_at_one_tenant_if_asked(bench, objects):
    await bench.write({"pages.img": noise(PAGE)}, tenant="acme")
    await bench.write({"pages.img": noise(PAGE)}, tenant="globex")
    await objects.delete((await keys_of(objects, "v0/globex/session/packs/"))[0])
    assert (await bench.store.check("acme")).clean
    assert not (await bench.store.check("globex")).clean
    assert not (await bench.store.check()).clean


async def test_a_lost_key_is_told_from_lost_data(bench, tmp_path, objects):
    await bench.write({"pages.img": noise(PAGE)})
    stranger = StoreBench(tmp_path, objects=objects, seed=5)
    report = await stranger.store.check()
    assert [problem.kind for problem in report.problems] == [ProblemKind.MISSING_KEY]


async def test_a_failed_read_leaves_no_file(bench, objects, tmp_path):
    stored = await bench.write({"pages.img": noise(4 << 20), "upper.tar": noise(512)})
    pack = (await keys_of(objects, "v0/default/session/packs/"))[0]
    data = await objects.get(pack)
    await objects.put(pack, data[: len(data) // 2])
    with pytest.raises(Corrupt):
        await bench.store.read(stored.ref, tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []


async def test_a_head_neither_retreats_from_elsewhere_nor_advances_backwards(bench):
    refs = [(await bench.write({"pages.img": noise(PAGE)}, sequence=sequence)).ref for sequence in (1, 2)]
    heads = bench.store._outside.heads
    await bench.write({"pages.img": noise(PAGE)}, sequence=3)
    await heads.retreat(refs[1], to=refs[0])
    assert (await bench.store.head("default", "session")).sequence == 3
    with pytest.raises(StaleRevision):
        await heads.advance(refs[1])
    await bench.assert_clean()


async def test_a_lost_kek_is_told_from_lost_data_and_holds_what_it_would_open(tmp_path, objects):
    bench = StoreBench(tmp_path, objects=objects, keys=FileKeys(tmp_path / "keys", SystemEntropy()))
    await bench.write({"pages.img": noise(PAGE)})
    kek = next((tmp_path / "keys").glob("*/kek"))
    kek.rename(tmp_path / "away")
    report = await bench.store.check()
    assert [problem.kind for problem in report.problems] == [ProblemKind.MISSING_KEY]
    assert str(kek) in report.problems[0].message
    (tmp_path / "away").rename(kek)
    assert (await bench.store.check()).clean
