"""What every engine promises, as tests. An adapter's test file subclasses EngineContract and says how to make one.

State is read and changed around the port where that shows more: files on disk, the guest's own answers.
What an engine does not offer must be refused with Unsupported; a test of an offer it lacks checks the refusal.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torpor.domain.errors import Conflict, EngineError, GuestError, NotFound, StorageFull, Unsupported
from torpor.domain.ids import InstanceId
from torpor.ports.engine import Checkpoint, Engine, InstanceShape, InstanceStatus
from torpor.testing.programs.ledger_client import LedgerClient


class EngineContract:
    """Subclass it, give the fixtures ``engine``, ``shape`` (whose argv is a ledger) and ``folder``, and the hooks.

    ``folder`` is a place for checkpoints; each test makes its own folders in it.
    """

    _numbers = itertools.count(1)

    async def reopened(self, engine: Engine) -> Engine:
        """A second engine over the same host, as after a restart of the server."""
        raise NotImplementedError

    async def kill(self, engine: Engine, instance: InstanceId) -> None:
        """End the instance's sandbox from outside; return once it is dead."""
        raise NotImplementedError

    async def full_folder(self, engine: Engine, folder: Path) -> Path:
        """An empty folder in which no checkpoint has room."""
        raise NotImplementedError

    async def leftovers(self, engine: Engine, instance: InstanceId) -> list[str]:
        """What a destroyed instance left on the host, one phrase each; read without the port."""
        raise NotImplementedError

    def new_id(self) -> InstanceId:
        """An id that no other test of this run uses."""
        return InstanceId(f"{next(self._numbers):020d}")

    @contextlib.asynccontextmanager
    async def created(self, engine: Engine, shape: InstanceShape, **more: Any) -> AsyncIterator[InstanceId]:  # noqa: ANN401
        """An instance that is destroyed in the end."""
        instance = self.new_id()
        await engine.create(instance, shape, **more)
        try:
            yield instance
        finally:
            await engine.destroy(instance)

    @contextlib.asynccontextmanager
    async def talking(self, engine: Engine, instance: InstanceId, first_id: int = 1) -> AsyncIterator[LedgerClient]:
        """A client on the instance's channel, which is closed in the end."""
        channel = await engine.attach(instance)
        try:
            yield LedgerClient(channel, first_id=first_id)
        finally:
            await channel.close()

    @contextlib.asynccontextmanager
    async def running(
        self,
        engine: Engine,
        shape: InstanceShape,
        **more: Any,  # noqa: ANN401
    ) -> AsyncIterator[tuple[InstanceId, LedgerClient]]:
        """A started instance that answers, and its client."""
        async with self.created(engine, shape, **more) as instance:
            await engine.start(instance)
            async with self.talking(engine, instance) as client:
                yield instance, client

    @contextlib.asynccontextmanager
    async def restored(
        self, engine: Engine, shape: InstanceShape, checkpoint: Checkpoint, *, background: bool = False
    ) -> AsyncIterator[tuple[InstanceId, LedgerClient]]:
        """A clone of ``checkpoint``, and its client."""
        async with self.created(engine, shape) as instance:
            await engine.restore(
                instance, checkpoint.directory, requirements=checkpoint.requirements, background=background
            )
            async with self.talking(engine, instance, first_id=1000) as client:
                yield instance, client

    async def capture(self, engine: Engine, instance: InstanceId, folder: Path, name: str = "image") -> Checkpoint:
        """A checkpoint into a fresh folder."""
        into = folder / name
        into.mkdir()
        return await engine.checkpoint(instance, into)

    async def test_a_created_instance_does_not_run_before_it_is_started(
        self, engine: Engine, shape: InstanceShape
    ) -> None:
        async with self.created(engine, shape) as instance:
            assert await engine.inspect(instance) is InstanceStatus.CREATED
            await engine.start(instance)
            assert await engine.inspect(instance) is InstanceStatus.RUNNING
            async with self.talking(engine, instance) as client:
                assert await client.add(2) == 2
                assert await client.add(3) == 5

    async def test_an_id_that_is_in_use_is_refused_and_its_instance_stays(
        self, engine: Engine, shape: InstanceShape
    ) -> None:
        async with self.running(engine, shape) as (instance, client):
            with pytest.raises(Conflict):
                await engine.create(instance, shape)
            assert await client.total() == 0

    async def test_an_instance_starts_once(self, engine: Engine, shape: InstanceShape) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(1)
            with pytest.raises(Conflict):
                await engine.start(instance)
            assert await client.total() == 1

    async def test_an_absent_instance_is_absent_everywhere(self, engine: Engine) -> None:
        nobody = self.new_id()
        assert await engine.inspect(nobody) is InstanceStatus.ABSENT
        assert await engine.usage(nobody) == {"cpu_s": 0.0, "memory_bytes": 0.0}
        assert nobody not in await engine.instances()
        for call in (engine.attach, engine.start, engine.freeze, engine.thaw):
            with pytest.raises(NotFound):
                await call(nobody)

    async def test_a_checkpoint_leaves_the_instance_frozen_and_thaw_lets_it_go_on(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(7)
            checkpoint = await self.capture(engine, instance, folder)
            assert await engine.inspect(instance) is InstanceStatus.FROZEN
            expected = {*checkpoint.memory_files, *filter(None, [checkpoint.filesystem_file])}
            assert {file.name for file in checkpoint.directory.iterdir()} == expected
            await engine.thaw(instance)
            await engine.thaw(instance)
            assert await engine.inspect(instance) is InstanceStatus.RUNNING
            assert await client.add(1) == 8

    async def test_a_frozen_instance_cannot_be_checkpointed(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        async with self.running(engine, shape) as (instance, _):
            await self.capture(engine, instance, folder)
            with pytest.raises(Conflict):
                await self.capture(engine, instance, folder, "second")

    async def test_one_checkpoint_restores_many_independent_instances(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(40)
            await client.write("/root/note", "before")
            checkpoint = await self.capture(engine, instance, folder)
            async with (
                self.restored(engine, shape, checkpoint) as (_, first),
                self.restored(engine, shape, checkpoint) as (_, second),
            ):
                assert await first.add(1) == 41
                await first.write("/root/note", "of the first")
                assert await second.add(2) == 42
                assert await second.read("/root/note") == "before"
                assert await first.read("/root/note") == "of the first"
                await engine.thaw(instance)
                assert await client.total() == 40
                assert await client.read("/root/note") == "before"

    async def test_an_image_restores_with_other_caps_for_memory_and_processors(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(40)
            checkpoint = await self.capture(engine, instance, folder)
        shared_bytes = shape.memory_bytes // 2
        larger = replace(shape, memory_bytes=2 * shape.memory_bytes, cpus=0.5, shared_bytes=shared_bytes)
        async with self.restored(engine, larger, checkpoint) as (_, grown):
            assert await grown.add(1) == 41
        other = replace(shape, memory_bytes=2 * shape.memory_bytes)
        with pytest.raises(Unsupported):
            async with self.restored(engine, other, checkpoint):
                raise AssertionError("its /dev/shm is of another size")

    async def test_a_restored_instance_can_be_checkpointed_again(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(1)
            first = await self.capture(engine, instance, folder)
        async with self.restored(engine, shape, first) as (instance, client):
            await client.add(10)
            second = await self.capture(engine, instance, folder, "second")
        async with self.restored(engine, shape, second) as (_, client):
            assert await client.add(100) == 111

    async def test_a_background_restore_answers_and_then_is_loaded(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(5)
            checkpoint = await self.capture(engine, instance, folder)
        async with self.restored(engine, shape, checkpoint, background=True) as (instance, client):
            assert await client.total() == 5
            await engine.loaded(instance)
            shutil.rmtree(checkpoint.directory)
            assert await client.add(1) == 6

    async def test_a_frozen_instance_keeps_its_memory(self, engine: Engine, shape: InstanceShape) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(3)
            if not (await engine.capabilities()).freeze:
                with pytest.raises(Unsupported):
                    await engine.freeze(instance)
                return
            await engine.freeze(instance)
            await engine.freeze(instance)
            assert await engine.inspect(instance) is InstanceStatus.FROZEN
            await engine.thaw(instance)
            assert await client.add(1) == 4

    async def test_a_pooled_instance_is_frozen_then_thawed_then_restored_into(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        if not (await engine.capabilities()).freeze:
            return
        async with self.running(engine, shape) as (instance, client):
            await client.add(9)
            checkpoint = await self.capture(engine, instance, folder)
        async with self.created(engine, shape) as instance:
            await engine.freeze(instance)
            assert await engine.inspect(instance) is InstanceStatus.FROZEN
            with pytest.raises(Conflict):
                await engine.restore(instance, checkpoint.directory, requirements=checkpoint.requirements)
            await engine.thaw(instance)
            assert await engine.inspect(instance) is InstanceStatus.CREATED
            await engine.restore(instance, checkpoint.directory, requirements=checkpoint.requirements)
            async with self.talking(engine, instance, first_id=50) as client:
                assert await client.total() == 9

    async def test_requirements_that_differ_are_refused_by_name_and_nothing_starts(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(6)
            checkpoint = await self.capture(engine, instance, folder)
        good = dict(checkpoint.requirements)
        wrong = {
            "build": {**good, "build": "another-build"},
            "cpu_flags": {**good, "cpu_flags": [*good["cpu_flags"], "a-flag-of-tomorrow"]},
            "spec": {**good, "spec": {}},
        }
        async with self.created(engine, shape) as instance:
            for name, requirements in wrong.items():
                with pytest.raises(Unsupported) as refusal:
                    await engine.restore(instance, checkpoint.directory, requirements=requirements)
                assert any(key.startswith(name) for key in refusal.value.details["differs"])
                assert await engine.inspect(instance) is InstanceStatus.CREATED
            await engine.restore(instance, checkpoint.directory, requirements=good)
            async with self.talking(engine, instance, first_id=70) as client:
                assert await client.total() == 6

    async def test_an_incomplete_image_is_refused_and_nothing_starts(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        async with self.running(engine, shape) as (instance, _):
            checkpoint = await self.capture(engine, instance, folder)
        (checkpoint.directory / checkpoint.memory_files[0]).unlink()
        async with self.created(engine, shape) as instance:
            with pytest.raises(EngineError):
                await engine.restore(instance, checkpoint.directory, requirements=checkpoint.requirements)
            assert await engine.inspect(instance) is InstanceStatus.CREATED

    async def test_a_checkpoint_without_room_leaves_no_file_and_a_running_instance(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(12)
            into = await self.full_folder(engine, folder)
            with pytest.raises(StorageFull):
                await engine.checkpoint(instance, into)
            assert list(into.iterdir()) == []
            assert await engine.inspect(instance) is InstanceStatus.RUNNING
            assert await client.add(1) == 13
            await self.capture(engine, instance, folder)

    async def test_the_filesystem_part_restores_on_its_own_with_what_was_removed(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        has_part = (await engine.capabilities()).filesystem_part
        async with self.running(engine, shape) as (instance, client):
            await client.add(4)
            await client.write("/root/kept", "kept")
            await client.write("/tmp/kept", "also kept")
            await client.write("/root/gone", "gone")
            await client.remove("/root/gone")
            assert await client.read("/etc/passwd") is not None
            await client.remove("/etc/passwd")
            checkpoint = await self.capture(engine, instance, folder)
        if not has_part:
            assert checkpoint.filesystem_file is None
            with pytest.raises(Unsupported):
                await engine.create(self.new_id(), shape, filesystem=folder / "any.tar")
            return
        assert checkpoint.filesystem_file is not None
        part = checkpoint.directory / checkpoint.filesystem_file
        async with self.running(engine, shape, filesystem=part) as (instance, client):
            assert await client.total() == 0
            assert await client.read("/root/kept") == "kept"
            assert await client.read("/tmp/kept") == "also kept"
            assert await client.read("/root/gone") is None
            assert await client.read("/etc/passwd") is None
            again = await self.capture(engine, instance, folder, "again")
        async with self.restored(engine, shape, again) as (_, client):
            assert await client.read("/root/kept") == "kept"

    async def test_the_filesystem_part_can_be_taken_alone(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        into = folder / "alone"
        into.mkdir()
        async with self.running(engine, shape) as (instance, client):
            await client.write("/root/kept", "written")
            if not (await engine.capabilities()).filesystem_part:
                with pytest.raises(Unsupported):
                    await engine.checkpoint(instance, into, memory=False)
                return
            checkpoint = await engine.checkpoint(instance, into, memory=False)
            assert checkpoint.memory_files == ()
            assert [path.name for path in into.iterdir()] == [checkpoint.filesystem_file]
            await engine.thaw(instance)
            assert await client.read("/root/kept") == "written"

    async def test_the_channel_can_be_taken_up_again(self, engine: Engine, shape: InstanceShape) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(1)
            channel = await engine.attach(instance)
            await channel.close()
            await channel.close()
            assert await channel.read(10) == b""
            with pytest.raises(GuestError):
                await channel.write(b"x")
            async with self.talking(engine, instance, first_id=500) as second:
                assert await second.add(1) == 2

    async def test_a_restarted_server_finds_its_instances_and_goes_on(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(20)
            checkpoint = await self.capture(engine, instance, folder)
            second = await self.reopened(engine)
            assert instance in await second.instances()
            assert await second.inspect(instance) is InstanceStatus.FROZEN
            await second.thaw(instance)
            async with self.talking(second, instance, first_id=600) as again:
                assert await again.add(2) == 22
            await second.destroy(instance)
            assert await engine.inspect(instance) is InstanceStatus.ABSENT
        async with self.restored(engine, shape, checkpoint) as (_, client):
            assert await client.total() == 20

    async def test_a_dead_sandbox_is_stopped_and_its_channel_ends(self, engine: Engine, shape: InstanceShape) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(1)
            channel = await engine.attach(instance)
            await self.kill(engine, instance)
            assert await engine.inspect(instance) is InstanceStatus.STOPPED
            assert await channel.read(10) == b""
            with pytest.raises(GuestError):
                await channel.write(b"x")
            await channel.close()
            await engine.destroy(instance)
            assert await self.leftovers(engine, instance) == []

    async def test_destroy_can_be_repeated_and_leaves_nothing(
        self, engine: Engine, shape: InstanceShape, folder: Path
    ) -> None:
        states = []
        for prepare in ("created", "running", "captured", "frozen"):
            instance = self.new_id()
            await engine.create(instance, shape)
            if prepare != "created":
                await engine.start(instance)
            if prepare == "captured":
                await self.capture(engine, instance, folder)
            if prepare == "frozen" and (await engine.capabilities()).freeze:
                await engine.freeze(instance)
            assert instance in await engine.instances()
            await engine.destroy(instance)
            await engine.destroy(instance)
            states.append((prepare, await engine.inspect(instance), await self.leftovers(engine, instance)))
            assert instance not in await engine.instances()
        absent = InstanceStatus.ABSENT
        assert states == [(prepare, absent, []) for prepare in ("created", "running", "captured", "frozen")]

    async def test_usage_grows_with_work(self, engine: Engine, shape: InstanceShape) -> None:
        async with self.running(engine, shape) as (instance, client):
            await client.add(1)
            before = await engine.usage(instance)
            for _ in range(50):
                await client.add(1)
            after = await engine.usage(instance)
            assert after["cpu_s"] > before["cpu_s"]
            assert after["memory_bytes"] > 0
