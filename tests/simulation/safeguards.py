"""What keeps the services safe, each taken out by itself: a patch for the time of a ``with`` block."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from unittest import mock

from torpor.adapters.catalog.memory import MemoryCatalog
from torpor.domain import lifecycle
from torpor.domain.errors import Conflict, TorporError
from torpor.domain.lifecycle import Accepted, Ignored, decide
from torpor.ports.guest import Cause, Notice
from torpor.services import driver, live, patience, placement, reconcile, records
from torpor.services.capture import Capture
from torpor.services.driver import Driver
from torpor.services.reconcile import Reconciler, Settled
from torpor.services.records import Decided, Records
from torpor.store.heads import Heads
from torpor.store.packer import Packer


async def nothing(*_: object, **__: object) -> None:
    """In place of a coroutine that would do something."""


@contextlib.contextmanager
def patched(owner: object, **replacements: object) -> Iterator[None]:
    with mock.patch.multiple(owner, **replacements):
        yield


def stale_reports_count() -> contextlib.AbstractContextManager[None]:
    """A report counts under whatever numbers it was ordered with."""
    return patched(lifecycle, _staleness=lambda _session, _report: None)


def records_are_overwritten() -> contextlib.AbstractContextManager[None]:
    """The catalog compares no revision, and nobody waits for his turn."""

    async def replace(self: MemoryCatalog, session):
        stored = await self.get(session.tenant, session.id)
        return self._keep(session, revision=stored.revision + 1)

    async def apply(self: Records, tenant, session, event, **_seen):
        return await _believing(self, await self._catalog.get(tenant, session), event)

    stack = contextlib.ExitStack()
    stack.enter_context(patched(MemoryCatalog, replace=replace))
    stack.enter_context(patched(Records, apply=apply))
    return stack


async def _believing(records: Records, record, event) -> Decided:
    """Decide on ``record`` once, and store it once: what follows if it no longer stands is not looked at."""
    decision = decide(record, event, now_s=records._clock.wall_s())
    if isinstance(decision, Accepted):
        return Decided(await records._catalog.replace(decision.session), decision)
    if isinstance(decision, Ignored):
        return Decided(record, decision)
    raise Conflict(decision.reason)


def effects_come_before_records() -> contextlib.AbstractContextManager[None]:
    """An event is taken for stored, and is stored a little later."""

    async def apply(self: Records, tenant, session, event, *, whole=Records.apply, **_seen):
        record = await self._catalog.get(tenant, session)
        decision = decide(record, event, now_s=self._clock.wall_s())
        later = asyncio.get_running_loop().create_task(_after(1.0, lambda: whole(self, tenant, session, event)))
        del later
        if isinstance(decision, Accepted | Ignored):
            return Decided(decision.session if isinstance(decision, Accepted) else record, decision)
        raise Conflict(decision.reason)

    return patched(Records, apply=apply)


async def _after(delay_s: float, act: Callable[[], Awaitable[object]]) -> None:
    await asyncio.sleep(delay_s)
    with contextlib.suppress(TorporError):
        await act()


def lost_answers_are_failures() -> contextlib.AbstractContextManager[None]:
    """A write whose answer was lost is not looked up, nor tried again."""

    async def apply(self: Records, tenant, session, event, **_seen):
        return await self._attempt(tenant, session, event, [])

    return patched(Records, apply=apply)


def what_was_seen_is_believed() -> contextlib.AbstractContextManager[None]:
    """A record that was read a while ago is decided on, also where no swap shows whether it still stands."""

    async def foreseen(self: Records, seen, event, _unanswered):
        return await _believing(self, seen, event)

    return patched(Records, _foreseen=foreseen)


def nothing_is_reconciled() -> contextlib.AbstractContextManager[None]:
    """A start serves at once."""

    async def run(_self: Reconciler) -> Settled:
        return Settled()

    return patched(Reconciler, run=run)


def orphans_are_left() -> contextlib.AbstractContextManager[None]:
    """A start destroys no instance."""
    return patched(reconcile, destroy_surely=nothing)


def adopted_guests_stay_parked() -> contextlib.AbstractContextManager[None]:
    """Nobody tells a guest to go on in place."""
    return patched(Driver, go_on=nothing)


def nothing_is_tried_again() -> contextlib.AbstractContextManager[None]:
    """What must be done is tried once."""

    async def once(act, *_over, deed, patience_s=0.0):
        del deed, patience_s
        return await act()

    stack = contextlib.ExitStack()
    for room in (patience, records):
        stack.enter_context(patched(room, patiently=once))
    return stack


class _NoLock:
    def locked(self) -> bool:
        return False

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None


def placing_is_not_locked() -> contextlib.AbstractContextManager[None]:
    """Whoever wakes a session places it."""

    class Unlocked(live.Runtime):
        def __init__(self) -> None:
            super().__init__(placing=_NoLock())  # type: ignore[arg-type]

    return patched(live, Runtime=Unlocked)


def captured_guests_go_on() -> contextlib.AbstractContextManager[None]:
    """An instance is let go on as soon as its image is written."""

    async def store(self: Capture, request, give_up, whole=Capture._store_unless):
        for one in _LIVE:
            with contextlib.suppress(TorporError):
                await one.engine.thaw(one.instance)
                one.guest._link.unpark()
                await one.guest.proceed(dataclasses.replace(_NOTICE, wall_time_s=0.0))
        return await whole(self, request, give_up)

    async def take(self: Capture, live, order, give_up, whole=Capture.take):
        _LIVE[:] = [live]
        return await whole(self, live, order, give_up)

    return patched(Capture, _store_unless=store, take=take)


_LIVE: list = []
_NOTICE = Notice(
    session="x", generation=0, cause=Cause.ABORTED, clone=False, wall_time_s=0.0, gap_s=0.0, paused_at_s=None,
    entropy=bytes(32), hostname="x", machine_id="0" * 32,
)  # fmt: skip


def release_comes_before_commit() -> contextlib.AbstractContextManager[None]:
    """The old instance is destroyed before its snapshot is in the store."""

    async def take(self: Capture, live, order, give_up, whole=Capture.take):
        async def destroying(request):
            await live.engine.destroy(live.instance)
            return await self._store.write(request)

        with mock.patch.object(Capture, "_store_unless", lambda _self, request, _give_up: destroying(request)):
            return await whole(self, live, order, give_up)

    return patched(Capture, take=take)


def pointer_moves_after_the_answer() -> contextlib.AbstractContextManager[None]:
    """A snapshot is told of before the store's pointer names it: it never does."""

    async def advance(_self: Heads, _ref) -> int:
        return 1

    return patched(Heads, advance=advance)


def pointer_moves_before_the_packs() -> contextlib.AbstractContextManager[None]:
    """Packs are written some time after the manifest."""

    async def upload(self: Packer, pack, sealed, whole=Packer._upload):
        later = asyncio.get_running_loop().create_task(_after(2.0, lambda: whole(self, pack, sealed)))
        del later

    return patched(Packer, _upload=upload)


def placed_too_late_is_kept() -> contextlib.AbstractContextManager[None]:
    """A failed attempt's instance is not destroyed."""
    stack = contextlib.ExitStack()
    for room in (placement, driver):
        for name in ("destroy_surely", "discard"):
            if hasattr(room, name):
                stack.enter_context(patched(room, **{name: nothing}))
    return stack


def a_pause_moves_no_clock() -> contextlib.AbstractContextManager[None]:
    """The run clock goes on while a session rests."""
    return patched(lifecycle, keep_time=lambda session, **_: session)


SAFEGUARDS = (
    stale_reports_count,
    records_are_overwritten,
    effects_come_before_records,
    lost_answers_are_failures,
    what_was_seen_is_believed,
    nothing_is_reconciled,
    orphans_are_left,
    adopted_guests_stay_parked,
    nothing_is_tried_again,
    placing_is_not_locked,
    captured_guests_go_on,
    release_comes_before_commit,
    pointer_moves_after_the_answer,
    pointer_moves_before_the_packs,
    placed_too_late_is_kept,
    a_pause_moves_no_clock,
)
