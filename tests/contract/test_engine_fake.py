"""The fake engine keeps the engines' contract, and fails only as it was told to."""

from pathlib import Path

import pytest

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.fake import FakeEngine
from torpor.domain.errors import EngineError, InvalidArgument, StorageFull, Unsupported
from torpor.ports.engine import EngineCapabilities, InstanceShape, InstanceStatus
from torpor.testing.contracts.engine import EngineContract
from torpor.testing.programs.fake_ledger import FakeLedger

PROGRAMS = {"ledger": FakeLedger}
BARE = EngineCapabilities(engine="fake", version="1", build="bare", filesystem_part=False, freeze=False)


class FakeEngineContract(EngineContract):
    @pytest.fixture
    def shape(self):
        return InstanceShape(rootfs=Path("/nowhere"), argv=("ledger",))

    @pytest.fixture
    def folder(self, tmp_path):
        return tmp_path

    async def reopened(self, engine):
        return FakeEngine(PROGRAMS, SystemClock(), host=engine.host)

    async def kill(self, engine, instance):
        engine.host.kill(instance)

    async def full_folder(self, engine, folder):
        engine.fail("checkpoint.memory", StorageFull("cannot write: no space left"))
        (folder / "full").mkdir()
        return folder / "full"

    async def leftovers(self, engine, instance):
        return ["an instance"] if instance in engine.host.instances else []


class TestFakeEngine(FakeEngineContract):
    @pytest.fixture
    def engine(self):
        return FakeEngine(PROGRAMS, SystemClock())

    async def test_an_injected_fault_is_raised_once_and_where_it_was_asked_for(self, engine, shape):
        engine.fail("start", EngineError("cannot start: told to"))
        async with self.created(engine, shape) as instance:
            with pytest.raises(EngineError, match="told to"):
                await engine.start(instance)
            assert await engine.inspect(instance) is InstanceStatus.CREATED
            await engine.start(instance)
            assert await engine.inspect(instance) is InstanceStatus.RUNNING

    async def test_a_failed_create_leaves_nothing(self, engine, shape):
        engine.fail("create", EngineError("cannot create: told to"))
        with pytest.raises(EngineError):
            await engine.create(self.new_id(), shape)
        assert await engine.instances() == ()

    async def test_an_unknown_operation_cannot_be_failed(self, engine):
        with pytest.raises(InvalidArgument):
            engine.fail("fly", EngineError("no"))

    async def test_what_was_not_read_at_the_checkpoint_reaches_every_clone(self, engine, shape, folder):
        async with self.running(engine, shape) as (instance, client):
            await client.add(1)
            channel = await engine.attach(instance)
            await engine.freeze(instance)
            await channel.write(b'{"id": 1, "do": "add", "value": 10}\n')
            engine.host.instances[instance].is_frozen = False  # thawed, but not yet scheduled
            checkpoint = await self.capture(engine, instance, folder)
        for _ in range(2):
            async with self.restored(engine, shape, checkpoint) as (_, client):
                assert await client.total() == 11


class TestFakeEngineThatOffersLittle(FakeEngineContract):
    """No filesystem part and no freezer: the contract then checks the refusals."""

    @pytest.fixture
    def engine(self):
        return FakeEngine(PROGRAMS, SystemClock(), capabilities=BARE)

    async def reopened(self, engine):
        return FakeEngine(PROGRAMS, SystemClock(), host=engine.host, capabilities=BARE)

    async def test_freeze_is_refused(self, engine, shape):
        async with self.created(engine, shape) as instance:
            with pytest.raises(Unsupported):
                await engine.freeze(instance)


class TickingClock:
    """A virtual clock: sleeping is what moves it."""

    def __init__(self):
        self.now_s = 0.0

    def wall_s(self):
        return self.now_s

    def monotonic_s(self):
        return self.now_s

    async def sleep(self, duration_s):
        self.now_s += duration_s


async def test_latency_comes_from_the_clock_alone(tmp_path):
    clock = TickingClock()
    latency_s = {"create": 0.5, "checkpoint.memory": 2.0}
    engine = FakeEngine(PROGRAMS, clock, latency_s=latency_s)
    instance = "a" * 20
    await engine.create(instance, InstanceShape(rootfs=Path("/nowhere"), argv=("ledger",)))
    await engine.start(instance)
    checkpoint = await engine.checkpoint(instance, tmp_path)
    assert clock.now_s == 2.5
    assert checkpoint.timings_ms == {"filesystem": 0.0, "memory": 2000.0}
