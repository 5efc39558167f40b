"""The way down: each thing that may be wrong with a snapshot or its node, and the next honest step."""

from __future__ import annotations

import asyncio

import pytest

from torpor.adapters.engines.fake import FakeHost
from torpor.adapters.engines.fake.image import FILESYSTEM_FILE, MEMORY_FILE
from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.errors import (
    Conflict,
    Corrupt,
    EngineError,
    GuestError,
    KeyDestroyed,
    NotFound,
    StorageFull,
    Unavailable,
    Unsupported,
)
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.lifecycle import Started
from torpor.domain.session import Status
from torpor.domain.snapshot import SnapshotRef
from torpor.services.requests import CreateRequest, Outcome
from torpor.store.layout import manifest_key, pack_key
from torpor.testing.node import FakeMachine, fake_engine, open_fake

DISK_ONLY = Outcome.RESTORED_FILESYSTEM


class WatchedObjects(MemoryObjects):
    """Counts ranged reads of packs, and raises ``error`` at them while it is set."""

    def __init__(self):
        super().__init__()
        self.reads_count = 0
        self.error = None

    async def get_range(self, key, *, offset, size):
        if "/packs/" in key and TENANT in key:
            self.reads_count += 1
            if self.error is not None:
                raise self.error
        return await super().get_range(key, offset=offset, size=size)


@pytest.fixture
def machine():
    return FakeMachine(objects=WatchedObjects())


@pytest.fixture
async def node(machine):
    async with open_fake(machine) as opened:
        await begin(opened)
        yield opened


async def value(node, source):
    burst = await node.sessions.code(TENANT, "day", source)
    assert burst.result.error is None, burst.result.error
    return burst.result.result["text/plain"] if burst.result.result else ""


async def file(node):
    return b"".join([piece async for piece in node.sessions.read_file(TENANT, "day", "/root/note")]).decode()


async def begin(node):
    """``day``: two snapshots; in memory x is 1 in the first and 2 in the second, on disk the note says the same."""
    await node.sessions.create(TENANT, CreateRequest(name="day"))
    for number in ("1", "2"):
        await value(node, f"set x {number}")
        await write(node, number)
        await node.sessions.pause(TENANT, "day")


async def write(node, text):
    async def data():
        yield text.encode()

    await node.sessions.write_file(TENANT, "day", "/root/note", data())


async def newest(node):
    return SnapshotRef.from_json((await node.sessions.get(TENANT, "day")).snapshot.ref)


async def own_chunk(node, part):
    """A chunk of that part of the newest snapshot which the session stored itself."""
    manifest = await node.store.open(await newest(node))
    chunks = [manifest.chunks[extent.chunk_index] for extent in manifest.part(part).extents]
    return next((c, manifest.packs[c.pack]) for c in chunks if manifest.packs[c.pack].tenant == TENANT)


async def flip(node, objects, part):
    """Change one byte of what is stored of that part."""
    chunk, pack = await own_chunk(node, part)
    data = bytearray(await objects.get(pack_key(pack)))
    data[chunk.offset_bytes + 20] ^= 1
    await objects.put(pack_key(pack), bytes(data))


async def assert_disk_only(node, *, because):
    """It comes back as its newest disk, says so and why, and nothing passes for its memory."""
    session, told = await node.sessions.resume(TENANT, "day")
    assert (session.status, told.outcome) == (Status.RUNNING, DISK_ONLY)
    assert [because in why for why in told.stepped_down] == [True]
    assert await file(node) == "2"
    assert (await node.sessions.code(TENANT, "day", "get x")).result.error is not None


async def assert_next_pause_is_sound(node):
    """The snapshot after a step down shares nothing with what could not be read."""
    await value(node, "set x 3")
    paused = await node.sessions.pause(TENANT, "day")
    manifest = await node.store.open(SnapshotRef.from_json(paused.snapshot.ref))
    assert manifest.parent is None
    assert not paused.distrusts_snapshot
    _, told = await node.sessions.resume(TENANT, "day")
    assert told.outcome is Outcome.RESUMED
    assert await value(node, "get x") == "3"


async def test_a_flipped_byte_of_the_memory_leaves_the_disk_and_is_not_handed_on(node, machine):
    await flip(node, machine.objects, MEMORY_FILE)
    await assert_disk_only(node, because="cannot read v0/")
    assert (await node.sessions.get(TENANT, "day")).distrusts_snapshot
    await assert_next_pause_is_sound(node)


async def test_a_distrust_outlives_the_server(machine):
    async with open_fake(machine) as first:
        await begin(first)
        await flip(first, machine.objects, MEMORY_FILE)
        await first.sessions.resume(TENANT, "day")
    async with open_fake(machine) as second:
        await assert_next_pause_is_sound(second)


async def test_a_flipped_byte_of_the_disk_alone_harms_no_resume(node, machine):
    await flip(node, machine.objects, FILESYSTEM_FILE)
    _, told = await node.sessions.resume(TENANT, "day")
    assert (told.outcome, told.stepped_down) == (Outcome.RESUMED, ())


async def test_a_lost_pack_of_both_parts_is_data_loss_and_the_session_stays_paused(node, machine):
    _, pack = await own_chunk(node, MEMORY_FILE)
    data = await machine.objects.get(pack_key(pack))
    await machine.objects.delete(pack_key(pack))
    for _ in range(2):
        with pytest.raises(Corrupt, match="missing"):
            await node.sessions.code(TENANT, "day", "get x")
        assert (await node.sessions.get(TENANT, "day")).status is Status.PAUSED_LOCAL
    await machine.objects.put(pack_key(pack), data)
    assert await value(node, "get x") == "2"


async def test_after_a_lost_pack_the_older_snapshot_serves_whoever_allows_it(node, machine):
    _, pack = await own_chunk(node, MEMORY_FILE)
    await machine.objects.delete(pack_key(pack))
    session, told = await node.sessions.resume(TENANT, "day", allow_older=True)
    assert (session.status, told.outcome) == (Status.RUNNING, Outcome.RESTORED_OLDER)
    assert "missing" in told.stepped_down[0]
    assert (await value(node, "get x"), await file(node)) == ("1", "1")
    await assert_next_pause_is_sound(node)


async def test_an_older_snapshot_says_how_long_ago_it_was_taken(node, machine):
    paused = await node.sessions.get(TENANT, "day")
    older = (await node.store.history(TENANT, paused.id))[1]
    await flip(node, machine.objects, MEMORY_FILE)
    _, told = await node.sessions.resume(TENANT, "day", allow_older=True)
    instant_s = (await node.store.open(older)).meta["instant_s"]
    assert instant_s < paused.paused_at_s
    assert told.gap_s == pytest.approx(told.wall_time_s - instant_s)


async def test_a_lost_manifest_is_not_found_and_the_older_snapshot_serves_whoever_allows_it(node, machine):
    await machine.objects.delete(manifest_key(await newest(node)))
    with pytest.raises(NotFound):
        await node.sessions.resume(TENANT, "day")
    _, told = await node.sessions.resume(TENANT, "day", allow_older=True)
    assert told.outcome is Outcome.RESTORED_OLDER
    await assert_next_pause_is_sound(node)


async def test_where_there_is_no_older_snapshot_the_disk_serves(machine):
    async with open_fake(machine) as node:
        await node.sessions.create(TENANT, CreateRequest(name="day"))
        await write(node, "2")
        await node.sessions.pause(TENANT, "day")
        await flip(node, machine.objects, MEMORY_FILE)
        _, told = await node.sessions.resume(TENANT, "day", allow_older=True)
        assert told.outcome is DISK_ONLY


async def test_a_sound_newest_snapshot_is_never_passed_over_for_an_older_one(node):
    _, told = await node.sessions.resume(TENANT, "day", allow_older=True)
    assert (told.outcome, await value(node, "get x")) == (Outcome.RESUMED, "2")


async def test_a_missing_kek_is_named_and_once_it_is_back_the_session_resumes(tmp_path):
    machine = FakeMachine(keys=FileKeys(tmp_path / "keys", SystemEntropy()))
    async with open_fake(machine) as node:
        await begin(node)
        kek = tmp_path / "keys" / TENANT / "kek"
        kek.rename(tmp_path / "away")
        for allow_older in (False, True):
            with pytest.raises(Unsupported, match="kek is missing") as told:
                await node.sessions.resume(TENANT, "day", allow_older=allow_older)
            session = await node.sessions.get(TENANT, "day")
            assert (session.status, session.last_error_code) == (Status.PAUSED_LOCAL, Unsupported.code)
            assert told.value.details["missing_key"] == str(kek)
        (tmp_path / "away").rename(kek)
        _, told = await node.sessions.resume(TENANT, "day")
        assert (told.outcome, await value(node, "get x")) == (Outcome.RESUMED, "2")


async def test_a_destroyed_key_ends_it_there(node, machine):
    session = await node.sessions.get(TENANT, "day")
    await machine.keys.destroy(TENANT, session.id)
    with pytest.raises(KeyDestroyed):
        await node.sessions.resume(TENANT, "day", allow_older=True)


async def test_another_processor_gets_the_disk_under_the_same_build(machine):
    async with open_fake(machine, engines=[fake_engine(machine.host)]) as first:
        await begin(first)
    async with open_fake(machine, engines=[fake_engine(machine.host, cpu_flags=("aes",))]) as second:
        await assert_disk_only(second, because="cpu_flags differ")
        session = await second.sessions.get(TENANT, "day")
        assert not session.distrusts_snapshot, "its bytes are sound: the next pause may share them"
        await second.sessions.pause(TENANT, "day")
        assert (await second.store.check()).clean


async def test_another_processor_with_all_its_flags_gets_the_memory(machine):
    async with open_fake(machine, engines=[fake_engine(machine.host)]) as first:
        await begin(first)
    async with open_fake(machine, engines=[fake_engine(machine.host, cpu_flags=("aes", "avx2", "avx512f"))]) as second:
        assert await value(second, "get x") == "2"


async def test_a_missing_build_is_named_and_the_disk_comes_back_under_the_one_that_is_there(machine):
    async with open_fake(machine, engines=[fake_engine(machine.host, "fake-1")]) as first:
        await begin(first)
    async with open_fake(machine, engines=[fake_engine(FakeHost(), "fake-2")]) as second:
        await assert_disk_only(second, because="needs engine build fake-1, installed are fake-2")
        paused = await second.sessions.pause(TENANT, "day")
        assert paused.snapshot.engine_build == "fake-2"
        with pytest.raises(Unsupported, match="fake-1"):
            await second.sessions.create(TENANT, CreateRequest())
        _, told = await second.sessions.resume(TENANT, "day")
        assert told.outcome is Outcome.RESUMED


async def test_a_restore_that_fails_once_is_tried_again_from_the_image_that_was_kept(node, machine):
    node.engine.fail("restore", EngineError("restore failed: EOF"))
    before = machine.objects.reads_count
    _, told = await node.sessions.resume(TENANT, "day")
    reads_count = machine.objects.reads_count - before
    assert (told.outcome, told.attempts, told.stepped_down) == (Outcome.RESUMED, 2, ())
    await node.sessions.pause(TENANT, "day")
    before = machine.objects.reads_count
    await node.sessions.resume(TENANT, "day")
    assert machine.objects.reads_count - before == reads_count, "the second try fetched nothing"


async def test_a_restore_that_fails_twice_leaves_the_disk_and_the_snapshot_is_trusted(node):
    node.engine.fail("restore", EngineError("restore failed: EOF"), times=2)
    await assert_disk_only(node, because="restore failed: EOF")
    assert not (await node.sessions.get(TENANT, "day")).distrusts_snapshot


async def test_the_older_memory_comes_before_the_disk_where_it_is_allowed(node):
    node.engine.fail("restore", EngineError("restore failed: EOF"), times=2)
    _, told = await node.sessions.resume(TENANT, "day", allow_older=True)
    assert (told.outcome, told.stepped_down) == (Outcome.RESTORED_OLDER, ("restore failed: EOF",))


async def test_the_image_is_kept_until_the_guest_is_ready(node, monkeypatch):
    seen = []
    restore = type(node.engine).restore

    async def watched(engine, instance, directory, **options):
        seen.append((directory / MEMORY_FILE).exists())
        await restore(engine, instance, directory, **options)
        if len(seen) == 1:
            engine.host.kill(instance)  # it dies before it is READY

    monkeypatch.setattr(type(node.engine), "restore", watched)
    _, told = await node.sessions.resume(TENANT, "day")
    assert (seen, told.attempts, told.outcome) == ([True, True], 2, Outcome.RESUMED)


@pytest.mark.parametrize(
    "error", [Unavailable("the store does not answer", retry_after_s=1), StorageFull("no space left")]
)
async def test_an_error_of_the_moment_is_no_reason_to_step_down(node, machine, error):
    machine.objects.error = error
    with pytest.raises(type(error)):
        await node.sessions.resume(TENANT, "day", allow_older=True)
    assert (await node.sessions.get(TENANT, "day")).status is Status.PAUSED_LOCAL
    machine.objects.error = None
    _, told = await node.sessions.resume(TENANT, "day")
    assert (told.outcome, await value(node, "get x")) == (Outcome.RESUMED, "2")


async def test_whoever_shares_a_resume_gets_the_state_that_it_brought(node, machine):
    await flip(node, machine.objects, MEMORY_FILE)
    told = await asyncio.gather(
        *(node.sessions.resume(TENANT, "day", allow_older=True) for _ in range(3)), return_exceptions=True
    )
    assert not [each for each in told if isinstance(each, BaseException)]
    assert [each[1].outcome for each in told if each[1] is not None] == [Outcome.RESTORED_OLDER]


async def test_if_no_rung_holds_the_first_error_is_told_and_nothing_of_the_tries_is_left(node, machine):
    node.engine.fail("restore", GuestError("it died"), times=2)
    node.engine.fail("start", EngineError("start failed: EOF"))
    with pytest.raises(GuestError, match="it died"):
        await node.sessions.resume(TENANT, "day")
    assert set(machine.host.instances) <= node.pool.instances()
    assert await value(node, "get x") == "2"


async def test_a_lost_session_comes_back_as_its_last_snapshot_and_that_is_called_older(node, machine):
    session, _ = await node.sessions.resume(TENANT, "day")
    machine.host.kill(session.instance)
    with pytest.raises((GuestError, Conflict)):
        await value(node, "get x")
    with pytest.raises(Conflict):
        await node.sessions.resume(TENANT, "day")
    _, told = await node.sessions.resume(TENANT, "day", allow_older=True)
    assert (told.outcome, await value(node, "get x")) == (Outcome.RESTORED_OLDER, "2")


async def test_a_distrust_is_recorded_late_if_it_could_not_be_recorded_at_once(node, machine, monkeypatch):
    await flip(node, machine.objects, MEMORY_FILE)
    apply = type(node.services.records).apply
    refusals = [Unavailable("the catalog does not answer", retry_after_s=1)] * 3

    async def unwilling(records, tenant, session, event, **seen):
        if isinstance(event, Started) and refusals:
            raise refusals.pop()
        return await apply(records, tenant, session, event, **seen)

    monkeypatch.setattr(type(node.services.records), "apply", unwilling)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await node.sessions.resume(TENANT, "day")
    await node.sessions.resume(TENANT, "day")
    assert (await node.sessions.get(TENANT, "day")).distrusts_snapshot
    await assert_next_pause_is_sound(node)
