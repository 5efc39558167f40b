"""Servers that a bench has to itself: homes of their own with a configured home's engines and template.

So a bench meets no session, cache or warm instance of anybody's, leaves nothing behind, and can say what it stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.adapters.entropy.system import SystemEntropy
from torpor.apps.bench.raw import RawParts
from torpor.apps.client import Client
from torpor.apps.config import Config
from torpor.apps.node import Role, open_node
from torpor.domain.errors import TorporError, Unsupported
from torpor.domain.ids import id_from_entropy
from torpor.services.templates import PUBLIC_TENANT

TEMPLATE = "data"
TORPOR = (sys.executable, "-P", "-m", "torpor.apps.cli")
COMMAND_TIMEOUT_S = 120

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Server:
    """A server process of a bench."""

    home: Path
    pid: int
    client: Client

    @property
    def resident_bytes(self) -> int:
        """Its resident memory."""
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextlib.asynccontextmanager
async def bench_home(config: Config) -> AsyncIterator[Path]:
    """A new home beside what ``config.home`` holds, on the same disk, with its engines and its template.

    Raises: Unsupported if the configured home keeps its store elsewhere; NotFound without the template.
    """
    home = _new_home(config)
    try:
        await _share_template(config, home)
        yield home
    finally:
        await asyncio.to_thread(shutil.rmtree, home)


@contextlib.asynccontextmanager
async def node_home(config: Config, *, with_rootfs: bool) -> AsyncIterator[Path]:
    """The home of a further node: engines, and root filesystems if wanted; no catalog, store, key or cache."""
    home = _new_home(config)
    try:
        (home / "engines").symlink_to(config.engines_dir)
        if with_rootfs:
            (home / "templates").symlink_to(config.templates_dir)
        yield home
    finally:
        await asyncio.to_thread(shutil.rmtree, home)


@contextlib.asynccontextmanager
async def serving(home: Path, variables: Mapping[str, str] | None = None) -> AsyncIterator[Server]:
    """A server on ``home``. Its end pauses what runs."""
    environment = environment_of(variables or {})
    up = ("--home", str(home), "up", "--detach", "--port", "0", "--json")
    said = json.loads(await asyncio.to_thread(command, up, environment))
    try:
        config = Config.read(environment, home=str(home))
        with Client.of(config) as client:
            yield Server(home, int(said["pid"]), client)
    finally:
        await asyncio.to_thread(command, ("--home", str(home), "down"), environment)


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Ours without any setting of torpor's, and ``variables``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")}
    return {**kept, **variables}


@contextlib.contextmanager
def patched_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """``variables`` in this process's environment meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def command(arguments: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """A ``torpor`` command's output. Raises: TorporError with what it said if it failed."""
    done = subprocess.run(
        (*TORPOR, *arguments),
        env=dict(environment),
        cwd="/",  # no torpor.toml of the current folder
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise TorporError(f"cannot measure: torpor {' '.join(arguments)} said {done.stderr[-500:]}")
    return done.stdout


@contextlib.asynccontextmanager
async def raw_parts(config: Config) -> AsyncIterator[RawParts]:
    """The raw engine with the template, beside any server of the home."""
    async with open_node(config, Role.build(config)) as node, node.raw_parts(TEMPLATE) as parts:
        yield parts


def _new_home(config: Config) -> Path:
    home = config.home / "bench" / id_from_entropy(SystemEntropy().bytes(20))
    home.mkdir(mode=0o700, parents=True)
    return home


async def _share_template(config: Config, home: Path) -> None:
    if config.store_url is not None:
        raise Unsupported(
            f"cannot measure with the store at {config.store_url}: benches take the template from a home's own store; "
            "unset TORPOR_STORE_URL, or choose another home with --home",
            store_url=config.store_url,
        )
    for name in ("engines", "templates"):
        (home / name).symlink_to(config.home / name)
    source, target = SqliteCatalog(config.catalog_file), SqliteCatalog(home / "catalog.sqlite3")
    await source.open()
    await target.open()
    try:
        template = await source.template(PUBLIC_TENANT, TEMPLATE)
        await target.put_template(template)
    finally:
        await source.close()
        await target.close()
    await asyncio.to_thread(_link, config, home)


def _link(config: Config, home: Path) -> None:
    """Public keys by copy, public objects by hard link: one is never written again, only replaced or unlinked."""
    shutil.copytree(config.keys_dir / PUBLIC_TENANT, home / "keys" / PUBLIC_TENANT)
    public = Path("objects/v0") / PUBLIC_TENANT
    shutil.copytree(config.store_dir / public, home / "store" / public, copy_function=os.link)
    for folder, _, files in os.walk(home / "keys"):
        os.chmod(folder, 0o700)
        for file in files:
            os.chmod(Path(folder) / file, 0o600)
    for part in (home / "store", home / "store/objects"):
        part.chmod(0o700)


async def engine_build(config: Config) -> str:
    """The build that the template runs under, which is in the report."""
    async with raw_parts(config) as parts:
        return (await parts.engine.capabilities()).build
