"""A changed pin is picked up while a build of an earlier one is installed."""

from __future__ import annotations

import json
import os

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor.install import PINNED_VERSION, fits_pins, install, list_builds


def put_build(engines, name, *, version, route="go", age_s=0):
    folder = engines / name
    folder.mkdir(parents=True)
    (folder / "runsc").write_bytes(b"")
    record = folder / "build.json"
    described = {"build": name, "runsc": "runsc", "version": version, "sha256": "0", "route": route}
    record.write_text(json.dumps(described))
    os.utime(record, (1_000_000 - age_s, 1_000_000 - age_s))


def test_a_build_of_an_earlier_pin_does_not_fit_and_one_of_the_hosts_own_does(tmp_path):
    put_build(tmp_path, "old", version="torpor-20200101", age_s=9)
    put_build(tmp_path, "new", version=PINNED_VERSION, age_s=8)
    put_build(tmp_path, "path", version="release-20990101.0", route="path", age_s=7)
    put_build(tmp_path, "archive", version="release-20200101.0", route="archive")
    assert [(build.build, fits_pins(build)) for build in list_builds(tmp_path)] == [
        ("old", False),
        ("new", True),
        ("path", True),
        ("archive", False),
    ]


async def test_a_build_under_the_present_pin_is_preferred_to_a_later_installed_one_of_another(tmp_path):
    put_build(tmp_path, "present", version=PINNED_VERSION, age_s=9)
    put_build(tmp_path, "other", version="torpor-20200101")
    chosen = await install(tmp_path, progress=lambda _line: None, clock=SystemClock())
    assert chosen.build == "present"
    assert list_builds(tmp_path)[-1].build == "present"
