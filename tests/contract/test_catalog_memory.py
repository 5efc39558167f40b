import pytest

from torpor.adapters.catalog.memory import MemoryCatalog
from torpor.testing.contracts.catalog import CatalogContract


class TestMemoryCatalog(CatalogContract):
    @pytest.fixture
    def catalog(self) -> MemoryCatalog:
        return MemoryCatalog()
