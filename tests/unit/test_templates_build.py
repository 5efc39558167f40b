"""The pure parts of the template builder, its tree work, and what its failures mean."""

import errno
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from torpor.adapters.templates import BASE, DATA, TemplateSpec, built_rootfs, commands, finish, oci, template_named
from torpor.adapters.templates.chamber import outside_argv
from torpor.adapters.templates.digest import digest_tree
from torpor.adapters.templates.workplace import full_disk_named, remove_tree, workplace
from torpor.domain.errors import EngineError, InvalidArgument, NotFound, StorageFull


def said_nothing(line: str) -> None:
    del line


@pytest.fixture
def bare_tree(tmp_path: Path) -> Path:
    """As little of a distribution as finishing needs."""
    root = tmp_path / "rootfs"
    for folder in ("etc/apt/sources.list.d", "etc/apt/apt.conf.d", "usr/lib/python3/dist-packages/pandas/tests", "run"):
        (root / folder).mkdir(parents=True)
    for name in ("passwd", "group", "shadow", "gshadow"):
        (root / "etc" / name).write_text("root:x:0:0:::\n")
    (root / "etc/apt/sources.list.d/0000host.sources").write_text("URIs: http://user:secret@mirror.example\n")
    (root / "etc/apt/apt.conf.d/99mmdebstrap").write_text('Acquire::http::Proxy "http://secret@proxy.example";\n')
    (root / "var").mkdir()
    (root / "lib").symlink_to("usr/lib")
    return root


@pytest.fixture
def guest_lib(tmp_path: Path) -> Path:
    lib = tmp_path / "lib"
    for package in finish.GUEST_PACKAGES:
        (lib / package / "__pycache__").mkdir(parents=True)
        (lib / package / "__init__.py").write_text('"""A package."""\n')
        (lib / package / "__pycache__/old.pyc").write_bytes(b"old")
    return lib


def test_the_data_template_has_what_an_analyst_needs():
    assert {"python3-numpy", "python3-pandas", "nodejs"} <= set(DATA.packages)
    assert any(requirement.startswith("matplotlib") for requirement in DATA.python)
    assert DATA.base == "base"
    assert {"bash", "curl", "git", "python3", "python3-ipython", "sudo"} <= set(BASE.packages)
    assert "pandas" in DATA.warmup
    assert "matplotlib" not in DATA.warmup
    assert template_named("data") is DATA
    assert template_named("base") is BASE


def test_an_unknown_template_is_answered_with_the_known_ones():
    with pytest.raises(NotFound, match="cannot find the template 'nope': known are base, data"):
        template_named("nope")


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("name", {"name": "Bad Name", "packages": ()}),
        ("packages", {"name": "x", "packages": ("--hook=rm",)}),
        ("packages", {"name": "x", "packages": ("a,b",)}),
        ("packages", {"name": "x", "packages": ("python3",) * 501}),
        ("env", {"name": "x", "packages": (), "env": {"A B": "1"}}),
        ("env", {"name": "x", "packages": (), "env": {"A": "1\0"}}),
    ],
)
def test_a_bad_spec_is_refused_naming_its_field(field, arguments):
    with pytest.raises(InvalidArgument) as refused:
        TemplateSpec(**arguments)
    assert refused.value.details["field"] == field


def test_the_build_command_installs_the_packages_from_the_given_sources_alone():
    argv = commands.mmdebstrap_argv(
        ("b-package", "a-package=1.0-1"),
        codename="bookworm",
        target=Path("/build/rootfs"),
        sources=Path("/build/torpor.sources"),
        settings=Path("/build/torpor.conf"),
    )
    assert argv[0] == "mmdebstrap"
    assert "--include=a-package=1.0-1,b-package" in argv
    assert "--variant=minbase" in argv
    assert argv[-3:] == ("bookworm", "/build/rootfs", "/build/torpor.sources")
    assert argv.index("--dpkgopt=path-exclude=/usr/share/doc/*") < argv.index(
        "--dpkgopt=path-include=/usr/share/doc/*/copyright"
    )


def test_only_settings_that_fetching_needs_are_carried_from_the_host():
    dump = (
        'APT::Install-Recommends "1";\n'
        'Acquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::https::CaInfo "/etc/ssl/own.pem";\n'
        'Acquire::Check-Valid-Until "false";\n'
        'DPkg::Post-Invoke:: "rm -f /var/cache/apt/archives/*.deb";\n'
    )
    carried = commands.carried_settings(dump).splitlines()
    assert carried[:3] == [
        'Acquire::http::Proxy "http://proxy.example:3128";',
        'Acquire::https::CaInfo "/etc/ssl/own.pem";',
        'Acquire::Check-Valid-Until "false";',
    ]
    assert all("DPkg" not in line and "Recommends" not in line for line in carried)


def test_the_build_keeps_the_hosts_proxies_and_drops_what_would_change_the_tree():
    environ = {"http_proxy": "http://p", "PYTHONHASHSEED": "1", "SOURCE_DATE_EPOCH": "1", "PATH": "/bin"}
    built = commands.build_environment(environ)
    assert built["http_proxy"] == "http://p"
    assert not {"PYTHONHASHSEED", "SOURCE_DATE_EPOCH"} & built.keys()


def test_a_package_that_is_not_there_is_the_callers_mistake():
    error = commands.build_error(("mmdebstrap",), exit_code=25, log="...\nE: Unable to locate package no-such-thing\n")
    assert isinstance(error, InvalidArgument)
    assert error.details["package"] == "no-such-thing"
    assert "no-such-thing" in error.details["log_tail"]


def test_a_version_that_is_not_there_names_its_package():
    error = commands.build_error(("x",), exit_code=1, log="E: Version '9' for 'bash' was not found\n")
    assert isinstance(error, InvalidArgument)
    assert error.details["package"] == "bash"


def test_a_full_disk_is_storage_full():
    error = commands.build_error(("cp",), exit_code=1, log="cp: error writing 'x': No space left on device\n")
    assert isinstance(error, StorageFull)


def test_another_failure_carries_the_end_of_the_log_and_a_remedy():
    error = commands.build_error(("mmdebstrap",), exit_code=1, log="x" * 9000 + "\nE: Failed to fetch\n")
    assert isinstance(error, EngineError)
    assert len(error.details["log_tail"]) == commands.LOG_TAIL_BYTES
    assert "apt-get update" in error.message


def test_a_full_disk_of_any_file_call_is_storage_full(tmp_path):
    with pytest.raises(StorageFull), full_disk_named(tmp_path):
        raise OSError(errno.ENOSPC, "no space")
    with pytest.raises(PermissionError), full_disk_named(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def test_finishing_adds_the_agent_and_takes_the_hosts_secrets_out(bare_tree, guest_lib):
    finish.clean_layer(bare_tree)
    finish.add_torpor(bare_tree, DATA, guest_lib=guest_lib, sources="URIs: http://mirror.example\n")
    assert (bare_tree / "opt/torpor/lib/torpor_guest/__init__.py").is_file()
    assert not list(bare_tree.rglob("old.pyc"))
    assert "import pandas" in (bare_tree / "opt/torpor/warmup.py").read_text()
    assert (bare_tree / "etc/machine-id").read_text() == ""
    assert (bare_tree / "etc/resolv.conf").readlink() == Path("torpor/resolv.conf")
    assert "user:x:1000:1000" in (bare_tree / "etc/passwd").read_text()
    assert not (bare_tree / "usr/lib/python3/dist-packages/pandas/tests").exists()
    everything = b"".join(path.read_bytes() for path in bare_tree.rglob("*") if path.is_file())
    assert b"secret" not in everything


def test_finishing_refuses_a_folder_without_the_guest(bare_tree, tmp_path):
    with pytest.raises(InvalidArgument) as refused:
        finish.add_torpor(bare_tree, DATA, guest_lib=tmp_path / "absent", sources="")
    assert refused.value.details["field"] == "guest_lib"


def test_finishing_never_writes_through_a_link_that_leaves_the_tree(bare_tree, guest_lib, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (bare_tree / "opt").symlink_to(outside)
    with pytest.raises(EngineError, match="opt is a link"):
        finish.add_torpor(bare_tree, DATA, guest_lib=guest_lib, sources="")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("link", "file"),
    [
        ("var", "log/syslog"),
        ("usr", "lib/python3/dist-packages/pandas/tests/test_io.py"),
        ("etc", "apt/apt.conf.d/99mmdebstrap"),
        ("etc", "passwd"),
        ("etc/ssh", "ssh_host_ed25519_key"),
        ("etc/apt", "sources.list.d/debian.sources"),
        ("etc/sudoers.d", "torpor"),
    ],
)
def test_a_link_of_a_hostile_tree_makes_finishing_touch_nothing_outside(bare_tree, guest_lib, tmp_path, link, file):
    kept = tmp_path / "outside" / file
    kept.parent.mkdir(parents=True)
    kept.write_text("the host's own\n")
    shutil.rmtree(bare_tree / link, ignore_errors=True)
    (bare_tree / link).symlink_to(tmp_path / "outside")

    def finished() -> None:
        finish.clean_layer(bare_tree)
        finish.add_torpor(bare_tree, DATA, guest_lib=guest_lib, sources="URIs: http://mirror.example\n")

    with pytest.raises(EngineError, match="is a link"):
        finished()
    assert kept.read_text() == "the host's own\n"
    assert [path for path in (tmp_path / "outside").rglob("*") if path.is_file()] == [kept]


@pytest.mark.parametrize("name", ["etc", "run", "proc", "dev"])
def test_no_program_is_run_in_a_tree_whose_own_folders_are_links(tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "hosts").write_text("127.0.0.1 localhost\n")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / name).symlink_to(outside)
    argv = outside_argv(tmp_path / "root", "", ("true",))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, f"/{name} is a link" in done.stderr) == (1, True)
    assert [path.name for path in outside.iterdir()] == ["hosts"]


def test_a_layer_that_is_a_link_to_itself_is_refused(tmp_path):
    config = b"{}"
    members = {"manifest.json": b'[{"Config": "c.json", "Layers": ["a.tar"]}]', "c.json": config}
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("a.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "a.tar"
        tar.addfile(link)
    assert oci.read_image(tmp_path / "image.tar").layers == ("a.tar",)
    with pytest.raises(InvalidArgument, match="link without end"):
        oci._extract(tmp_path / "image.tar", "a.tar", tmp_path / "layer.tar")


def test_a_tree_without_python_is_refused(bare_tree, guest_lib):
    finish.add_torpor(bare_tree, DATA, guest_lib=guest_lib, sources="")
    (bare_tree / "usr/bin").mkdir()
    for path in (bare_tree, *bare_tree.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, 0, 0, follow_symlinks=False)
    with pytest.raises(EngineError, match=r"no /usr/bin/python3|not by root"):
        finish.check_tree(bare_tree)


def test_the_digest_sees_content_modes_links_and_names_but_not_times(tmp_path):
    root = tmp_path / "tree"
    (root / "a").mkdir(parents=True)
    (root / "a/file").write_text("one")
    (root / "link").symlink_to("a/file")
    first = digest_tree(root)
    assert (first.file_count, first.size_bytes) == (1, 3)
    os.utime(root / "a/file", (1, 1))
    assert digest_tree(root) == first
    seen = {first.digest}
    (root / "a/file").write_text("two")
    seen.add(digest_tree(root).digest)
    (root / "a/file").chmod(0o600)
    seen.add(digest_tree(root).digest)
    (root / "link").unlink()
    (root / "link").symlink_to("a")
    seen.add(digest_tree(root).digest)
    (root / "a/file").rename(root / "file")
    seen.add(digest_tree(root).digest)
    assert len(seen) == 5


async def test_a_build_that_fails_leaves_nothing(tmp_path):
    async def fail_half_way():
        async with workplace(tmp_path / "into", "x", said_nothing) as here:
            here.mkdir()
            (here / "half").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail_half_way()
    assert [entry.name for entry in (tmp_path / "into").iterdir()] == [".lock"]


async def test_what_a_killed_builder_left_is_removed_by_the_next(tmp_path):
    (tmp_path / ".building-old").mkdir()
    async with workplace(tmp_path, "new", said_nothing) as here:
        assert not (tmp_path / ".building-old").exists()
        assert here.parent == tmp_path


def test_removing_a_tree_twice_is_fine(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    remove_tree(tmp_path / "a")
    remove_tree(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_build_that_is_not_there_is_not_found_with_the_remedy(tmp_path):
    with pytest.raises(NotFound, match="torpor template build"):
        built_rootfs(tmp_path, "0" * 64)
