"""What a restore depends on is compared before anything starts, and what differs is named."""

from pathlib import Path

import pytest

from torpor.adapters.engines.gvisor.commands import Features, SpecPlaces, oci_spec
from torpor.adapters.engines.gvisor.images import MEMORY_FILES, check_files, check_requirements, requirements_of
from torpor.domain.errors import EngineError, Unsupported
from torpor.ports.engine import EngineCapabilities, InstanceShape

SHAPE = InstanceShape(rootfs=Path("/rootfs"), argv=("/bin/init",))
SPEC = oci_spec(SHAPE, SpecPlaces(Path("/b"), Path("/n"), "/c"), Features(rootfs_tar=True, inner_cgroup=True))


def present(**changes):
    capabilities = EngineCapabilities(
        engine="gvisor", version="v", build="b1", filesystem_part=True, freeze=True, cpu_flags=("aes", "avx")
    )
    return {**requirements_of(capabilities, SHAPE, SPEC), **changes}


def refusal(required, here):
    with pytest.raises(Unsupported) as caught:
        check_requirements(required, here)
    return caught.value


def test_equal_requirements_pass():
    check_requirements(present(), present())


def test_a_host_with_more_cpu_flags_passes():
    check_requirements(present(), present(cpu_flags=["aes", "avx", "avx512f"]))


def test_another_version_string_of_the_same_build_passes():
    check_requirements(present(version="older text"), present())


def test_a_missing_cpu_flag_is_named():
    error = refusal(present(), present(cpu_flags=["aes"]))
    assert error.details["differs"] == {"cpu_flags": {"required": ["avx"], "present": []}}
    assert error.message.startswith("cannot restore here: cpu_flags differs;")


def test_another_build_is_named_with_both():
    error = refusal(present(build="b0"), present())
    assert error.details["differs"] == {"build": {"required": "b0", "present": "b1"}}


@pytest.mark.parametrize("name", ["engine", "image_format", "overlay", "disk_bytes", "network", "spec_version"])
def test_every_other_requirement_must_be_equal(name):
    assert set(refusal(present(**{name: "else"}), present()).details["differs"]) == {name}


def test_the_part_of_the_spec_that_differs_is_named():
    other = dict(present()["spec"])
    other["mounts"] = other["mounts"][:-1]
    assert set(refusal(present(spec=other), present()).details["differs"]) == {"spec.mounts"}


def test_requirements_of_nothing_name_everything():
    differs = set(refusal({}, present()).details["differs"])
    assert {"engine", "build", "overlay", "network", "spec.process", "spec.mounts"} <= differs


def test_all_differences_are_told_at_once():
    error = refusal(present(build="b0", overlay="none"), present())
    assert "build, overlay differ;" in error.message


def test_an_image_needs_all_of_its_files_with_content(tmp_path):
    for name in MEMORY_FILES:
        (tmp_path / name).write_bytes(b"x")
    check_files(tmp_path, MEMORY_FILES)
    (tmp_path / "pages.img").write_bytes(b"")
    with pytest.raises(EngineError, match=r"pages\.img is missing or empty"):
        check_files(tmp_path, MEMORY_FILES)
