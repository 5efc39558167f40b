"""What every object store keeps. Subclass with a fixture ``objects`` that gives an empty store.

A store whose etags are digests of the bytes says so with ``ETAGS_ARE_DIGESTS``.
"""

from __future__ import annotations

import asyncio

import pytest

from torpor.domain.errors import Corrupt, InvalidArgument, NotFound, StaleRevision
from torpor.ports.objects import ObjectStore


class ObjectStoreContract:
    """The suite."""

    ETAGS_ARE_DIGESTS = False

    async def test_what_was_put_is_read_back(self, objects: ObjectStore) -> None:
        info = await objects.put("a/b", b"hello")
        assert (info.key, info.size_bytes) == ("a/b", 5)
        assert await objects.get("a/b") == b"hello"
        assert await objects.head("a/b") == info

    async def test_an_empty_object_is_an_object(self, objects: ObjectStore) -> None:
        await objects.put("empty", b"")
        assert await objects.get("empty") == b""
        assert await objects.get_range("empty", offset=0, size=0) == b""

    async def test_a_put_replaces_and_changes_the_etag(self, objects: ObjectStore) -> None:
        etags = [(await objects.put("a", data)).etag for data in (b"1", b"2", b"2", b"1")]
        assert all(etags)
        assert len(set(etags)) == (2 if self.ETAGS_ARE_DIGESTS else 4)
        assert await objects.get("a") == b"1"

    async def test_reading_what_is_absent_is_not_found(self, objects: ObjectStore) -> None:
        for read in (objects.get("a"), objects.head("a"), objects.get_range("a", offset=0, size=1)):
            with pytest.raises(NotFound):
                await read

    async def test_the_folder_of_a_key_is_not_an_object(self, objects: ObjectStore) -> None:
        await objects.put("a/b", b"1")
        with pytest.raises(NotFound):
            await objects.head("a")

    async def test_a_range_is_exact(self, objects: ObjectStore) -> None:
        await objects.put("a", b"0123456789")
        assert await objects.get_range("a", offset=3, size=4) == b"3456"
        assert await objects.get_range("a", offset=0, size=10) == b"0123456789"

    async def test_a_range_past_the_end_is_corrupt(self, objects: ObjectStore) -> None:
        await objects.put("a", b"0123456789")
        for offset, size in ((3, 8), (10, 1), (99, 1)):
            with pytest.raises(Corrupt):
                await objects.get_range("a", offset=offset, size=size)

    async def test_a_conditional_write_needs_the_current_etag(self, objects: ObjectStore) -> None:
        first = await objects.put_if("head", b"1", etag=None)
        with pytest.raises(StaleRevision):
            await objects.put_if("head", b"x", etag=None)
        second = await objects.put_if("head", b"2", etag=first.etag)
        with pytest.raises(StaleRevision):
            await objects.put_if("head", b"x", etag=first.etag)
        assert await objects.get("head") == b"2"
        assert await objects.head("head") == second

    async def test_a_conditional_write_on_an_absent_object_needs_no_etag(self, objects: ObjectStore) -> None:
        info = await objects.put("head", b"1")
        await objects.delete("head")
        with pytest.raises(StaleRevision):
            await objects.put_if("head", b"2", etag=info.etag)
        assert (await objects.put_if("head", b"2", etag=None)).size_bytes == 1

    async def test_of_many_conditional_writes_at_once_one_wins(self, objects: ObjectStore) -> None:
        writes = [objects.put_if("head", bytes((number,)), etag=None) for number in range(8)]
        results = await asyncio.gather(*writes, return_exceptions=True)
        won = [number for number, result in enumerate(results) if not isinstance(result, StaleRevision)]
        assert len(won) == 1
        assert await objects.get("head") == bytes(won)

    async def test_a_listing_is_in_key_order_and_by_prefix(self, objects: ObjectStore) -> None:
        keys = ["a", "b/c", "b-d/e", "b.f", "b/c0", "b/d/e", "b0/x", "c/1"]
        for key in keys:
            await objects.put(key, key.encode())
        assert [info.key async for info in objects.list("")] == sorted(keys)
        for prefix in ("b", "b/", "b/c", "b/d/", "b/d/e", "b/d/e/f", "zzz", "c/1"):
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert [info.key async for info in objects.list(prefix)] == expected
        assert [info async for info in objects.list("a")] == [await objects.head("a")]

    async def test_deleting_is_idempotent(self, objects: ObjectStore) -> None:
        await objects.put("a/b/c", b"1")
        await objects.put("a/d", b"2")
        await objects.delete("a/b/c")
        await objects.delete("a/b/c")
        await objects.delete("never/was")
        assert [info.key async for info in objects.list("")] == ["a/d"]
        await objects.put("a/b/c", b"3")
        assert await objects.get("a/b/c") == b"3"

    @pytest.mark.parametrize(
        "key", ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "ä", "a b", "a\0", "k" * 513]
    )
    async def test_a_malformed_key_is_refused_everywhere(self, objects: ObjectStore, key: str) -> None:
        calls = (
            lambda: objects.put(key, b""),
            lambda: objects.put_if(key, b"", etag=None),
            lambda: objects.get(key),
            lambda: objects.get_range(key, offset=0, size=0),
            lambda: objects.head(key),
            lambda: objects.delete(key),
        )
        for call in calls:
            with pytest.raises(InvalidArgument) as caught:
                await call()
            assert caught.value.details["field"] == "key"

    async def test_a_prefix_that_leaves_the_store_is_refused(self, objects: ObjectStore) -> None:
        for prefix in ("../", "/", "a/../"):
            with pytest.raises(InvalidArgument):
                [info async for info in objects.list(prefix)]

    async def test_reads_and_writes_of_many_objects_go_on_at_once(self, objects: ObjectStore) -> None:
        await asyncio.gather(*(objects.put(f"many/{n:03}", bytes((n,)) * 1000) for n in range(40)))
        found = await asyncio.gather(*(objects.get(f"many/{n:03}") for n in range(40)))
        assert found == [bytes((n,)) * 1000 for n in range(40)]
