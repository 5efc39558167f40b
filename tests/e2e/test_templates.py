"""Templates on the real engine: declared, from an image archive, from a session; what fails leaves nothing."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from e2e_home import run, sh

pytestmark = [pytest.mark.engine, pytest.mark.long]

DECLARED = """
name = "declared"
base = "base"
python = ["torpor-proof"]
wheels = "wheels"
commands = ["id -u >/etc/built-by", ["git", "config", "--system", "init.defaultBranch", "trunk"]]
user = "user"
workdir = "/workspace"
warmup = "import torpor_proof\\nanswer = torpor_proof.ANSWER - 1"

[env]
PROOF = "of env"

[[files]]
path = "/opt/proof/run"
content = "#!/bin/sh\\necho ran\\n"
mode = "0755"

[ready]
command = "/opt/proof/run"
"""


def built(server, *arguments):
    done = server.command("template", *arguments, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def make_wheel(folder: Path) -> None:
    folder.mkdir()
    with zipfile.ZipFile(folder / "torpor_proof-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torpor_proof.py", "ANSWER = 42\n")
        wheel.writestr(
            "torpor_proof-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torpor-proof\nVersion: 1.0\n"
        )
        wheel.writestr(
            "torpor_proof-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("torpor_proof-1.0.dist-info/RECORD", "")


def test_a_declared_template_starts_warm_and_its_user_may_become_root(server, tmp_path):
    make_wheel(tmp_path / "wheels")
    (tmp_path / "declared.toml").write_text(DECLARED)
    made = built(server, "build", str(tmp_path / "declared.toml"))
    client = server.start()
    session = client.create(template="declared")["id"]
    assert run(client, session, "answer + 1") == "42"
    assert sh(client, session, "id -un; pwd; echo $PROOF; /opt/proof/run; cat /etc/built-by").split("\n") == [
        *("user", "/workspace", "of env", "ran", "0"),
    ]
    assert sh(client, session, "git config --system init.defaultBranch; sudo -n id -un 2>&1") == "trunk\nroot"
    client.pause(session)
    assert sh(client, session, "sudo -n cat /proc/1/comm >/dev/null; sudo -n id -u") == "0"
    refused = server.command("template", "rm", "declared", "--json")
    assert refused.returncode != 0
    error = json.loads(refused.stderr.decode().strip().splitlines()[-1])
    assert (error["code"], error["details"]["sessions_count"]) == ("conflict", 1)
    client.delete(session)
    assert built(server, "rm", "declared")["digest"] == made["digest"]
    assert not (server.config.templates_dir / made["digest"]).exists()


def test_a_prune_frees_what_nothing_needs_and_a_session_of_an_old_build_goes_on(server, tmp_path):
    made = []
    client = server.start()
    for number in range(3):
        text = f'name = "moved"\nbase = "base"\nwarmup = "number = {number}"\n[env]\nNUMBER = "{number}"\n'
        (tmp_path / "moved.toml").write_text(text)
        made.append(built(server, "build", str(tmp_path / "moved.toml"))["digest"])
        if number == 0:
            client.create(template="moved", name="old")
            client.pause("old")
    pruned = json.loads(server.command("template", "prune", "--json").stdout)
    [gone] = [found for found in pruned if found["name"] == "moved"]
    assert (gone["digest"], gone["rootfs_bytes"] > 0) == (made[1], True)
    left = {path.name for path in server.config.templates_dir.iterdir()}
    assert {digest in left for digest in (made[0], made[2])} == {True}
    assert made[1] not in left
    assert run(client, "old", "number") == "0"
    new = client.create(template="moved")["id"]
    assert run(client, new, "number") == "2"
    for ref in ("old", new):
        client.delete(ref)
    assert built(server, "prune")[0]["digest"] == made[0]
    built(server, "rm", "moved")


def test_a_step_that_fails_shows_its_output_and_the_name_means_nothing(server, tmp_path):
    (tmp_path / "bad.toml").write_text('name = "bad"\ncommands = ["echo so far", "echo it broke >&2; exit 7"]\n')
    failed = server.command("template", "build", str(tmp_path / "bad.toml"))
    assert failed.returncode != 0
    said = failed.stderr.decode()
    assert "it broke" in said
    assert "exit 7" in said
    assert "ended with 7" in said
    log = (server.config.templates_dir / ".logs/bad.log").read_text()
    assert "so far" in log
    assert server.command("template", "inspect", "bad").returncode != 0
    again = server.command("template", "build", str(tmp_path / "bad.toml"))
    assert "kept: running echo so far" in again.stderr.decode()


def test_a_template_that_is_never_ready_is_not_made(server, tmp_path):
    text = 'name = "unready"\nwarmup = "x = 1"\n[ready]\ncode = "print(\'not yet\'); assert x == 2"\ntimeout_s = 1\n'
    (tmp_path / "unready.toml").write_text(text)
    failed = server.command("template", "build", str(tmp_path / "unready.toml"))
    assert failed.returncode != 0
    assert "ready check" in failed.stderr.decode()
    assert "not yet" in failed.stderr.decode()
    assert server.command("template", "inspect", "unready").returncode != 0


def test_an_image_archive_becomes_a_template_with_its_removals_variables_and_folder(server, tmp_path):
    record = json.loads(server.command("template", "inspect", "base", "--json").stdout)
    rootfs = server.config.templates_dir / record["digest"] / "rootfs"
    make_image(tmp_path / "image.tar", rootfs)
    (tmp_path / "image.toml").write_text('name = "image"\nbase = "oci:image.tar"\n')
    built(server, "build", str(tmp_path / "image.toml"))
    client = server.start()
    session = client.create(template="image")["id"]
    assert sh(
        client, session, "cat /etc/second; ls /etc/first 2>&1 | tail -1; ls /srv/filled; pwd; echo $OF_IMAGE"
    ) == ("2\nls: cannot access '/etc/first': No such file or directory\nnew\n/srv\nyes")
    client.delete(session)
    built(server, "rm", "image")


def test_an_image_without_python_is_refused_with_the_remedy(server, tmp_path):
    layer = make_layer([("bin/", None), ("bin/sh", b"")])
    write_image(tmp_path / "image.tar", [layer], {})
    (tmp_path / "image.toml").write_text('name = "image"\nbase = "oci:image.tar"\n')
    refused = server.command("template", "build", str(tmp_path / "image.toml"))
    assert refused.returncode != 0
    assert "no Python 3.11" in refused.stderr.decode()


def test_a_template_of_a_session_has_its_files_and_nothing_that_names_it(server):
    client = server.start()
    session = client.create(template="base", name="origin", env={"SECRET": "s3cret"})["id"]
    sh(client, session, "mkdir /srv/kept && echo mine >/srv/kept/file && rm /etc/debian_version")
    made = built(server, "from", "origin", "--name", "from-origin")
    assert run(client, session, "1 + 1") == "2"
    rootfs = server.config.templates_dir / made["digest"] / "rootfs"
    assert (rootfs / "srv/kept/file").read_text() == "mine\n"
    assert not (rootfs / "etc/debian_version").exists()
    assert (rootfs / "etc/machine-id").read_text() == ""
    assert (rootfs / "etc/hostname").read_text() == "torpor\n"
    assert b"s3cret" not in subprocess.run(["grep", "-r", "s3cret", str(rootfs / "etc")], capture_output=True).stdout  # noqa: PLW1510
    clone = client.create(template="from-origin")["id"]
    assert sh(client, clone, "cat /srv/kept/file; echo ${SECRET-none}; hostname") == f"mine\nnone\n{clone}"
    for each in (session, clone):
        client.delete(each)
    built(server, "rm", "from-origin")


def make_image(target: Path, rootfs: Path) -> None:
    """Two layers: a whole tree with three more files, and one that adds, removes and replaces."""
    first = target.with_name("first.tar")
    subprocess.run(["tar", "-C", str(rootfs), "-cf", str(first), "."], check=True)
    with tarfile.open(first, "a") as tar:
        for name, data in (("etc/first", b"1\n"), ("srv/filled/old", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    second = make_layer(
        [("etc/second", b"2\n"), ("etc/.wh.first", b""), ("srv/filled/.wh..wh..opq", b""), ("srv/filled/new", b"")]
    )
    write_image(target, [first.read_bytes(), second], {"Env": ["OF_IMAGE=yes"], "WorkingDir": "/srv"})


def make_layer(entries):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, content in entries:
            member = tarfile.TarInfo(name.rstrip("/"))
            member.type, member.mode = (tarfile.DIRTYPE, 0o755) if content is None else (tarfile.REGTYPE, 0o644)
            member.size = len(content or b"")
            tar.addfile(member, io.BytesIO(content or b""))
    return data.getvalue()


def write_image(target: Path, layers, config) -> None:
    """An OCI layout in a tar."""
    blobs = {}

    def blob(data: bytes):
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    described = {"os": "linux", "config": config}
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(described).encode()),
        "layers": [blob(layer) for layer in layers],
    }
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode())]}
    blobs["index.json"] = json.dumps(index).encode()
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    with tarfile.open(target, "w") as tar:
        for name, data in blobs.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
