"""What a declaration may say, and how its mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from torpor.adapters.templates import parse_declaration, read_declaration
from torpor.adapters.templates.declaration import line_of
from torpor.domain.errors import InvalidArgument, NotFound
from torpor.domain.session import Limits

WHOLE = """
name = "geo"
base = "oci:images/py.tar"
packages = ["gdal-bin", "jq=1.6-1"]
python = ["shapely"]
wheels = "wheels"
commands = ["ldconfig", ["git", "config", "--system", "a.b", "c"]]
user = "user"
workdir = "/workspace"
warmup = "import json"

[env]
GEO = "yes"

[[files]]
path = "/etc/geo.conf"
content = "a"

[[files]]
path = "/opt/tool"
source = "tool"
mode = "0755"
owner = "1000:1000"

[ready]
code = "json"
timeout_s = 5

[limits]
cpus = 1
memory = "512M"
pids = 64
"""


def parsed(text: str):
    return parse_declaration(text, folder=Path("/declared"))


def test_a_whole_declaration_becomes_a_spec_with_paths_beside_the_file():
    spec = parsed(WHOLE)
    assert (spec.name, spec.base) == ("geo", "oci:/declared/images/py.tar")
    assert spec.packages == ("gdal-bin", "jq=1.6-1")
    assert spec.wheels == Path("/declared/wheels")
    assert spec.commands == (("/bin/sh", "-c", "ldconfig"), ("git", "config", "--system", "a.b", "c"))
    assert (spec.user, spec.workdir, spec.warmup) == ("user", "/workspace", "import json\n")
    assert spec.env["GEO"] == "yes"
    assert "PATH" in spec.env
    assert [(file.path, file.source, file.mode, file.owner) for file in spec.files] == [
        ("/etc/geo.conf", None, 0o644, "0:0"),
        ("/opt/tool", Path("/declared/tool"), 0o755, "1000:1000"),
    ]
    assert spec.ready is not None
    assert (spec.ready.code, spec.ready.timeout_s) == ("json", 5.0)
    assert spec.limits == Limits(cpus=1.0, memory_bytes=512 << 20, pids_max=64)


def test_what_is_not_said_is_the_base_template_and_plain():
    spec = parsed('name = "x"')
    assert (spec.base, spec.user, spec.limits, spec.ready) == ("base", "root", Limits(), None)


@pytest.mark.parametrize(
    ("text", "field", "line"),
    [
        ('name = "x"\npackage = ["a"]', "package", 2),
        ('name = "Bad Name"', "name", 1),
        ('name = "x"\n\npackages = ["--option"]', "packages", 3),
        ('name = "x"\npython = ["-r x"]', "python", 2),
        ('name = "x"\ncommands = ["true", []]', "commands", 2),
        ('name = "x"\nwarmup = "def"', "warmup", 2),
        ('name = "x"\nuser = "No One"', "user", 2),
        ('name = "x"\n[env]\nA = 1', "env.A", 3),
        ('name = "x"\n[[files]]\npath = "/a"\ncontent = ""\n[[files]]\npath = "b"\ncontent = ""', "files[1].path", 6),
        ('name = "x"\n[[files]]\npath = "/a"', "files[0].content", 2),
        ('name = "x"\n[[files]]\npath = "/a/../b"\ncontent = ""', "files[0].path", 3),
        ('name = "x"\n[[files]]\npath = "/a"\ncontent = ""\nmode = "rwx"', "files[0].mode", 5),
        ('name = "x"\n[[files]]\npath = "/a"\ncontent = ""\ntypo = 1', "files[0].typo", 5),
        ('name = "x"\n[ready]\ncommand = "a"\ncode = "b"', "ready", 2),
        ('name = "x"\n[limits]\nmemory = "many"', "limits.memory", 3),
        ('name = "x"\n[limits]\npids = 1', "limits.pids", 3),
    ],
)
def test_a_mistake_is_told_with_its_key_and_line(text, field, line):
    with pytest.raises(InvalidArgument) as refused:
        parsed(text)
    assert (refused.value.details["field"], refused.value.details["line"]) == (field, line)
    assert f"line {line}" in refused.value.message


def test_a_file_that_is_no_toml_names_the_line():
    with pytest.raises(InvalidArgument, match="line 2"):
        parsed('name = "x"\nnot toml')


def test_a_name_is_wanted_and_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(InvalidArgument, match="name"):
        parsed("packages = []")
    with pytest.raises(NotFound, match="no such file"):
        read_declaration(tmp_path / "absent.toml")


def test_a_key_inside_another_table_is_not_taken_for_it():
    assert line_of('[env]\nname = "a"\n', "name") is None
