"""What ``Records`` remembers of what it stored, which bursts trust without a look at the catalog."""

from __future__ import annotations

import asyncio

import pytest
from fake_sessions import value

from torpor.adapters.catalog.memory import MemoryCatalog
from torpor.adapters.clock.virtual import VirtualClock
from torpor.domain.errors import NotFound, Unavailable
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.ids import SessionId, TenantId
from torpor.domain.lifecycle import Create, SetClocks
from torpor.domain.session import Session, Status
from torpor.services.records import Records
from torpor.services.requests import CreateRequest

ID = SessionId("a" * 20)


class Watched(MemoryCatalog):
    """Loses or delays answers to writes."""

    def __init__(self) -> None:
        super().__init__()
        self.losses_count = 0
        self.gate: asyncio.Event | None = None
        self.writing = asyncio.Event()

    async def replace(self, session):
        if self.gate is not None:
            self.writing.set()
            await self.gate.wait()
        stored = await super().replace(session)
        if self.losses_count:
            self.losses_count -= 1
            raise Unavailable("no answer", retry_after_s=0.0)
        return stored


@pytest.fixture
async def catalog():
    catalog = Watched()
    await catalog.insert(Session(ID, TENANT, template="data", template_digest="b3:0", created_at_s=0.0))
    return catalog


async def test_what_was_stored_is_known_to_its_tenant_only(catalog):
    records = Records(catalog, VirtualClock())
    assert records.last(TENANT, ID) is None
    stored = (await records.apply(TENANT, ID, Create())).session
    assert records.last(TENANT, ID) == stored == await catalog.get(TENANT, ID)
    assert records.last(TenantId("stranger"), ID) is None


async def test_nothing_is_known_while_a_write_is_under_way(catalog):
    records = Records(catalog, VirtualClock())
    await records.apply(TENANT, ID, Create())
    catalog.gate = asyncio.Event()
    writing = asyncio.ensure_future(records.apply(TENANT, ID, SetClocks()))
    await asyncio.wait_for(catalog.writing.wait(), 10)
    assert records.last(TENANT, ID) is None
    catalog.gate.set()
    assert records.last(TENANT, ID) is None
    assert (await writing).session == records.last(TENANT, ID)


async def test_a_write_without_an_answer_is_not_taken_for_one_that_was_stored(catalog):
    records = Records(catalog, VirtualClock())
    before = (await records.apply(TENANT, ID, Create())).session
    catalog.losses_count = 1
    after = (await records.apply(TENANT, ID, SetClocks())).session
    assert after.revision > before.revision
    assert records.last(TENANT, ID) in (None, after)


async def test_a_burst_of_a_running_session_reads_no_record_and_one_of_a_deleted_session_finds_none(
    node, machine, monkeypatch
):
    session, _ = await node.sessions.create(TENANT, CreateRequest(name="day"))
    reads: list[str] = []
    read = machine.catalog.get

    async def noting(tenant, session):
        reads.append(session)
        return await read(tenant, session)

    monkeypatch.setattr(machine.catalog, "get", noting)
    await value(node, session.id, "set x 1")
    assert await value(node, session.id, "get x") == "1"
    assert reads == []
    await node.sessions.pause(TENANT, session.id)
    assert await value(node, session.id, "get x") == "1"
    assert (await node.sessions.get(TENANT, session.id)).status is Status.RUNNING
    await node.sessions.delete(TENANT, session.id)
    with pytest.raises(NotFound):
        await node.sessions.code(TENANT, session.id, "get x")
