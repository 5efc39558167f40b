"""What is said to runsc, and the frozen spec, word for word. ``--regenerate`` is: run this file as a script."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torpor.adapters.engines.gvisor.commands import (
    Features,
    Runsc,
    SpecPlaces,
    frozen_spec,
    host_pids_max,
    memory_limit_bytes,
    oci_spec,
)
from torpor.domain.errors import InvalidArgument
from torpor.ports.engine import InstanceShape

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
BOTH = Features(rootfs_tar=True, inner_cgroup=True, gofer_netns=True, suid_flag=True, overlay_size=True)
NEITHER = Features()
SHAPE = InstanceShape(
    rootfs=Path("/templates/data/rootfs"),
    argv=("/usr/bin/python3", "-m", "torpor_guest"),
    env=("PATH=/usr/bin:/bin",),
    memory_bytes=512 << 20,
    disk_bytes=256 << 20,
    cpus=1.5,
    pids_max=100,
)
BUNDLE = Path("/run/torpor/h1/i/aaaaaaaaaaaaaaaaaaaa")
PLACES = SpecPlaces(bundle=BUNDLE, netns=Path("/run/torpor/h1/n/aaaaaaaaaaaaaaaaaaaa"), cgroup="/torpor/h1/a")


def spec_text(features):
    return json.dumps(oci_spec(SHAPE, PLACES, features), indent=2) + "\n"


def commands_text():
    """Every command, one per block, one word per line."""
    runsc = Runsc(Path("/engines/b/runsc"), Path("/run/torpor/h1/root"), BOTH)
    name = "aaaaaaaaaaaaaaaaaaaa"
    disk = {"disk_bytes": SHAPE.disk_bytes}
    image = Path("/image")
    blocks = {
        "create": runsc.create(name, BUNDLE, **disk),
        "start": runsc.start(name, BUNDLE, **disk),
        "restore": runsc.restore(name, BUNDLE, image, **disk, background=False),
        "restore in the background": runsc.restore(name, BUNDLE, image, **disk, background=True),
        "checkpoint": runsc.checkpoint(name, image),
        "tar": runsc.tar(name, image / "filesystem.tar"),
        "pause": runsc.pause(name),
        "resume": runsc.resume(name),
        "state": runsc.state(name),
        "wait for a restore": runsc.wait_restore(name),
        "delete": runsc.delete(name),
        "version": runsc.version(),
        "cpu features": runsc.cpu_features(),
        "help": runsc.help("tar"),
        "flags": runsc.global_flags(),
    }
    return "\n".join(f"{title}\n" + "".join(f"    {word}\n" for word in argv) for title, argv in blocks.items())


GOLDENS = {
    "gvisor_spec_v1.json": lambda: spec_text(BOTH),
    "gvisor_spec_v1_bare.json": lambda: spec_text(NEITHER),
    "gvisor_commands.txt": commands_text,
}


@pytest.mark.parametrize("name", GOLDENS)
def test_what_is_said_is_as_it_was(name):
    assert GOLDENS[name]() == (GOLDEN / name).read_text(), f"if this is meant: python {__file__} (a new spec version?)"


def test_the_frozen_spec_says_nothing_of_this_host_or_instance():
    elsewhere = SpecPlaces(bundle=Path("/other"), netns=Path("/other/ns"), cgroup="/other/cgroup")
    moved = InstanceShape(
        rootfs=Path("/other/rootfs"),
        argv=SHAPE.argv,
        env=("LANG=C",),
        memory_bytes=SHAPE.memory_bytes,
        disk_bytes=1 << 30,
        cpus=4,
        pids_max=SHAPE.pids_max,
    )
    assert frozen_spec(oci_spec(moved, elsewhere, BOTH)) == frozen_spec(oci_spec(SHAPE, PLACES, BOTH))


@pytest.mark.parametrize("change", [{"argv": ("/bin/sh",)}, {"memory_bytes": 1 << 30}, {"pids_max": 7}])
def test_what_an_image_depends_on_is_in_the_frozen_spec(change):
    changed = oci_spec(replace(SHAPE, **change), PLACES, BOTH)
    assert frozen_spec(changed) != frozen_spec(oci_spec(SHAPE, PLACES, BOTH))


def test_an_unknown_spec_version_is_refused():
    with pytest.raises(InvalidArgument, match="version 2"):
        oci_spec(InstanceShape(rootfs=Path("/"), argv=("x",), spec_version=2), PLACES, BOTH)


def test_memory_and_disk_and_overhead_bound_the_host():
    assert memory_limit_bytes(SHAPE) == (512 + 256 + 64) << 20


def test_the_host_cap_is_far_above_the_cap_inside():
    assert host_pids_max(SHAPE) == 656


def test_no_word_of_any_command_is_a_shell_string():
    assert "sh -c" not in commands_text()


if __name__ == "__main__":
    for golden, generate in GOLDENS.items():
        (GOLDEN / golden).write_text(generate())
        sys.stdout.write(f"wrote {golden}\n")
