"""The composition root: one node with everything it needs, out of one home folder.

Two roles. ``serve``: the server of the home, with a pool, which reconciles what a dead server left. ``build``: a
command that only needs an engine and the store (template builds, benches' raw engine); it has a runtime folder of its
own, so that a running server and a build never see each other's instances.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import structlog

import torpor_guest
from torpor import __version__
from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor import GVisorConfig, GVisorEngine
from torpor.adapters.engines.gvisor.install import InstalledBuild, list_builds
from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.guest.client import FramedDialer
from torpor.adapters.host.memory import HostMemory
from torpor.adapters.host.staging import MemoryStaging
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.templates import template_named
from torpor.adapters.templates.archive import TemplateFolders
from torpor.apps.api.ownership import start_ticks
from torpor.apps.bench.raw import RawParts
from torpor.apps.building import Workshop
from torpor.apps.config import Config, make_home
from torpor.apps.object_store import OpenedObjects, open_objects
from torpor.domain.errors import Conflict, TorporError, Unsupported
from torpor.domain.ids import TenantId
from torpor.domain.session import Durability, Limits, SnapshotRecord
from torpor.ports.catalog import TemplateRecord
from torpor.services.composition import Outside, Services, compose
from torpor.services.maintenance import Maintenance
from torpor.services.placement import Engines
from torpor.services.reconcile import Settled
from torpor.services.requests import CreateRequest
from torpor.services.shelf import Shelf
from torpor.services.supervisor import Supervisor
from torpor.services.templates import PUBLIC_TENANT
from torpor.store.snapshots import SnapshotRef, SnapshotStore

log = structlog.get_logger()

GUEST_LIB = Path(torpor_guest.__file__).parent.parent
BLANK_BYTES_MAX = 256 * 1024 * 1024  # a resume of up to this size may find its memory ready
COUNTER_VARIABLE = "TORPOR_ENGINE_COUNTER"
FILES_MAX = 1 << 20  # what Linux allows a process at most, unless told otherwise

_BUILD = re.compile(r"b(?P<pid>\d+)-(?P<ticks>\d+)")


@dataclass(frozen=True, slots=True)
class Role:
    """Where a process of one home keeps what runs: a short folder under /run, and a cgroup."""

    runtime_dir: Path
    cgroup: str

    @classmethod
    def serve(cls, config: Config) -> Role:
        """The one server of the home."""
        return cls(config.runtime_dir / "s", f"/torpor/{config.runtime_dir.name}/s")

    @classmethod
    def build(cls, config: Config) -> Role:
        """This process, beside a server that may run. Named so that no later process of its pid is taken for it."""
        return cls._of_build(config, f"b{os.getpid()}-{start_ticks(os.getpid())}")

    @classmethod
    def dead_builds(cls, config: Config) -> tuple[Role, ...]:
        """Those of which a killed process left a folder."""
        if not config.runtime_dir.is_dir():
            return ()
        found = (_BUILD.fullmatch(path.name) for path in config.runtime_dir.iterdir())
        dead = [match[0] for match in found if match and start_ticks(int(match["pid"])) != int(match["ticks"])]
        return tuple(cls._of_build(config, name) for name in sorted(dead))

    @classmethod
    def _of_build(cls, config: Config, name: str) -> Role:
        return cls(config.runtime_dir / name, f"/torpor/{config.runtime_dir.name}/{name}")


class Node:
    """What the API and the CLI ask of a node (``apps.api.backend.Backend``), delegated to the services."""

    def __init__(self, parts: Parts, services: Services) -> None:
        self._parts = parts
        self._templates = services.templates
        self.sessions = sessions = services.sessions
        self.fork = services.forks.fork
        self.snapshot = sessions.snapshot
        self.set_clocks = sessions.set_clocks
        self.awake_because = sessions.awake_because
        self.guest = sessions.guest
        self.create = sessions.create
        self.get = sessions.get
        self.page = sessions.page
        self.pause = sessions.pause
        self.resume = sessions.resume
        self.delete = sessions.delete
        self.code = sessions.code
        self.shell = sessions.shell
        self.execute = sessions.execute
        self.interrupt = sessions.interrupt
        self.read_file = sessions.read_file
        self.write_file = sessions.write_file
        self.usage = sessions.usage

    async def templates(self, tenant: TenantId) -> tuple[TemplateRecord, ...]:
        """The newest template of each name."""
        del tenant
        return await self._templates.list()

    async def build_template(
        self, name: str, progress: Callable[[str], None], limits: Limits | None = None
    ) -> tuple[TemplateRecord, SnapshotRecord]:
        """Build the root filesystem and capture its golden snapshot. Raises: NotFound, EngineError, StorageFull."""
        spec = template_named(name)
        return await self.workshop.build(replace(spec, limits=limits) if limits else spec, progress)

    @property
    def workshop(self) -> Workshop:
        """Builds and looks after the templates of the home."""
        parts = self._parts
        return Workshop(
            templates=self._templates,
            catalog=parts.catalog,
            template_catalog=parts.catalog,
            store=parts.store,
            staging=parts.staging,
            engine=parts.engines.newest(),
            clock=parts.clock,
            templates_dir=parts.config.templates_dir,
            guest_lib=GUEST_LIB,
        )

    @property
    def shelf(self) -> Shelf:
        """The templates, to look at and to remove."""
        return self.workshop.shelf

    @contextlib.asynccontextmanager
    async def raw_parts(self, template: str) -> AsyncIterator[RawParts]:
        """What a bench needs to drive the raw engine with the content of ``template``."""
        parts = self._parts
        blueprint = await self._templates.blueprint(PUBLIC_TENANT, template)
        engine = parts.engines.of(blueprint.template.engine_build)
        assert isinstance(engine, GVisorEngine)
        async with parts.staging.folder() as folder:
            yield RawParts(engine, blueprint.shape, parts.dialer, parts.entropy, folder)

    @property
    def maintenance(self) -> Maintenance:
        """Garbage collection, rebuild, export and import over the store itself, past this node's cache."""
        parts = self._parts
        origin = (parts.clock, parts.entropy)
        return Maintenance(parts.direct_store, parts.catalog, parts.keys, parts.durability, origin)

    async def store_check(self, tenant: TenantId) -> Mapping[str, Any]:
        """Read and authenticate everything that the tenant's sessions and the public templates have stored."""
        reports = [await self._parts.direct_store.check(owner) for owner in (tenant, PUBLIC_TENANT)]
        merged: dict[str, Any] = {"clean": all(report.clean for report in reports)}
        for report in reports:
            for field, value in asdict(report).items():
                merged[field] = merged[field] + value if field in merged else value
        return merged

    async def engine_info(self) -> Mapping[str, Any]:
        """The preferred build and what it can do here, and all builds installed."""
        capabilities = await self._parts.engines.newest().capabilities()
        return {**asdict(capabilities), "builds": sorted(self._parts.engines.by_build)}

    async def health(self) -> Mapping[str, Any]:
        """Answers while the node serves."""
        return {"status": "ok", "version": __version__, "engine": self._parts.engines.preferred}


@dataclass(frozen=True, slots=True)
class Parts:
    """What all of a node's services share. ``opened``: the object store below ``store``."""

    config: Config
    catalog: SqliteCatalog
    keys: FileKeys
    opened: OpenedObjects
    store: SnapshotStore
    staging: MemoryStaging
    engines: Engines
    dialer: FramedDialer
    clock: SystemClock
    entropy: SystemEntropy

    @property
    def durability(self) -> Durability:
        """What a snapshot in the store has."""
        return self.opened.durability

    @property
    def direct_store(self) -> SnapshotStore:
        """The store past this node's cache: what others did to an object is seen."""
        return SnapshotStore(self.opened.direct, self.keys, self.entropy, self.clock)


@contextlib.asynccontextmanager
async def open_node(config: Config, role: Role | None = None) -> AsyncIterator[Node]:
    """The node of ``config.home``; the server's role unless another is given. Needs root and an installed engine.

    Leaving the block as the server pauses every running session, so that nothing is lost and no process is left.
    """
    serves = role is None
    raise_file_limit()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump of this process, or of a sandbox, is plaintext on a disk
    async with _opened_parts(config, role or Role.serve(config)) as parts, Supervisor() as supervisor:
        outside = _outside(parts, config, serves=serves)
        services = compose(outside, supervisor)
        node = Node(parts, services)
        driven: list[asyncio.Task[None]] = []
        if serves:
            _tell(await services.reconciler.run())
            await _warm_up(services, outside, supervisor)
            driven.append(supervisor.start(services.clockwork.run(), name="clockwork"))
        try:
            yield node
        finally:
            for task in driven:
                task.cancel()
            if serves:
                log.info("paused", sessions=await services.sessions.pause_all())
            for live in services.runtimes.all_live():
                await live.guest.close()
            await services.clones.drain()
            await supervisor.settle()
            await services.warm.drop_all()
            await services.pool.drain()
            await services.residents.drop()


def raise_file_limit() -> None:
    """Allow this process as many open files as it may have: a session with an instance holds five, beside its clients.

    The usual 1,024 end at some two hundred sessions, in errors of whatever opens the next file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a kernel that allows less: it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _outside(parts: Parts, config: Config, *, serves: bool) -> Outside:
    folders = TemplateFolders(config.templates_dir)
    return Outside(
        catalog=parts.catalog,
        keys=parts.keys,
        store=parts.store,
        staging=parts.staging,
        memory=HostMemory(),
        engines=parts.engines,
        dialer=parts.dialer,
        clock=parts.clock,
        entropy=parts.entropy,
        rootfs_at=folders.at,
        rootfs_folders=folders,
        argv=torpor_guest.ARGV,
        pool_size=1 if serves else 0,
        warm_bytes=config.warm_bytes if serves else 0,
        clone_bytes=config.clone_bytes if serves else 0,
        durability=parts.durability,
    )


async def _warm_up(services: Services, outside: Outside, supervisor: Supervisor) -> None:
    """Have ready what the first create and the first resume of each template will want."""
    for template in await services.templates.list():
        if not outside.rootfs_at(template.digest).is_dir():
            continue  # fetched by the first session that needs it: a start does not wait for it
        try:
            blueprint = await services.templates.blueprint(PUBLIC_TENANT, template.name)
            services.pool.refill(outside.engines.of(template.engine_build), blueprint.shape)
            supervisor.start(_golden_ready(services, outside, blueprint.golden), name=f"golden:{template.name}")
            if template.name == CreateRequest().template:  # the one that a create means which names none
                services.clones.refill(blueprint.golden, blueprint.shape)
        except TorporError as error:  # sessions of the other templates do not need it
            log.warning("template not made ready", template=template.name, code=error.code, error=error.message)


async def _golden_ready(services: Services, outside: Outside, golden: SnapshotRef) -> None:
    """Its image in memory, and blank memory for a first session that is a little more than the image."""
    async with services.residents.lent(golden) as resident:
        if resident is not None:
            largest_bytes = max(resident.manifest.part(name).size_bytes for name in resident.parts)
            await outside.staging.replenish(default_bytes=largest_bytes)


@contextlib.asynccontextmanager
async def _opened_parts(config: Config, role: Role) -> AsyncIterator[Parts]:
    serves = role == Role.serve(config)
    make_home(config)
    clock, entropy = SystemClock(), SystemEntropy()
    await _bury_dead_builds(config, clock)
    engines = await _engines(config, role, clock)
    catalog = SqliteCatalog(config.catalog_file)
    keys = FileKeys(config.keys_dir, entropy)
    staging = MemoryStaging(role.runtime_dir / "staging", blank_bytes_max=BLANK_BYTES_MAX if serves else 0)
    await catalog.open()
    try:
        await asyncio.to_thread(staging.open)
        opened = await open_objects(config, clock, entropy, owns_cache=serves)
        store = SnapshotStore(opened.objects, keys, entropy, clock)
        yield Parts(config, catalog, keys, opened, store, staging, engines, FramedDialer(clock), clock, entropy)
    finally:
        await asyncio.to_thread(staging.close)
        await catalog.close()
        await _retire(engines, role)


def engine_dir(config: Config, build: InstalledBuild) -> Path:
    """Where the home's server keeps the instances of ``build``."""
    return _engine_dir(Role.serve(config), build)


def _engine_dir(role: Role, build: InstalledBuild) -> Path:
    return role.runtime_dir / f"e{build.sha256[:6]}"


async def _engines(config: Config, role: Role, clock: SystemClock) -> Engines:
    by_build: dict[str, GVisorEngine] = {}
    preferred = ""
    for installed in list_builds(config.engines_dir):
        engine = GVisorEngine(
            GVisorConfig(
                runsc=installed.runsc,
                runtime_dir=_engine_dir(role, installed),
                cgroup_parent=role.cgroup,
                on_event=_counter(),
            ),
            clock,
        )
        preferred = (await engine.capabilities()).build
        by_build[preferred] = engine
    if not by_build:
        raise Unsupported(
            f"no engine is installed in {config.engines_dir}; install one with `torpor engine install gvisor`",
            engines_dir=str(config.engines_dir),
        )
    return Engines(by_build, preferred)


async def _retire(engines: Engines, role: Role) -> None:
    """Leave nothing on the machine, unless sessions run on that could not be paused."""
    in_use = False
    for engine in engines.by_build.values():
        assert isinstance(engine, GVisorEngine)
        try:
            await engine.retire()
        except Conflict as error:
            in_use = True
            log.warning("instances are left running", reason=error.message)
    if not in_use:
        await asyncio.to_thread(shutil.rmtree, role.runtime_dir, ignore_errors=True)
        with contextlib.suppress(OSError):  # another role of the home is there
            role.runtime_dir.parent.rmdir()


async def _bury_dead_builds(config: Config, clock: SystemClock) -> None:
    """Nobody else knows the sandboxes of a build that was killed, nor the plaintext in its memory-backed folder."""
    for role in Role.dead_builds(config):
        log.info("removing what a killed build left", folder=str(role.runtime_dir))
        try:
            engines = await _engines(config, role, clock)
            for engine in engines.by_build.values():
                for instance in await engine.instances():
                    await engine.destroy(instance)
            await asyncio.to_thread(MemoryStaging(role.runtime_dir / "staging").close)
            await _retire(engines, role)
        except (TorporError, OSError) as error:  # another process may be at it; what is left, the next start finds
            log.warning("not all of a killed build was removed", folder=str(role.runtime_dir), error=str(error))


def _counter() -> Callable[[str], None]:
    """Notes each real engine event in the file that the test session names, so that it can prove it made some."""
    path = os.environ.get(COUNTER_VARIABLE)

    def note(event: str) -> None:
        if path:
            with open(path, "a", encoding="ascii") as file:  # O_APPEND: several processes write whole lines
                file.write(f"{event}\n")

    return note


def _tell(settled: Settled) -> None:
    found = {name: ids for name, ids in asdict(settled).items() if ids}
    if found:
        log.info("reconciled", **found)
