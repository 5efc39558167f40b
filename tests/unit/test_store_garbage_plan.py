"""What may go, when, and in which order: the pure part of garbage collection, and one sweep of each kind."""

import pytest

from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.errors import Conflict
from torpor.domain.snapshot import Lender
from torpor.store.garbage import GRACE_S, MARKS_KEY, Reason, decode_marks, encode_marks
from torpor.store.snapshots import HeadChoice, SnapshotStore, SubjectHead, SubjectWithoutHead, SweepRequest
from torpor.testing.store import StoreBench


class Clock:
    """Wall time that the test sets."""

    now_s = 1000.0

    def wall_s(self):
        return self.now_s

    def monotonic_s(self):
        return 0.0


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def bench(tmp_path, clock):
    bench = StoreBench(tmp_path, objects=MemoryObjects())
    bench.store = SnapshotStore(bench.objects, bench.keys, bench.entropy, clock)
    return bench


async def keys_of(bench):
    return [info.key async for info in bench.objects.list("v0/")]


def reasons(garbage):
    return {one.key.split("/", 2)[2]: one.reason for one in garbage}


async def crash_before_pointer(bench, subject="session", sequence=2):
    """A write whose process died between manifest and pointer."""
    put_if = bench.objects.put_if

    async def die(key, *_args, **_kwargs):
        raise KeyError(key)

    bench.objects.put_if = die
    with pytest.raises(KeyError):
        await bench.write({"a": b"lost" * 9}, subject=subject, sequence=sequence)
    bench.objects.put_if = put_if


async def test_what_lost_its_use_goes_after_the_grace_and_not_before(bench, clock):
    await bench.objects.put("v0/default/session/packs/p", b"of a write that died")
    first = await bench.store.collect_garbage()
    assert (first.removed, reasons(first.plan.wait)) == ((), {"session/packs/p": Reason.UNREFERENCED})
    assert first.plan.wait[0].due_at_s == clock.now_s + GRACE_S
    clock.now_s += GRACE_S - 1
    assert (await bench.store.collect_garbage()).removed == ()
    clock.now_s += 1
    second = await bench.store.collect_garbage()
    assert (reasons(second.removed), second.removed_bytes) == ({"session/packs/p": Reason.UNREFERENCED}, 20)
    assert await keys_of(bench) == []


async def test_a_dry_run_says_all_of_it_and_changes_nothing(bench):
    await bench.objects.put("v0/default/session/packs/p", b"x")
    report = await bench.store.collect_garbage(SweepRequest(dry_run=True, grace_s=0))
    assert (report.removed, reasons(report.plan.remove)) == ((), {"session/packs/p": Reason.UNREFERENCED})
    assert [info.key async for info in bench.objects.list("")] == ["v0/default/session/packs/p"]


async def test_the_two_newest_snapshots_stay_and_the_packs_of_older_ones_follow_them(bench, clock):
    images = [bytes([number]) * 5000 for number in range(4)]
    refs = [(await bench.write({"a": image}, sequence=at)).ref for at, image in enumerate(images, 1)]
    request = SweepRequest(grace_s=10)
    removed = []
    for _ in range(4):
        removed.append(reasons((await bench.store.collect_garbage(request)).removed))
        clock.now_s += 10
    assert [sorted(set(one.values())) for one in removed] == [[], [Reason.SUPERSEDED], [], [Reason.UNREFERENCED]]
    assert await bench.store.history("default", "session") == (refs[3], refs[2])
    assert [await bench.read(ref) for ref in refs[2:]] == [{"a": images[2]}, {"a": images[3]}]
    await bench.assert_clean()


async def test_an_unacknowledged_manifest_goes_and_the_pointer_stays(bench, clock):
    good = await bench.write({"a": b"good"})
    await crash_before_pointer(bench)
    await bench.store.collect_garbage()
    clock.now_s += GRACE_S
    assert reasons((await bench.store.collect_garbage()).removed) == {
        "session/manifests/00000002-snapshot-2": Reason.UNACKNOWLEDGED
    }
    assert await bench.store.head("default", "session") == good.ref
    await bench.assert_clean()


async def test_a_lost_pointer_costs_no_snapshot_unless_nobody_knows_the_subject(bench, clock):
    stored = await bench.write({"a": b"good"})
    await bench.objects.delete("v0/default/session/head")
    for _ in range(3):
        report = await bench.store.collect_garbage()
        assert (report.removed, report.plan.headless) == ((), (Lender("default", "session"),))
        clock.now_s += GRACE_S
    assert await bench.read(stored.ref) == {"a": b"good"}
    request = SweepRequest(abandoned=[Lender("default", "session")])
    await bench.store.collect_garbage(request)
    clock.now_s += GRACE_S
    assert set(reasons((await bench.store.collect_garbage(request)).removed).values()) == {Reason.ABANDONED}


async def test_leftovers_of_a_shredded_subject_go_at_once_but_what_a_fork_names(bench):
    shared = await bench.write({"a": b"shared" * 999})
    own = await bench.write({"a": b"own" * 999}, sequence=2)
    await bench.write({"a": b"shared" * 999}, subject="fork", parent=shared.ref)
    await bench.keys.destroy("default", "session")
    report = await bench.store.collect_garbage()
    assert set(reasons(report.removed).values()) == {Reason.SHREDDED}
    left = [key for key in await keys_of(bench) if key.startswith("v0/default/session/")]
    assert (len(left), len(report.removed)) == (1, 4), own
    await bench.assert_clean()


async def test_packs_that_a_locked_or_broken_manifest_might_name_stay(bench, clock, tmp_path):
    await bench.write({"a": b"x" * 5000})
    await bench.objects.put("v0/default/session/packs/loose", b"x")
    stranger = StoreBench(tmp_path, objects=bench.objects, seed=5)
    stranger.store = SnapshotStore(bench.objects, stranger.keys, bench.entropy, clock)
    report = await stranger.store.collect_garbage(SweepRequest(grace_s=0))
    assert (report.removed, report.plan.wait, report.plan.blocked) == ((), (), ())
    await bench.objects.put("v0/default/other/manifests/00000001-broken", b"no manifest")
    report = await bench.store.collect_garbage(SweepRequest(grace_s=0))
    assert report.removed == ()
    assert reasons(report.plan.wait) == {"session/packs/loose": Reason.UNREFERENCED}
    assert report.plan.blocked[0].startswith("v0/default/other/manifests/00000001-broken: cannot read a manifest")


async def test_a_clock_that_was_set_back_starts_the_grace_anew(bench, clock):
    await bench.objects.put("v0/default/session/packs/p", b"x")
    clock.now_s = 10 * GRACE_S
    await bench.store.collect_garbage()
    clock.now_s = 2 * GRACE_S
    await bench.store.collect_garbage()
    clock.now_s = 3 * GRACE_S - 1
    assert (await bench.store.collect_garbage()).removed == ()
    clock.now_s += 1
    assert len((await bench.store.collect_garbage()).removed) == 1


async def test_a_manifest_that_comes_after_the_survey_keeps_its_packs(bench, clock):
    source = await bench.write({"a": b"x" * 5000})
    data = await bench.objects.get(f"v0/default/session/manifests/00000001-{source.ref.snapshot}")
    await bench.store.delete_snapshot(source.ref)
    await bench.store.collect_garbage()
    clock.now_s += GRACE_S
    put_if = bench.objects.put_if

    async def put_manifest_first(key, marks, *, etag):
        await bench.objects.put(f"v0/default/session/manifests/00000001-{source.ref.snapshot}", data)
        return await put_if(key, marks, etag=etag)

    bench.objects.put_if = put_manifest_first
    await bench.objects.put("v0/default/session/packs/loose", b"new, so that marks are written")
    report = await bench.store.collect_garbage()
    assert (report.removed, len(report.spared)) == ((), 1)
    assert await bench.read(source.ref) == {"a": b"x" * 5000}


async def test_of_two_collections_at_once_one_is_refused(bench):
    await bench.objects.put("v0/default/session/packs/p", b"x")
    put_if = bench.objects.put_if

    async def other_first(key, data, *, etag):
        bench.objects.put_if = put_if
        await bench.store.collect_garbage()
        return await put_if(key, data, etag=etag)

    bench.objects.put_if = other_first
    with pytest.raises(Conflict, match="another collection"):
        await bench.store.collect_garbage()


async def test_marks_come_back_and_anything_else_is_no_marks():
    assert decode_marks(encode_marks({"v0/a": 1.5})) == {"v0/a": 1.5}
    for data in (
        b"",
        b"[]",
        b"null",
        b'{"version":0}',
        b'{"version":1,"marks":{}}',
        b'{"version":0,"marks":{"a":"b"}}',
    ):
        assert decode_marks(data) == {}
    assert not MARKS_KEY.startswith("v0/")


async def subjects_of(bench):
    return [found async for found in bench.store.subjects()]


async def test_the_snapshot_that_counts_is_the_pointers_and_else_the_highest_that_opens(bench):
    first = await bench.write({"a": b"one"})
    second = await bench.write({"a": b"two"}, sequence=2)
    await crash_before_pointer(bench, sequence=3)
    [found] = await subjects_of(bench)
    ahead = ("v0/default/session/manifests/00000003-snapshot-3",)
    assert (found.choice, found.ref, found.ahead) == (HeadChoice.POINTER, second.ref, ahead)
    await bench.objects.delete(ahead[0])
    head = await bench.objects.get("v0/default/session/head")
    await bench.objects.put("v0/default/session/head", head[:-1])
    [found] = await subjects_of(bench)
    assert (found.choice, found.ref) == (HeadChoice.NO_POINTER, second.ref)
    await bench.objects.put("v0/default/session/head", head)
    await bench.objects.delete("v0/default/session/manifests/00000002-snapshot-2")
    [found] = await subjects_of(bench)
    assert isinstance(found, SubjectHead)
    assert (found.choice, found.ref) == (HeadChoice.OLDER, first.ref)
    await bench.keys.destroy("default", "session")
    [found] = await subjects_of(bench)
    assert (type(found), found.is_destroyed) == (SubjectWithoutHead, True)
