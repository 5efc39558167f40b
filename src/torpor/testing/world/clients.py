"""Clients of a world: they ask for anything at any time, count what they were promised, and in the end want it all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from torpor.domain.errors import Conflict, GuestError, NotFound, TorporError
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.ids import SessionId
from torpor.domain.session import PAUSED, Durability, Session, Status
from torpor.services.requests import Burst, CreateRequest
from torpor.testing.world.witness import COUNTER, Violation

if TYPE_CHECKING:
    from torpor.testing.world.world import World

CLIENTS = 3
SESSIONS_MAX = 3
OPERATIONS = 6
THINK_S = 4.0
PATIENCE_S = 60.0  # longer than any deadline of the services
ROUNDS_MAX = 30


class ServerGoneError(Exception):
    """No answer will come: what was asked for may have happened."""


class Clients:
    """All of a world's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names_count = 0

    async def misuse(self) -> None:
        """Random operations, several at once, whatever comes of them."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._wander())

    async def _wander(self) -> None:
        world = self._world
        for _ in range(OPERATIONS):
            await asyncio.sleep(world.random.random() * THINK_S)
            if world.witness.violations:
                return
            try:
                await self._anything()
            except ServerGoneError as gone:
                world.story(f"client: {gone}")
                await asyncio.sleep(world.random.random())
            except TorporError as error:
                world.story(f"client: refused: {error.code}: {error.message}")

    async def _anything(self) -> None:
        random, known = self._world.random, self._world.ids()
        if not known or (self._names_count < SESSIONS_MAX and random.random() < 0.3):
            await self.create()
            return
        session = random.choice(known)
        acts: tuple[tuple[int, Callable[[SessionId], Awaitable[object]]], ...] = (
            (50, self.count),
            (20, self.pause),
            (6, self.pause_unwaited),
            (8, self.resume),
            (4, self.resume_older),
            (4, self.delete),
            (4, self.usage),
        )
        act = random.choices([act for _, act in acts], [weight for weight, _ in acts])[0]
        self._world.story(f"client: {act.__name__} {session}")
        await act(session)

    async def create(self) -> SessionId:
        """A new session."""
        name = f"s{self._names_count}"
        self._names_count += 1
        self._world.story(f"client: create {name}")
        session, _ = await self._world.call(
            lambda sessions: sessions.create(TENANT, CreateRequest(name=name)), patience_s=PATIENCE_S
        )
        return session.id

    async def count(self, session: SessionId) -> Burst:
        """A burst that counts up."""
        promise = self._world.witness.promise(session)
        promise.attempts += 1
        floor, epoch = promise.acknowledged, promise.epoch
        burst = await self._world.call(
            lambda sessions: sessions.code(TENANT, session, f"incr {COUNTER}"), patience_s=PATIENCE_S
        )
        assert burst.result.result is not None
        if self._world.witness.told(session, burst.resumption):
            floor, epoch = 0, promise.epoch
        value = int(burst.result.result["text/plain"])
        self._world.witness.counted(session, value, floor=floor, epoch=epoch)
        return burst

    async def pause(self, session: SessionId) -> Session:
        """Returns once the snapshot is durable."""
        return await self._world.call(
            lambda sessions: sessions.pause(TENANT, session, wait=Durability.DISK), patience_s=PATIENCE_S
        )

    async def pause_unwaited(self, session: SessionId) -> Session:
        """Returns at once."""
        return await self._world.call(
            lambda sessions: sessions.pause(TENANT, session, wait=None), patience_s=PATIENCE_S
        )

    async def resume(self, session: SessionId) -> None:
        """Bring it back."""
        _, resumption = await self._world.call(lambda sessions: sessions.resume(TENANT, session), patience_s=PATIENCE_S)
        self._world.witness.told(session, resumption)

    async def resume_older(self, session: SessionId) -> None:
        """Bring it back, at an older state if there is no newer one."""
        _, resumption = await self._world.call(
            lambda sessions: sessions.resume(TENANT, session, allow_older=True), patience_s=PATIENCE_S
        )
        self._world.witness.told(session, resumption)

    async def delete(self, session: SessionId) -> None:
        """Remove it."""
        await self._world.call(lambda sessions: sessions.delete(TENANT, session), patience_s=PATIENCE_S)

    async def usage(self, session: SessionId) -> None:
        """What its instance uses."""
        await self._world.call(lambda sessions: sessions.usage(TENANT, session), patience_s=PATIENCE_S)

    # ---- without faults every one of these must do what it says ------------------------------------------------------

    async def finish(self) -> None:
        """Every session works, pauses, resumes with what it had, and half of them are deleted."""
        for number, session in enumerate(self._world.ids()):
            try:
                if await self._is_usable(session) and number % 2:
                    await self.delete(session)
            except (TorporError, ServerGoneError) as error:
                raise Violation(f"{session}: without faults this failed: {error}") from error
            self._world.raise_violation()
        fresh = await self.create()
        await self.count(fresh)

    async def _is_usable(self, session: SessionId) -> bool:
        """False if it is gone."""
        for told in (False, True):
            try:
                await self.count(session)
                break
            except NotFound:
                return False  # deleted meanwhile
            except GuestError:
                if told:  # of what happened to its channel while there were faults; once
                    raise
            except Conflict as conflict:
                if not await self._is_taken_back(session, conflict):
                    return False
                break
        paused = await self.pause(session)
        if paused.status not in PAUSED:
            raise Violation(f"{session}: is {paused.status} after a pause")
        resumed = await self.count(session)
        if resumed.resumption is None:
            raise Violation(f"{session}: was not resumed")
        if self._world.random.random() < 0.3:
            await self.pause_unwaited(session)
            await self.count(session)
        return True

    async def _is_taken_back(self, session: SessionId, conflict: Conflict) -> bool:
        """A session that was lost goes back to its last snapshot, or is deleted if it has none."""
        record = self._world.witness.records[session]
        if record.status is Status.DELETING:
            await self.delete(session)
            return False
        if record.status is not Status.LOST:
            raise conflict
        if record.snapshot is None:
            await self.delete(session)
            return False
        await self.resume_older(session)
        await self.count(session)
        return True
