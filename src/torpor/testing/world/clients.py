"""Clients of a world: they ask for anything at any time, count what they were promised, and in the end want it all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from torpor.domain.errors import Conflict, GuestError, NotFound, TorporError
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.ids import SessionId
from torpor.domain.session import DAY_S, PAUSED, DeadlineAction, Durability, Policy, Session, Status
from torpor.services.requests import Burst, ClockChange, CreateRequest, ForkRequest
from torpor.testing.world.witness import COUNTER, Violation

if TYPE_CHECKING:
    from torpor.testing.world.world import World

CLIENTS = 3
SESSIONS_MAX = 3
OPERATIONS = 5
FORKS_MAX = 2
THINK_S = 4.0
PATIENCE_S = 150.0  # longer than any deadline of the services
ROUNDS_MAX = 30


class ServerGoneError(Exception):
    """No answer will come: what was asked for may have happened."""


class Clients:
    """All of a world's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names_count = 0
        self._forks_count = 0
        self._hasty = True

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
            (44, self.count),
            (16, self.pause),
            (6, self.pause_unwaited),
            (6, self.resume),
            (4, self.resume_older),
            (8, self.snapshot),
            (6, self.fork),
            (4, self.set_clocks),
            (4, self.delete),
            (2, self.usage),
        )
        act = random.choices([act for _, act in acts], [weight for weight, _ in acts])[0]
        self._world.story(f"client: {act.__name__} {session}")
        await act(session)

    async def create(self) -> SessionId:
        """A new session."""
        name = f"s{self._names_count}"
        self._names_count += 1
        self._world.story(f"client: create {name}")
        request = CreateRequest(name=name, policy=self._any_policy())
        session, _ = await self._world.call(lambda node: node.sessions.create(TENANT, request), patience_s=PATIENCE_S)
        return session.id

    def _any_policy(self) -> Policy:
        random = self._world.random
        return Policy(
            idle_s=random.choice((None, 5.0, 30.0)),
            timeout_s=random.choice((None, None, 20.0)),
            timeout_action=random.choice((DeadlineAction.PAUSE, DeadlineAction.PAUSE, DeadlineAction.KILL)),
            retention_s=random.choice((None, 100.0, 30 * DAY_S)),
        )

    async def count(self, session: SessionId) -> Burst:
        """A burst that counts up."""
        promise = self._world.witness.promise(session)
        promise.attempts += 1
        floor, epoch = promise.acknowledged, promise.epoch
        burst = await self._world.call(
            lambda node: node.sessions.code(TENANT, session, f"incr {COUNTER}"),
            patience_s=self._world.random.choice((2.0, PATIENCE_S)) if self._hasty else PATIENCE_S,
            is_stream=True,
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
            lambda node: node.sessions.pause(TENANT, session, wait=Durability.DISK), patience_s=PATIENCE_S
        )

    async def pause_unwaited(self, session: SessionId) -> Session:
        """Returns at once."""
        return await self._world.call(
            lambda node: node.sessions.pause(TENANT, session, wait=None), patience_s=PATIENCE_S
        )

    async def resume(self, session: SessionId) -> None:
        """Bring it back."""
        _, resumption = await self._world.call(
            lambda node: node.sessions.resume(TENANT, session), patience_s=PATIENCE_S
        )
        self._world.witness.told(session, resumption)

    async def resume_older(self, session: SessionId) -> None:
        """Bring it back, at an older state if there is no newer one."""
        _, resumption = await self._world.call(
            lambda node: node.sessions.resume(TENANT, session, allow_older=True), patience_s=PATIENCE_S
        )
        self._world.witness.told(session, resumption)

    async def snapshot(self, session: SessionId) -> Session:
        """Store it as it is; it goes on."""
        return await self._world.call(lambda node: node.sessions.snapshot(TENANT, session), patience_s=PATIENCE_S)

    async def fork(self, session: SessionId) -> None:
        """A copy of it. The witness knows it by its record."""
        if self._forks_count < FORKS_MAX:
            self._forks_count += 1
            await self._world.call(lambda node: node.forks.fork(TENANT, session, ForkRequest()), patience_s=PATIENCE_S)

    async def set_clocks(self, session: SessionId) -> None:
        """Set them anew."""
        change = ClockChange(policy=self._any_policy(), fields=frozenset({"idle_s", "timeout_s", "retention_s"}))
        await self._world.call(lambda node: node.sessions.set_clocks(TENANT, session, change), patience_s=PATIENCE_S)

    async def delete(self, session: SessionId) -> None:
        """Remove it."""
        await self._world.call(lambda node: node.sessions.delete(TENANT, session), patience_s=PATIENCE_S)

    async def usage(self, session: SessionId) -> None:
        """What its instance uses."""
        await self._world.call(lambda node: node.sessions.usage(TENANT, session), patience_s=PATIENCE_S)

    # ---- without faults every one of these must do what it says ------------------------------------------------------

    async def finish(self) -> None:
        """Every session works; then it pauses and resumes with what it had, or is deleted, or both."""
        self._hasty = False
        for session in self._world.ids():
            rests, goes = self._world.random.choices(((True, False), (False, True), (True, True)), (9, 8, 3))[0]
            try:
                if await self._answers(session) and (not rests or await self._rests(session)) and goes:
                    await self.delete(session)
            except (TorporError, ServerGoneError) as error:
                ended = self._world.witness.records[session].status in {Status.DELETING, Status.DELETED}
                if ended or (isinstance(error, TorporError) and error.details.get("reason") == "paused_during_burst"):
                    continue  # one of its clocks was faster
                raise Violation(f"{session}: without faults this failed: {error}") from error
            self._world.raise_violation()
        try:
            await self.count(await self.create())
        except (TorporError, ServerGoneError) as error:
            raise Violation(f"without faults a new session failed: {error}") from error

    async def _rests(self, session: SessionId) -> bool:
        """True once it was paused and has come back. Raises: Violation."""
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

    async def _answers(self, session: SessionId) -> bool:
        """A burst counts; of what happened to it while there were faults its client may be told, once."""
        for told in (False, True):
            try:
                await self.count(session)
            except NotFound:
                return False  # deleted meanwhile
            except GuestError:
                if told:
                    raise
            except Conflict as conflict:
                if conflict.details.get("reason") != "paused_during_burst" or told:  # its run deadline came
                    return await self._is_taken_back(session, conflict)
            else:
                return True
        return True

    async def _is_taken_back(self, session: SessionId, conflict: Conflict) -> bool:
        """A session that was lost goes back to its last snapshot, or is deleted if it has none."""
        record = self._world.witness.records[session]
        if record.status is Status.DELETED:
            return False  # one of its clocks was faster
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
