import pytest

from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.adapters.keys.memory import MemoryKeys
from torpor.testing.contracts.keys import KeyStoreContract


@pytest.fixture
def keys():
    return MemoryKeys(SeededEntropy(1))


class TestMemoryKeys(KeyStoreContract):
    pass
