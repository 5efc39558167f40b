import pytest

from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.errors import StorageFull
from torpor.testing.contracts.objects import ObjectStoreContract


@pytest.fixture
def objects():
    return MemoryObjects()


class TestMemoryObjects(ObjectStoreContract):
    pass


async def test_a_full_memory_store_keeps_what_it_has():
    objects = MemoryObjects(capacity_bytes=10)
    await objects.put("a", b"12345")
    with pytest.raises(StorageFull):
        await objects.put("a", b"12345678901")
    with pytest.raises(StorageFull):
        await objects.put("b", b"123456")
    await objects.put("a", b"1234567890")
    assert [info.key async for info in objects.list("")] == ["a"]
