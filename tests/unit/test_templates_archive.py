"""A root filesystem as one file, and back: the same tree under the same digest, or nothing."""

import asyncio
import io
import os
import tarfile

import pytest

from torpor.adapters.templates.archive import TemplateFolders
from torpor.adapters.templates.digest import digest_tree
from torpor.domain.errors import Corrupt, NotFound


def make_tree(root):
    """A small tree with one of everything that a distribution has. Returns its digest."""
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/python3").write_bytes(os.urandom(100_000))
    (root / "usr/bin/python3").chmod(0o4755)
    os.link(root / "usr/bin/python3", root / "usr/bin/python3.11")
    (root / "bin").symlink_to("usr/bin")
    (root / "dangling").symlink_to("/nowhere")
    (root / "empty").mkdir(mode=0o700)
    os.mkfifo(root / "pipe")
    (root / "usr/naïve name").write_text("x")
    os.utime(root / "usr/bin/python3", (1_577_836_800, 1_577_836_800))
    os.utime(root / "usr", (1_577_836_800, 1_577_836_800))
    return digest_tree(root).digest


@pytest.fixture
def built(tmp_path):
    """Folders with one tree in it, and the tree's digest."""
    into = tmp_path / "templates"
    (into / "new/rootfs").mkdir(parents=True)
    digest = make_tree(into / "new/rootfs")
    (into / "new/template.json").write_text("{}")
    (into / "new").rename(into / digest)
    return TemplateFolders(into), digest


async def packed(folders, digest, tmp_path, name="rootfs.tar"):
    await folders.pack(digest, tmp_path / name)
    return (tmp_path / name).read_bytes()


async def test_a_tree_comes_back_with_its_digest_its_times_and_its_links(built, tmp_path):
    folders, digest = built
    data = await packed(folders, digest, tmp_path)
    assert data == await packed(folders, digest, tmp_path, "again.tar")
    other = TemplateFolders(tmp_path / "elsewhere")
    async with other.workplace() as here:
        (here / "rootfs.tar").write_bytes(data)
        path = await other.unpack(here / "rootfs.tar", digest)
    assert path == tmp_path / "elsewhere" / digest / "rootfs"
    assert digest_tree(path).digest == digest
    assert (path / "usr/bin/python3").stat().st_mtime == (path / "usr").stat().st_mtime == 1_577_836_800
    assert (path / "usr/bin/python3").samefile(path / "usr/bin/python3.11")
    assert (path.parent / "template.json").read_text() == "{}"
    assert sorted(os.listdir(tmp_path / "elsewhere")) == [".lock", digest]


async def test_a_tree_of_another_digest_is_corrupt_and_nothing_of_it_stays(built, tmp_path):
    folders, digest = built
    data = await packed(folders, digest, tmp_path)
    other = TemplateFolders(tmp_path / "elsewhere")
    async with other.workplace() as here:
        (here / "rootfs.tar").write_bytes(data.replace(b"dangling", b"dangles!"))
        with pytest.raises(Corrupt):
            await other.unpack(here / "rootfs.tar", digest)
    assert os.listdir(tmp_path / "elsewhere") == [".lock"]
    assert not other.at(digest).exists()


@pytest.mark.parametrize("name", ["../out", "/out", "link/out", "a", "missing/out"])
async def test_an_archive_that_reaches_outside_is_corrupt(tmp_path, name):
    folders = TemplateFolders(tmp_path / "templates")
    async with folders.workplace() as here:
        with tarfile.open(here / "bad.tar", "w") as archive:
            for made, kind in (("a", tarfile.REGTYPE), ("link", tarfile.SYMTYPE), (name, tarfile.REGTYPE)):
                member = tarfile.TarInfo(made)
                member.type, member.linkname = kind, str(tmp_path) if kind == tarfile.SYMTYPE else ""
                archive.addfile(member, io.BytesIO())
        with pytest.raises(Corrupt, match="out of place"):
            await folders.unpack(here / "bad.tar", "d" * 64)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path.parent / "out").exists()


async def test_packing_what_is_not_there_names_it(tmp_path):
    with pytest.raises(NotFound, match="not on this node"):
        await TemplateFolders(tmp_path).pack("d" * 64, tmp_path / "x")
    await asyncio.sleep(0)


async def test_a_tree_that_was_changed_after_its_build_is_not_packed(built, tmp_path):
    folders, digest = built
    (folders.at(digest) / "later").touch()
    with pytest.raises(Corrupt, match="changed after it was built"):
        await folders.pack(digest, tmp_path / "x")
