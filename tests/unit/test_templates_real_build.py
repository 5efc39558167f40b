"""A template is really built: from this machine's archives, or from the layer that set-up kept of them."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from torpor.adapters.templates import DATA, build_rootfs, built_rootfs
from torpor.adapters.templates.digest import digest_tree

GUEST_LIB = Path(__file__).resolve().parents[2] / "src"

pytestmark = pytest.mark.engine


def said_nothing(line: str) -> None:
    del line


async def test_a_built_template_is_complete_named_by_its_digest_and_built_once(tmp_path):
    built = await build_rootfs(DATA, tmp_path, guest_lib=GUEST_LIB, progress=said_nothing)
    assert built.rootfs == tmp_path / built.digest / "rootfs"
    assert built_rootfs(tmp_path, built.digest) == built
    assert digest_tree(built.rootfs).digest == built.digest
    assert {"python3", "python3-pandas", "bash"} <= built.packages.keys()
    again = await build_rootfs(DATA, tmp_path, guest_lib=GUEST_LIB, progress=said_nothing)
    assert again == built
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".lock", ".logs", built.digest]
    _carries_nothing_of_the_host(built.rootfs)
    _starts_from_byte_code(built.rootfs)


async def test_a_build_that_is_given_up_leaves_nothing(tmp_path):
    copying = asyncio.Event()

    def progress(line: str) -> None:
        if line == "copying the layers":
            copying.set()

    async with asyncio.TaskGroup() as group:
        build = group.create_task(build_rootfs(DATA, tmp_path, guest_lib=GUEST_LIB, progress=progress))
        await copying.wait()
        build.cancel()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".lock", ".logs"]


def _starts_from_byte_code(root: Path) -> None:
    """Nothing is compiled at the first import: that would be paid again by every new session."""
    argv = ["chroot", root, "/usr/bin/python3", "-B", "-v", "/opt/torpor/warmup.py"]
    imported = subprocess.run(
        argv, check=True, capture_output=True, text=True, env={"PATH": "/usr/sbin:/usr/bin"}
    ).stderr
    assert "pandas/core/frame" in imported
    compiled = [
        line for line in imported.splitlines() if line.startswith("# code object from '") and ".pyc" not in line
    ]
    assert compiled == []


def _carries_nothing_of_the_host(root: Path) -> None:
    assert (root / "etc/machine-id").read_text() == ""
    assert (root / "etc/hostname").read_text() == "torpor\n"
    assert list((root / "dev").iterdir()) == []
    assert not (root / "etc/apt/apt.conf.d/99mmdebstrap").exists()
    assert list((root / "var/lib/apt/lists").iterdir()) == []
