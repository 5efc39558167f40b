"""Folders for plaintext images: what is no mount of memory, or a full one, says so by type."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from torpor.adapters.host.staging import MemoryStaging
from torpor.domain.errors import StorageFull, Unavailable


async def test_a_folder_is_closed_to_others_and_goes_with_its_block(tmp_path):
    async with MemoryStaging(tmp_path).folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "pages.img").write_bytes(b"plain")
    assert list(tmp_path.iterdir()) == []


async def test_a_root_that_is_gone_or_full_is_told_by_type(tmp_path, monkeypatch):
    with pytest.raises(Unavailable):
        async with MemoryStaging(tmp_path / "absent").folder():
            raise AssertionError("never entered")

    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StorageFull):
        async with MemoryStaging(tmp_path).folder():
            raise AssertionError("never entered")


async def test_blank_memory_is_made_before_anybody_asks_and_then_of_the_size_that_was_asked_for(tmp_path):
    staging = MemoryStaging(tmp_path, blank_bytes_max=1 << 20)
    await staging.replenish(default_bytes=8192)
    async with staging.folder() as folder:
        assert staging.take_blank(folder / "first", 10000)
        assert (folder / "first").stat().st_size == 8192
        await staging.replenish(default_bytes=8192)
        assert not staging.take_blank(folder / "small", 100)
        assert staging.take_blank(folder / "second", 10000)
        assert (folder / "second").stat().st_size == 10000


async def test_without_a_wish_and_without_an_allowance_there_is_no_blank(tmp_path):
    async with MemoryStaging(tmp_path, blank_bytes_max=1 << 20).folder() as folder:
        assert not MemoryStaging(tmp_path, blank_bytes_max=1 << 20).take_blank(folder / "file", 4096)
    staging = MemoryStaging(tmp_path)
    await staging.replenish(default_bytes=4096)
    async with staging.folder() as folder:
        assert not staging.take_blank(folder / "file", 4096)
