"""Layout, record, cgroups of either version and the self-made parts of installing: all without a sandbox."""

import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor.cgroup import Cgroup, Hierarchies, hierarchies_of
from torpor.adapters.engines.gvisor.install import RouteFailed, go_version_of, install, list_builds, unpack_archive
from torpor.adapters.engines.gvisor.layout import Layout
from torpor.adapters.engines.gvisor.record import Pause, Phase, Record, read_record, with_pause, write_record
from torpor.domain.errors import EngineError, InvalidArgument, Unsupported
from torpor.ports.engine import InstanceShape

ID = "a" * 20
V1 = """\
30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/freezer rw shared:9 - cgroup cgroup rw,freezer
nonsense
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


def test_paths_of_an_instance_are_below_the_runtime_directory():
    layout = Layout(Path("/run/torpor/h1"))
    assert layout.bundle(ID) == Path(f"/run/torpor/h1/i/{ID}")
    assert layout.netns(ID) == Path(f"/run/torpor/h1/n/{ID}")
    assert layout.socket(ID) == Path(f"/run/torpor/h1/root/runsc-{ID}.sock")


@pytest.mark.parametrize("name", ["", "short", "../../../../etc/pass", "A" * 20])
def test_what_is_no_id_never_becomes_a_path(name):
    with pytest.raises(InvalidArgument):
        Layout(Path("/run")).bundle(name)


def test_a_runtime_directory_that_is_too_long_for_sockets_is_refused():
    Layout(Path("/" + "x" * 60)).check()
    with pytest.raises(InvalidArgument, match="choose a shorter one"):
        Layout(Path("/" + "x" * 90)).check()


def test_a_record_is_read_as_it_was_written(tmp_path):
    shape = InstanceShape(rootfs=Path("/r"), argv=("a", "b"), env=("X=1",), cpus=0.5)
    record = Record(shape=shape, phase=Phase.RUNNING, pause=Pause.YES, processes=((7, 70), (8, 80)), loading=True)
    assert write_record(tmp_path, record) == record
    assert read_record(tmp_path) == record
    assert read_record(tmp_path / "absent") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"shape": {}}'])
def test_a_record_that_was_cut_short_is_none(tmp_path, text):
    (tmp_path / "record.json").write_text(text)
    assert read_record(tmp_path) is None


def test_with_pause_changes_nothing_else():
    record = Record(shape=InstanceShape(rootfs=Path("/r"), argv=("a",)))
    assert with_pause(with_pause(record, Pause.YES), Pause.NO) == record


def test_version_one_controllers_win_over_a_unified_mount_beside_them():
    assert hierarchies_of(V1) == Hierarchies(
        unified=None,
        controllers={
            "cpu": Path("/sys/fs/cgroup/cpu,cpuacct"),
            "cpuacct": Path("/sys/fs/cgroup/cpu,cpuacct"),
            "freezer": Path("/sys/fs/cgroup/freezer"),
        },
    )


def test_version_two_alone_is_the_unified_one():
    assert hierarchies_of(V2) == Hierarchies(unified=Path("/sys/fs/cgroup"), controllers={})


def v2_cgroup(tmp_path, *, frozen):
    place = tmp_path / "torpor" / ID
    place.mkdir(parents=True)
    (place / "cgroup.events").write_text(f"populated 1\nfrozen {int(frozen)}\n")
    (place / "cgroup.procs").write_text("11\n12\n")
    (place / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (place / "memory.current").write_text("4096\n")
    return Cgroup(f"/torpor/{ID}", Hierarchies(unified=tmp_path, controllers={}), SystemClock()), place


async def test_version_two_freezes_by_its_own_file(tmp_path):
    cgroup, place = v2_cgroup(tmp_path, frozen=True)
    await cgroup.freeze()
    assert (place / "cgroup.freeze").read_text() == "1"
    assert cgroup.is_frozen()
    (place / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    await cgroup.thaw()
    assert (place / "cgroup.freeze").read_text() == "0"
    assert not cgroup.is_frozen()


def test_version_two_counts_from_its_own_files(tmp_path):
    cgroup, place = v2_cgroup(tmp_path, frozen=False)
    cgroup.forbid_swap()
    assert cgroup.usage() == {"cpu_s": 2.5, "memory_bytes": 4096.0}
    assert cgroup.pids() == (11, 12)
    assert (place / "memory.swap.max").read_text() == "0"


async def test_version_one_freezes_by_the_freezer(tmp_path):
    for controller in ("freezer", "cpuacct", "memory"):
        (tmp_path / controller / ID).mkdir(parents=True)
    (tmp_path / "cpuacct" / ID / "cpuacct.usage").write_text("1500000000\n")
    (tmp_path / "memory" / ID / "memory.usage_in_bytes").write_text("8192\n")
    hierarchies = Hierarchies(unified=None, controllers={c: tmp_path / c for c in ("freezer", "cpuacct", "memory")})
    cgroup = Cgroup(f"/{ID}", hierarchies, SystemClock())
    await cgroup.freeze()
    assert (tmp_path / "freezer" / ID / "freezer.state").read_text() == "FROZEN"
    assert cgroup.is_frozen()
    await cgroup.thaw()
    assert not cgroup.is_frozen()
    cgroup.forbid_swap()
    assert (tmp_path / "memory" / ID / "memory.swappiness").read_text() == "0"
    assert cgroup.usage() == {"cpu_s": 1.5, "memory_bytes": 8192.0}


async def test_a_host_without_a_freezer_says_so():
    cgroup = Cgroup(f"/{ID}", Hierarchies(unified=None, controllers={}), SystemClock())
    assert not cgroup.can_freeze
    with pytest.raises(Unsupported, match="no cgroup freezer"):
        await cgroup.freeze()


async def test_an_absent_cgroup_counts_nothing_and_is_removed_already(tmp_path):
    cgroup = Cgroup(f"/{ID}", Hierarchies(unified=tmp_path, controllers={}), SystemClock())
    assert cgroup.usage() == {"cpu_s": 0.0, "memory_bytes": 0.0}
    assert cgroup.pids() == ()
    assert not cgroup.is_frozen()
    await cgroup.remove()
    with pytest.raises(EngineError):
        await cgroup.freeze()


def test_builds_are_listed_with_the_latest_last_and_broken_ones_passed_over(tmp_path):
    for number, name in enumerate(("one", "two")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "runsc").touch()
        build = {"build": name, "runsc": "runsc", "version": "v", "sha256": "0", "route": "path", "probe": {}}
        (folder / "build.json").write_text(json.dumps(build))
        os.utime(folder / "build.json", ns=(number, number))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "build.json").write_text("{")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "build.json").write_text((tmp_path / "one" / "build.json").read_text())
    assert [(build.build, build.runsc) for build in list_builds(tmp_path)] == [
        ("one", tmp_path / "one" / "runsc"),
        ("two", tmp_path / "two" / "runsc"),
    ]


async def test_an_installed_build_is_used_again(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "runsc").touch()
    build = {"build": "one", "runsc": "runsc", "version": "v1", "sha256": "0", "route": "path", "probe": {}}
    (tmp_path / "one" / "build.json").write_text(json.dumps(build))
    said = []
    assert (await install(tmp_path, progress=said.append, clock=SystemClock())).build == "one"
    assert said == ["gVisor v1 is already installed (one)"]


async def test_the_error_tells_the_reason_of_every_route_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    said = []
    with pytest.raises(Unsupported) as caught:
        await install(tmp_path / "e", progress=said.append, clock=SystemClock(), routes=("path", "go", "distribution"))
    assert caught.value.details["routes"] == {
        "path": "there is no runsc on PATH",
        "go": "there is no go on PATH",
        "distribution": "this is no Debian or Ubuntu",
    }
    assert said[0] == "path: there is no runsc on PATH"
    assert list((tmp_path / "e").iterdir()) == []


@pytest.mark.parametrize(("said", "version"), [("go1.26.8", (1, 26)), ("go1.21", (1, 21)), ("devel", (0,)), ("", (0,))])
def test_the_version_of_go_is_read(said, version):
    assert go_version_of(said) == version


def archive_of(tmp_path, *names):
    archive = tmp_path / "gvisor.tar.bz2"
    with tarfile.open(archive, "w:bz2") as members:
        for name in names:
            member = tmp_path / "member"
            member.write_text(name)
            members.add(member, arcname=name)
    return archive, hashlib.sha512(archive.read_bytes()).hexdigest()


def test_a_release_archive_is_unpacked_with_its_sidecars(tmp_path):
    archive, digest = archive_of(tmp_path, "release/runsc", "release/gvisor-bin/gvisor_sentry")
    folder = tmp_path / "folder"
    folder.mkdir()
    unpack_archive(archive, digest, folder)
    assert (folder / "runsc").read_text() == "release/runsc"
    assert (folder / "runsc").stat().st_mode & 0o111
    assert (folder / "gvisor-bin" / "gvisor_sentry").exists()


def test_an_archive_with_another_digest_is_refused(tmp_path):
    archive, _ = archive_of(tmp_path, "runsc")
    with pytest.raises(RouteFailed, match="sha512"):
        unpack_archive(archive, "0" * 128, tmp_path)


def test_an_archive_that_reaches_outside_is_refused(tmp_path):
    archive, digest = archive_of(tmp_path, "../../escaped")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RouteFailed, match="unpack"):
        unpack_archive(archive, digest, tmp_path / "folder")
    assert not (tmp_path.parent / "escaped").exists()


def test_an_archive_without_runsc_is_refused(tmp_path):
    archive, digest = archive_of(tmp_path, "readme")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RouteFailed, match="no runsc"):
        unpack_archive(archive, digest, tmp_path / "folder")


@pytest.mark.parametrize("counts_swap", [False, True])
def test_a_memory_limit_is_lifted_and_set_again_in_either_version(tmp_path, counts_swap):
    two, one = tmp_path / "two" / ID, tmp_path / "memory" / ID
    two.mkdir(parents=True)
    one.mkdir(parents=True)
    names = ["memory.limit_in_bytes", *(["memory.memsw.limit_in_bytes"] if counts_swap else [])]
    for file in (two / "memory.max", *(one / name for name in names)):
        file.write_text("7")
    second = Cgroup(f"/{ID}", Hierarchies(unified=tmp_path / "two", controllers={}), SystemClock())
    first = Cgroup(f"/{ID}", Hierarchies(unified=None, controllers={"memory": tmp_path / "memory"}), SystemClock())
    for cgroup in (first, second):
        cgroup.limit_memory(None)
    assert (two / "memory.max").read_text() == "max"
    assert {(one / name).read_text() for name in names} == {"-1"}
    for cgroup in (first, second):
        cgroup.limit_memory(5)
    assert (two / "memory.max").read_text() == "5"
    assert {(one / name).read_text() for name in names} == {"5"}
    assert sorted(path.name for path in one.iterdir()) == sorted(names)
