"""Where processes of one home keep what runs, and which of those folders nobody living has."""

from __future__ import annotations

import os
import resource
import subprocess

import pytest

from torpor.apps import config as configuration
from torpor.apps.api.ownership import start_ticks
from torpor.apps.config import Config
from torpor.apps.node import FILES_MAX, Role, open_node, raise_file_limit
from torpor.domain.errors import Unsupported


def test_only_the_folders_of_builds_that_were_killed_are_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(configuration, "RUNTIME_ROOT", tmp_path)
    config = Config.read({"TORPOR_HOME": str(tmp_path / "home")})
    assert Role.dead_builds(config) == ()
    own = Role.build(config)
    killed = subprocess.Popen(["true"])
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    killed.wait()
    dead = (f"b{os.getpid()}-{ticks - 1}", f"b{killed.pid}-{ticks}")
    for name in (*dead, own.runtime_dir.name, "s", "bulk", "b1"):
        (config.runtime_dir / name).mkdir(parents=True)
    found = Role.dead_builds(config)
    assert [role.runtime_dir for role in found] == sorted(config.runtime_dir / name for name in dead)
    assert {role.cgroup for role in found} == {f"/torpor/{config.runtime_dir.name}/{name}" for name in dead}


def test_a_node_may_open_as_many_files_as_the_system_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_file_limit()
        raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert raised == FILES_MAX if hard == resource.RLIM_INFINITY else raised == min(hard, FILES_MAX)


async def test_a_node_and_what_it_starts_never_leave_a_dump_of_their_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(configuration, "RUNTIME_ROOT", tmp_path)
    with pytest.raises(Unsupported, match="no engine is installed"):
        async with open_node(Config.read({"TORPOR_HOME": str(tmp_path / "home")})):
            raise AssertionError("never entered")
    assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)  # from now on: what is given up cannot be taken back
