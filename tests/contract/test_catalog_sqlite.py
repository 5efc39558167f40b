from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.testing.contracts.catalog import CatalogContract


class TestSqliteCatalog(CatalogContract):
    @pytest.fixture
    async def catalog(self, tmp_path: Path) -> AsyncIterator[SqliteCatalog]:
        catalog = SqliteCatalog(tmp_path / "catalog.db")
        await catalog.open()
        yield catalog
        await catalog.close()

    @pytest.fixture
    async def other(self, tmp_path: Path) -> AsyncIterator[SqliteCatalog]:
        other = SqliteCatalog(tmp_path / "catalog.db")
        await other.open()
        yield other
        await other.close()
