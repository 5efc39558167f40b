"""A real server of a home of its own, sharing the engine and the template that set-up made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.adapters.clock.system import SystemClock
from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.objects.localfs import LocalObjects
from torpor.apps.client import Client
from torpor.apps.config import Config, read_server_file
from torpor.services.templates import PUBLIC_TENANT
from torpor.store.snapshots import SnapshotRef, SnapshotStore

CHECKOUT = Path(__file__).resolve().parents[2]
DEVELOPMENT_HOME = CHECKOUT / ".cache/home"
TORPOR = (sys.executable, "-m", "torpor.apps.cli")
PATIENCE_S = 60


def eventually(condition, what):
    """Wait until ``condition`` is true; its value. Tests wait on conditions, never on time."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)  # noqa: TID251 - polling a condition of another process
    return value


class Server:
    """``torpor up`` as a process that can be killed, on one home. ``variables``: of its environment."""

    def __init__(self, home: Path, **variables: str) -> None:
        self.home = home
        self.variables = {"TORPOR_HOME": str(home), **variables}
        self.config = Config.read(self.variables)
        self.process: subprocess.Popen[bytes] | None = None
        self.clients: list[Client] = []

    def start(self) -> Client:
        """Start it and wait until it answers."""
        environment = {**os.environ, **self.variables}
        with (self.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                (*TORPOR, "up", "--port", "0"), stdout=log, stderr=log, env=environment, start_new_session=True
            )
        process = self.process

        def listening():
            assert process.poll() is None, (self.home / "server.log").read_text()[-3000:]
            return read_server_file(self.config.server_file).get("pid") == process.pid

        eventually(listening, "the server listens")
        self.clients.append(Client.of(Config.read(self.variables)))
        return self.clients[-1]

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait for its orderly end."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(PATIENCE_S)

    def command(self, *arguments: str, timeout_s: float = 120, **options) -> subprocess.CompletedProcess[bytes]:
        """A ``torpor`` command against this server."""
        environment = {**os.environ, **self.variables}
        environment.pop("TORPOR_API_URL", None)
        return subprocess.run(
            (*TORPOR, *arguments), capture_output=True, env=environment, check=False, timeout=timeout_s, **options
        )


def traces(home: Path) -> dict[str, list[str]]:
    """Everything on this machine that belongs to a home: processes, mounts, namespaces, cgroups."""
    runtime = Config.read({"TORPOR_HOME": str(home)}).runtime_dir
    processes = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
            if str(runtime).encode() in command:
                processes.append(command.replace(b"\0", b" ").decode())  # whole: an id may stand late in it
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(runtime) in line]
    cgroups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/torpor/{runtime.name}/**/") if is_instance(path)]
    return {"processes": processes, "mounts": mounts, "cgroups": cgroups}


def is_instance(path: Path) -> bool:
    """True for a cgroup of one instance: its name is an id."""
    return len(path.name) == 20


def share_template(home: Path) -> None:
    """Engine and template of set-up in a new home: shared read-only parts by link, its records by copy."""
    if not (DEVELOPMENT_HOME / "catalog.sqlite3").exists():
        pytest.skip("no template is built: make setup")
    home.mkdir(mode=0o700)
    for name in ("engines", "templates"):
        (home / name).symlink_to(DEVELOPMENT_HOME / name)
    shutil.copytree(DEVELOPMENT_HOME / "keys" / PUBLIC_TENANT, home / "keys" / PUBLIC_TENANT)
    public = f"store/objects/v0/{PUBLIC_TENANT}"
    for subject in asyncio.run(_subjects_of_templates()):
        # By hard link: a stored object is never written again, only replaced or unlinked.
        shutil.copytree(
            DEVELOPMENT_HOME / public / subject, home / public / subject, copy_function=os.link, dirs_exist_ok=True
        )
    subprocess.run(
        ("sqlite3" if shutil.which("sqlite3") else sys.executable, *_backup(home / "catalog.sqlite3")), check=True
    )
    for folder, _, files in os.walk(home / "keys"):
        os.chmod(folder, 0o700)
        for file in files:
            os.chmod(Path(folder) / file, 0o600)
    for part in (home / "store", home / "store/objects"):
        part.chmod(0o700)


async def _subjects_of_templates() -> set[str]:
    """Golden snapshots and root filesystems of the templates that names stand for now, and whose packs they share."""
    entropy = SystemEntropy()
    objects = LocalObjects(DEVELOPMENT_HOME / "store")
    store = SnapshotStore(objects, FileKeys(DEVELOPMENT_HOME / "keys", entropy), entropy, SystemClock())
    catalog = SqliteCatalog(DEVELOPMENT_HOME / "catalog.sqlite3")
    await catalog.open()
    try:
        templates = await catalog.templates(PUBLIC_TENANT)
    finally:
        await catalog.close()
    subjects: set[str] = set()
    waiting = {SnapshotRef.from_json(template.golden).subject for template in templates}
    while waiting:
        subject = waiting.pop()
        subjects.add(subject)
        head = await store.head(PUBLIC_TENANT, subject)
        assert head is not None, subject
        manifest = await store.open(head)
        named = {pack.subject for pack in manifest.packs}
        if "rootfs" in manifest.meta:
            named.add(str(manifest.meta["rootfs"]["subject"]))
        waiting |= named - subjects
    return subjects


def _backup(target: Path) -> tuple[str, ...]:
    source = DEVELOPMENT_HOME / "catalog.sqlite3"
    if shutil.which("sqlite3"):
        return (str(source), f".backup {target}")
    script = (
        "import sqlite3,sys; a=sqlite3.connect(sys.argv[1]); b=sqlite3.connect(sys.argv[2]); a.backup(b); "
        "b.execute('delete from sessions'); b.commit(); b.close(); a.close()"
    )
    return ("-c", script, str(source), str(target))


@contextlib.contextmanager
def home_at(path: Path):
    """A home with engine and template; nothing of it may be left on the machine afterwards."""
    share_template(path)
    yield path
    runtime = Config.read({"TORPOR_HOME": str(path)}).runtime_dir
    left = traces(path)
    shutil.rmtree(runtime, ignore_errors=True)
    assert not left["processes"], left
    assert not left["mounts"], left
    assert not left["cgroups"], left


@contextlib.contextmanager
def server_of(home: Path):
    """A server that is not started yet; whatever is running is removed at the end."""
    one = Server(home)
    yield one
    if one.process is None:
        return
    client = one.clients[-1] if one.process.poll() is None else one.start()
    try:
        for session in list(client.sessions()):
            client.delete(session["id"])
        assert client.store_check()["clean"]
    finally:
        one.stop()
        for each in one.clients:
            each.close()


@pytest.fixture
def home(tmp_path):
    """A home of one test."""
    with home_at(tmp_path / "home") as path:
        yield path


@pytest.fixture
def server(home):
    """A server of one test."""
    with server_of(home) as one:
        yield one


def run(client: Client, ref: str, source: str) -> str:
    """Run Python in the session; the text of the last expression."""
    said = client.code(ref, source, on_piece=lambda _stream, _piece: None)
    assert not said["error"], said["error"]
    return said["result"]["text/plain"] if said["result"] else ""


def sh(client: Client, ref: str, command: str) -> str:
    """Run a shell command in the session; its output."""
    pieces: list[bytes] = []
    said = client.shell(ref, command, on_piece=lambda _stream, piece: pieces.append(piece))
    assert said["exit_code"] == 0, pieces
    return b"".join(pieces).decode().strip()
