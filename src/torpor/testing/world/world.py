"""One history: faults first, for safety; then none, for liveness. Everything follows from the seed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from unittest import mock

import structlog

from torpor.adapters.engines.fake import FakeEngine, FakeHost
from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.domain.errors import TorporError
from torpor.domain.ids import DEFAULT_TENANT, InstanceId, SessionId
from torpor.domain.session import Status
from torpor.domain.snapshot import Manifest
from torpor.services.composition import Services
from torpor.services.supervisor import Supervisor
from torpor.store import manifests
from torpor.store.format.manifest import Envelope, open_manifest, split_manifest
from torpor.store.snapshots import SnapshotStore
from torpor.testing.fake_guest import FakeGuestProgram
from torpor.testing.node import PROGRAM, FakeMachine, FolderStaging, Outside, assemble, capture_template
from torpor.testing.world.clients import Clients, ServerGoneError
from torpor.testing.world.conditions import NO_FAULTS, Faults
from torpor.testing.world.loop import LoopClock, StuckError, VirtualLoop
from torpor.testing.world.ports import Fate, Weather
from torpor.testing.world.process import Process, owned_by_maker
from torpor.testing.world.quiet import check_quiet
from torpor.testing.world.server import Server
from torpor.testing.world.witness import Violation, Witness

FAULTY_S_MAX = 400.0
QUIET_S_MAX = 900.0
RESTART_S_MAX = 5.0
WARM_BYTES = 1 << 20
CLONE_BYTES = 1 << 16
MEMORY = Path("/dev/shm")

Result = TypeVar("Result")
Tell = Callable[[str], None]


class World:
    """A machine, one server after another on it, clients, and weather. ``tell`` hears the story."""

    def __init__(self, seed: int, *, faults: Faults | None = None, tell: Tell | None = None) -> None:
        self.seed = seed
        self.loop = VirtualLoop()
        self.loop.on_task = owned_by_maker
        self.random = Random(seed)
        self.weather = Weather(self.random, faults or Faults())
        self.machine = prepared_machine(seed)
        self._tell = tell
        store = SnapshotStore(
            self.machine.objects, self.machine.key_store(), SeededEntropy(0), LoopClock(self.loop), workers=0
        )
        self.witness = Witness(self.machine, store, self.story)
        self.server: Server | None = None
        self._process: Process | None = None
        self._up = asyncio.Event()
        self._servers_count = 0
        self._over = False
        self.calm_since_s = 0.0

    def run(self) -> None:
        """The whole history. Raises: Violation."""
        with (
            tempfile.TemporaryDirectory(prefix="torpor-world-", dir=MEMORY) as folder,
            _quiet_log(self._hear),
            _manifests_read_once(),
        ):
            self.staging = Path(folder)
            try:
                self.loop.run_until_complete(self._history())
            except StuckError as error:
                raise Violation(f"the world stands still: {error}") from error
            finally:
                self.loop.close()

    def story(self, line: str) -> None:
        """Tell it, if somebody listens."""
        if self._tell is not None:
            self._tell(f"{self.loop.time():8.3f} {line}")

    def _hear(self, method: str, event: Mapping[str, Any]) -> None:
        self.story(f"log {method}: {event}")
        self.witness.logged(event)

    async def call(
        self, act: Callable[[Services], Awaitable[Result]], *, patience_s: float, is_stream: bool = False
    ) -> Result:
        """One request of a client; a server notices only of a stream that its client went away.

        Raises: ServerGoneError if no server takes it or the server dies over it.
        """
        server, process = self.server, self._process
        if server is None or process is None or not process.alive:
            raise ServerGoneError("no server listens")

        async def request() -> Result:
            return await act(server.services)

        task = process.start(request())
        done, _ = await asyncio.wait((task,), timeout=patience_s)
        if not done:
            if is_stream:
                task.cancel()
            raise ServerGoneError("the client lost its patience")
        if task.cancelled():
            raise ServerGoneError("the server died")
        return task.result()

    async def server_is_up(self) -> None:
        """Return once a server serves."""
        await self._up.wait()

    # ---- the course of it --------------------------------------------------------------------------------------------

    async def _history(self) -> None:
        serving = self.loop.create_task(self._serve())
        storms = self.loop.create_task(self._storms())
        clients = Clients(self)
        await self._until(clients.misuse(), FAULTY_S_MAX)
        storms.cancel()
        self.weather.faults = NO_FAULTS
        self.weather.out_until_s.clear()
        self.calm_since_s = self.loop.time()
        self.story("no more faults")
        try:
            async with asyncio.timeout(QUIET_S_MAX):
                await self.server_is_up()
                await clients.finish()
                await check_quiet(self)
        except TimeoutError:
            raise Violation(f"not everything came to rest within {QUIET_S_MAX:g} s without faults") from None
        finally:
            self._over = True
            if self._process is not None:
                self._process.kill()
            await asyncio.wait((serving, storms))
        self.raise_violation()

    async def _until(self, work: Awaitable[None], limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await work

    def raise_violation(self) -> None:
        """Raises: the first Violation that the witness noted, or a fault of the server's own."""
        if self.witness.violations:
            raise self.witness.violations[0]
        for error in [] if self._process is None else self._process.broken:
            if not isinstance(error, TorporError | ServerGoneError):
                raise Violation(f"a task of the server failed: {error!r}") from error

    async def _serve(self) -> None:
        while not self._over:
            self._servers_count += 1
            process = self._process = Process(self.loop, f"server {self._servers_count}")
            skew_s = self.random.uniform(-1, 1) * self.weather.faults.skew_s_max
            clock = LoopClock(self.loop, wall_s=1_700_000_000.0 + skew_s)
            fate = Fate(self.weather, process, self.witness.look)
            budgets = (self.random.choice((0, WARM_BYTES)), self.random.choice((0, CLONE_BYTES)))
            server = Server(process, self.machine, self.witness, (fate, self.staging), (clock, *budgets))
            self.story(f"{process.name} starts, its clock {skew_s:+.1f} s off")
            booting = process.start(server.boot())
            await asyncio.wait((booting,))
            if not booting.cancelled() and booting.exception() is None:
                self.server = server
                process.start(server.serve())
                self._up.set()
                await process.ended.wait()
                self._up.clear()
            elif not booting.cancelled():
                self.story(f"{process.name} does not come up: {booting.exception()}")
                self._note_fault(booting.exception())
            process.kill()
            self.story(f"{process.name} is dead")
            self._note_broken(process)
            await asyncio.sleep(self.random.random() * RESTART_S_MAX)

    def _note_broken(self, process: Process) -> None:
        for error in process.broken:
            self._note_fault(error)

    def _note_fault(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, TorporError | ServerGoneError):
            self.witness.note(f"a task of the server failed: {error!r}")

    async def _storms(self) -> None:
        faults, random = self.weather.faults, self.random
        for _ in range(random.randint(0, faults.storms_max)):
            await asyncio.sleep(random.random() * 30.0)
            storm = random.choice((self._kill_server, self._kill_sandbox, self._reboot, self._outage, self._jump))
            storm()

    def _kill_server(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _kill_sandbox(self) -> None:
        instances = sorted(self.machine.host.instances)
        if instances:
            victim = self.random.choice(instances)
            self.story(f"sandbox {victim} dies")
            self._kill(victim)

    def _kill(self, instance: InstanceId) -> None:
        self.witness.dead.add(instance)
        self.machine.host.kill(instance)

    def _reboot(self) -> None:
        self.story("the machine loses power")
        self._kill_server()
        for instance in tuple(self.machine.host.instances):
            self._kill(instance)
        self.machine.host.instances.clear()

    def _outage(self) -> None:
        port = self.random.choice(("objects", "catalog", "keys"))
        duration_s = self.random.random() * self.weather.faults.outage_s_max
        self.story(f"{port} is out for {duration_s:.1f} s")
        self.weather.out_until_s[port] = self.loop.time() + duration_s

    def _jump(self) -> None:
        if self.server is not None:
            by_s = self.random.uniform(-1, 1) * self.weather.faults.skew_s_max
            self.story(f"the wall clock jumps by {by_s:+.1f} s")
            self.server.clock.jump_wall(by_s)

    def ids(self) -> tuple[SessionId, ...]:
        """Every session that has a record which is not deleted, oldest first."""
        return tuple(record.id for record in self.witness.records.values() if record.status is not Status.DELETED)


TENANT = DEFAULT_TENANT


@functools.cache
def _template_machine() -> FakeMachine:
    """A machine with the golden snapshot on it, made once in a process."""
    machine, loop = FakeMachine(entropy=SeededEntropy(-1)), VirtualLoop()
    clock = LoopClock(loop)
    engine = FakeEngine({PROGRAM: FakeGuestProgram}, clock, host=machine.host)
    outside = Outside(
        engine=engine,
        objects=machine.objects,
        keys=machine.key_store(),
        catalog=machine.catalog,
        staging=FolderStaging(),
        clock=clock,
        entropy=machine.entropy,
        build="fake-1",
        store_workers=0,
    )

    async def capture() -> None:
        async with Supervisor() as supervisor:
            await capture_template(assemble(outside, supervisor), engine)

    loop.run_until_complete(capture())
    loop.close()
    return machine


def prepared_machine(seed: int) -> FakeMachine:
    """A machine of its own for one world, with the template on it."""
    template = _template_machine()
    entropy = SeededEntropy(seed)
    memo = {id(template.entropy): entropy}
    return FakeMachine(
        host=FakeHost(),
        objects=copy.deepcopy(template.objects),
        entropy=entropy,
        catalog=copy.deepcopy(template.catalog),
        keys=copy.deepcopy(template.keys, memo),
    )


@contextlib.contextmanager
def _manifests_read_once() -> Iterator[None]:
    """Equal bytes under an equal key are an equal manifest; a history opens each some ten times."""
    split = functools.cache(split_manifest)
    opened: dict[tuple[bytes, bytes, bytes], Manifest] = {}

    def remembered(envelope: Envelope, *, data_key: bytes) -> Manifest:
        key = (envelope.header_bytes, envelope.sealed, data_key)
        if key not in opened:
            opened[key] = open_manifest(envelope, data_key=data_key)
        return opened[key]

    with mock.patch.multiple(manifests, open_manifest=remembered, split_manifest=split):
        yield


@contextlib.contextmanager
def _quiet_log(hear: Callable[[str, Mapping[str, Any]], None]) -> Iterator[None]:
    """What the services log becomes part of the story."""

    def into_story(_logger: object, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        hear(method, event)
        raise structlog.DropEvent

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[into_story])
    try:
        yield
    finally:
        structlog.configure(processors=before)
