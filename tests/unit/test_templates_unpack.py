"""Laying a tar over a tree: removals in both spellings, links, and names that lead out."""

from __future__ import annotations

import io
import tarfile

import pytest

from torpor.adapters.templates.unpack import lay_over


def archive_of(*members):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
            if kind in {tarfile.SYMTYPE, tarfile.LNKTYPE}:
                member.linkname = content
            body = content.encode() if kind == tarfile.REGTYPE else b""
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    data.seek(0)
    return tarfile.open(fileobj=data, mode="r|")


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr("os.chown", lambda *_, **__: None)  # owners need root
    tree = tmp_path / "tree"
    (tree / "folder").mkdir(parents=True)
    for name in ("old", "other", "folder/inner"):
        (tree / name).write_text("below")
    return tree


def test_files_replace_what_was_there_and_a_link_there_is_not_followed(root, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    (root / "link").symlink_to(outside)
    lay_over(archive_of(("./old", tarfile.REGTYPE, "above"), ("link", tarfile.REGTYPE, "above")), str(root))
    assert (root / "old").read_text() == (root / "link").read_text() == "above"
    assert outside.read_text() == "untouched"


def test_a_whiteout_of_an_overlay_removes_and_so_does_a_hard_link_to_one(root):
    lay_over(archive_of(("./old", tarfile.CHRTYPE, ""), ("./folder", tarfile.LNKTYPE, "./old")), str(root))
    assert sorted(path.name for path in root.iterdir()) == ["other"]


def test_a_whiteout_of_a_container_layer_removes_one_name_or_all_of_a_folder(root):
    layer = archive_of(
        (".wh.old", tarfile.REGTYPE, ""),
        ("folder/.wh..wh..opq", tarfile.REGTYPE, ""),
        ("folder/new", tarfile.REGTYPE, "above"),
    )
    lay_over(layer, str(root))
    assert not (root / "old").exists()
    assert [path.name for path in (root / "folder").iterdir()] == ["new"]


def test_a_name_that_leads_upwards_is_refused_and_a_device_is_left_out(root):
    with pytest.raises(tarfile.TarError, match="leads upwards"):
        lay_over(archive_of(("../out", tarfile.REGTYPE, "x")), str(root))
    lay_over(archive_of(("disk", tarfile.BLKTYPE, "")), str(root))
    assert not (root / "disk").exists()


def test_a_folder_takes_the_place_of_a_file(root):
    lay_over(archive_of(("old", tarfile.DIRTYPE, ""), ("old/x", tarfile.REGTYPE, "above")), str(root))
    assert (root / "old/x").read_text() == "above"
