"""The S3 adapter against a real server of the protocol."""

from __future__ import annotations

import asyncio
import random

import pytest

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.clock.virtual import VirtualClock
from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.adapters.objects import bucket as bucket_module
from torpor.adapters.objects.bucket import BucketObjects
from torpor.adapters.objects.faulty import Fault, FaultyObjects
from torpor.adapters.objects.forwarding import Operation
from torpor.adapters.objects.profile_file import profile_credentials
from torpor.domain.errors import Corrupt, StaleRevision, Unavailable
from torpor.domain.ids import DEFAULT_TENANT
from torpor.ports.objects import traffic_noted
from torpor.store.heads import Heads
from torpor.testing.contracts.objects import ObjectStoreContract
from torpor.testing.store import StoreBench


@pytest.fixture
def objects(bucket):
    return bucket


class TestBucketObjects(ObjectStoreContract):
    ETAGS_ARE_DIGESTS = True


async def test_a_large_object_goes_in_parts_and_ranges_of_it_come_back(objects):
    data = random.Random(20).randbytes(20 * 1024 * 1024 + 17)
    info = await objects.put("large", data)
    assert info.etag.strip('"').endswith("-3"), "three parts"
    assert await objects.head("large") == info
    at = 8 * 1024 * 1024 - 5  # over the seam of two parts
    assert await objects.get_range("large", offset=at, size=10) == data[at : at + 10]
    assert await objects.get("large") == data
    with pytest.raises(Corrupt):
        await objects.get_range("large", offset=len(data) - 1, size=2)


async def test_writers_that_race_lose_no_update(s3):
    place = s3.place()
    await BucketObjects(place).put("counter", b"0 start")

    async def add(name: str) -> None:
        mine, won = BucketObjects(place), 0
        while won < 5:
            info = await mine.head("counter")
            count = int((await mine.get("counter")).split()[0])
            try:
                await mine.put_if("counter", f"{count + 1} {name}{won}".encode(), etag=info.etag)
                won += 1
            except StaleRevision:
                await asyncio.sleep(0)

    await asyncio.gather(*(add(name) for name in "abc"))
    assert (await BucketObjects(place).get("counter")).startswith(b"15 ")


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_head_whose_answer_was_lost_is_told_apart_from_one_that_never_was_written(tmp_path, objects, fault):
    faulty = FaultyObjects(objects, VirtualClock(), SeededEntropy(1))
    bench = StoreBench(tmp_path, objects=faulty)
    faulty.fail_next(Operation.PUT_IF, fault)
    heads = Heads(objects, bench.entropy)
    if fault is Fault.AFTER:
        stored = await bench.write({"memory": b"m" * 5000})
        assert await heads.read(DEFAULT_TENANT, "session") == stored.ref
    else:
        request = await bench.request({"memory": b"m" * 5000})
        with pytest.raises(Unavailable):
            await bench.store.write(request)
        assert await heads.read(DEFAULT_TENANT, "session") is None
        stored = await bench.store.write(request)
    assert await bench.read(stored.ref) == {"memory": b"m" * 5000}
    await bench.assert_clean()


async def test_a_listing_of_many_pages_is_whole_and_in_order(objects, monkeypatch):
    monkeypatch.setattr(bucket_module, "LIST_PAGE_COUNT", 3)
    keys = [f"k/{number:02}" for number in range(10)]
    for key in [*keys, "k-before", "k.before", "k0after"]:
        await objects.put(key, b"")
    assert [info.key async for info in objects.list("k/")] == keys
    assert [info.key async for info in objects.list("k/0")] == keys


async def test_two_prefixes_of_a_bucket_do_not_see_each_other(s3):
    one, other = BucketObjects(s3.place()), BucketObjects(s3.place())
    await one.put("a", b"1")
    assert [info.key async for info in other.list("")] == []
    everything = BucketObjects(s3.place(prefix=""))
    assert any(info.key.endswith("/store/a") for info in [info async for info in everything.list("test-")])


async def test_reads_over_the_network_are_noted_for_who_asked(objects):
    await objects.put("a", b"0123456789")
    with traffic_noted() as traffic:
        async with asyncio.TaskGroup() as group:
            group.create_task(objects.get("a"))
            group.create_task(objects.get_range("a", offset=2, size=3))
    await objects.get("a")
    assert (traffic.fetched_bytes, traffic.cached_bytes, traffic.is_cold) == (13, 0, True)


async def test_a_bucket_that_is_not_there_is_named(s3):
    objects = BucketObjects(s3.place(bucket="no-such-bucket"))
    for call in (
        objects.put("a", b"1"),
        objects.put_if("a", b"1", etag='"x"'),
        objects.get("a"),
        anext(objects.list("")),
    ):
        with pytest.raises(Unavailable, match="no such bucket") as refused:
            await call
        assert refused.value.details["retry_after_s"] == 60.0


async def test_a_server_that_is_not_there_is_unavailable(s3):
    objects = BucketObjects(s3.place(endpoint="http://127.0.0.1:9"))
    for call in (
        objects.put("a", b"1"),
        objects.get("a"),
        objects.head("a"),
        objects.delete("a"),
        anext(objects.list("")),
    ):
        with pytest.raises(Unavailable) as refused:
            await call
        assert refused.value.details["retry_after_s"] == 1.0


async def test_a_profile_file_is_enough_to_sign_with(s3, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = tests\naws_secret_access_key = not-a-secret\n")
    credentials = profile_credentials({"AWS_SHARED_CREDENTIALS_FILE": str(file)}, SystemClock())
    objects = BucketObjects(s3.place(), credentials=credentials)
    await objects.put("a", b"1")
    assert await objects.get("a") == b"1"
