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
