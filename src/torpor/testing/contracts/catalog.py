"""What every catalog promises. Subclass, and give the fixtures ``catalog`` and ``other``."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from torpor.domain.errors import Conflict, InvalidArgument, NotFound, StaleRevision
from torpor.domain.ids import InstanceId, SessionId, TenantId
from torpor.domain.session import (
    DeadlineAction,
    Durability,
    Limits,
    Moment,
    OnResume,
    Persistence,
    Policy,
    Session,
    SnapshotRecord,
    Status,
)
from torpor.ports.catalog import Catalog, TemplateRecord

TENANT = TenantId("acme")
STRANGER = TenantId("umbrella")


def session(number: int = 0, **changes: Any) -> Session:  # noqa: ANN401 - any field of the record
    """A record with an id of its own; ``changes`` are what a test is about."""
    record = Session(
        id=SessionId(f"s{number:019d}"),
        tenant=TENANT,
        template="data",
        template_digest="b3:0123",
        created_at_s=1000.0 + number,
    )
    return replace(record, **changes)


def full_session() -> Session:
    """A record in which every field differs from its default."""
    return session(
        7,
        name="analysis",
        status=Status.PAUSED_DURABLE,
        limits=Limits(cpus=0.5, memory_bytes=1 << 33, disk_bytes=1 << 34, pids_max=7),
        metadata={"owner": "ü", "": ""},
        env={"PATH": "/bin", "EMPTY": ""},
        generation=3,
        operation=9,
        wrapped_key="a2V5",
        node="n1.4",
        instance=InstanceId("i" * 20),
        snapshot=SnapshotRecord(
            ref={"manifest": "m1", "bytes": 12, "looks_like_a_number": "12"},
            sequence=5,
            instant_s=1700000000.123456,
            image_bytes=1 << 40,
            new_bytes=11,
            timings_ms={"seal": 1.5},
        ),
        durability=Durability.OBJECT,
        paused_at_s=1700000000.25,
        running_since_s=0.1,
        ordered_at_s=1700000001.0,
        compute_s=0.30000000000000004,
        cpu_s=0.1,
        resumes_count=2,
        last_error="engine died",
        last_error_code="engine_error",
        last_timings_ms={"restore": 12.0},
        persistence=Persistence.FILESYSTEM,
        policy=Policy(5.0, 60.5, DeadlineAction.KILL, None, OnResume.REBUILD),
        hard_deadline_at_s=1800000000.5,
        run_deadline_at_s=1700000060.0,
        run_left_s=0.1,
        lost_at_s=1700000002.0,
        expiry_warned_at_s=1700000003.0,
        forked_from=SessionId("p" * 20),
        distrusts_snapshot=True,
        timeline=(Moment(1700000000.0, Status.PAUSING, "pause", "idle"),),
    )


def template(name: str = "data", digest: str = "b3:0123", **changes: Any) -> TemplateRecord:  # noqa: ANN401
    """A template record; ``changes`` are what a test is about."""
    record = TemplateRecord(
        tenant=TENANT,
        name=name,
        digest=digest,
        created_at_s=1000.0,
        wrapped_key="a2V5",
        golden={"manifest": "g1", "bytes": 3},
        engine_build="gvisor-1",
        image_bytes=67_000_000,
        shape={"memory_bytes": 1 << 30, "cpus": 2.0, "env": ["A=1"]},
    )
    return replace(record, **changes)


class SessionContract:
    """Session records."""

    @pytest.fixture
    def catalog(self) -> Catalog:
        """A fresh catalog."""
        raise NotImplementedError

    @pytest.fixture
    def other(self, catalog: Catalog) -> Catalog:
        """A second handle on the same records, as another process has one."""
        return catalog

    async def test_a_record_comes_back_whole_at_revision_one(self, catalog: Catalog, other: Catalog) -> None:
        stored = await catalog.insert(full_session())
        assert stored == replace(full_session(), revision=1)
        assert await other.get(TENANT, stored.id) == stored

    async def test_defaults_come_back_as_they_were(self, catalog: Catalog, other: Catalog) -> None:
        stored = await catalog.insert(session())
        assert await other.get(TENANT, stored.id) == replace(session(), revision=1)

    async def test_an_id_is_taken_once(self, catalog: Catalog, other: Catalog) -> None:
        await catalog.insert(session(name="one"))
        with pytest.raises(Conflict) as refusal:
            await other.insert(session(name="two"))
        assert refusal.value.details["reason"] == "id_is_taken"
        assert (await catalog.get(TENANT, session().id)).name == "one"

    async def test_a_name_is_taken_once(self, catalog: Catalog, other: Catalog) -> None:
        await catalog.insert(session(1, name="mine"))
        with pytest.raises(Conflict) as refusal:
            await other.insert(session(2, name="mine"))
        assert refusal.value.details["reason"] == "name_is_taken"
        with pytest.raises(NotFound):
            await catalog.get(TENANT, session(2).id)

    async def test_unnamed_sessions_do_not_collide(self, catalog: Catalog) -> None:
        await catalog.insert(session(1))
        await catalog.insert(session(2))
        assert len((await catalog.page(TENANT)).sessions) == 2

    async def test_a_name_may_be_used_by_each_tenant(self, catalog: Catalog) -> None:
        await catalog.insert(session(1, name="mine"))
        theirs = await catalog.insert(session(2, name="mine", tenant=STRANGER))
        assert await catalog.find(STRANGER, "mine") == theirs

    async def test_a_deleted_session_gives_its_name_back(self, catalog: Catalog) -> None:
        first = await catalog.insert(session(1, name="mine"))
        await catalog.replace(replace(first, status=Status.DELETED))
        assert await catalog.find(TENANT, "mine") is None
        second = await catalog.insert(session(2, name="mine"))
        assert await catalog.find(TENANT, "mine") == second
        assert (await catalog.get(TENANT, first.id)).name == "mine"

    async def test_a_replacement_may_not_take_a_name(self, catalog: Catalog) -> None:
        await catalog.insert(session(1, name="mine"))
        second = await catalog.insert(session(2, name="yours"))
        with pytest.raises(Conflict) as refusal:
            await catalog.replace(replace(second, name="mine"))
        assert refusal.value.details["reason"] == "name_is_taken"
        assert await catalog.get(TENANT, second.id) == second

    async def test_replace_counts_revisions(self, catalog: Catalog, other: Catalog) -> None:
        first = await catalog.insert(session())
        second = await catalog.replace(replace(first, status=Status.RUNNING))
        third = await other.replace(replace(second, generation=1))
        assert (second.revision, third.revision) == (2, 3)
        assert await catalog.get(TENANT, first.id) == third

    async def test_a_lost_race_changes_nothing(self, catalog: Catalog, other: Catalog) -> None:
        first = await catalog.insert(session())
        won = await other.replace(replace(first, node="n1"))
        with pytest.raises(StaleRevision) as refusal:
            await catalog.replace(replace(first, node="n2"))
        assert refusal.value.details["revision"] == 2
        assert await catalog.get(TENANT, first.id) == won

    async def test_of_many_racers_one_wins_each_round(self, catalog: Catalog, other: Catalog) -> None:
        first = await catalog.insert(session())
        racers = [
            handle.replace(replace(first, node=f"n{number}")) for number, handle in enumerate([catalog, other] * 5)
        ]
        ends = await asyncio.gather(*racers, return_exceptions=True)
        winners = [end for end in ends if isinstance(end, Session)]
        assert [type(end) for end in ends if end not in winners] == [StaleRevision] * 9
        assert [await catalog.get(TENANT, first.id)] == winners

    async def test_what_is_not_there_is_not_found(self, catalog: Catalog) -> None:
        stored = await catalog.insert(session())
        with pytest.raises(NotFound):
            await catalog.get(TENANT, session(9).id)
        with pytest.raises(NotFound):
            await catalog.replace(session(9, revision=1))
        with pytest.raises(NotFound):
            await catalog.get(STRANGER, stored.id)
        with pytest.raises(NotFound):
            await catalog.replace(replace(stored, tenant=STRANGER))
        assert await catalog.find(TENANT, "nobody") is None

    async def test_pages_run_from_newest_to_oldest_without_gaps(self, catalog: Catalog) -> None:
        # Two share an instant, so that the id has to decide.
        for number in (3, 1, 4, 2, 5):
            await catalog.insert(session(number, created_at_s=1000.0 + number // 2 + 0.1))
        await catalog.insert(session(9, tenant=STRANGER))
        gone = await catalog.insert(session(6))
        await catalog.replace(replace(gone, status=Status.DELETED))
        listed, cursor = [], None
        for _ in range(3):
            page = await catalog.page(TENANT, cursor=cursor, limit=2)
            listed.append([int(found.id[1:]) for found in page.sessions])
            cursor = page.cursor
        assert listed == [[5, 4], [3, 2], [1]]
        assert cursor is None

    async def test_a_page_does_not_shift_when_sessions_come_and_go(self, catalog: Catalog) -> None:
        records = [await catalog.insert(session(number)) for number in range(4)]
        first = await catalog.page(TENANT, limit=2)
        await catalog.insert(session(8))
        await catalog.replace(replace(records[2], status=Status.DELETED))
        second = await catalog.page(TENANT, cursor=first.cursor, limit=2)
        assert [found.id for found in second.sessions] == [session(1).id, session(0).id]

    @pytest.mark.parametrize("cursor", ["", "!", "e30", "WzEsMl0", "bm90IGpzb24", "é"])
    async def test_a_cursor_nobody_gave_is_refused(self, catalog: Catalog, cursor: str) -> None:
        with pytest.raises(InvalidArgument) as refusal:
            await catalog.page(TENANT, cursor=cursor)
        assert refusal.value.details["field"] == "cursor"

    @pytest.mark.parametrize("limit", [0, -1, 100_000])
    async def test_a_page_has_a_sensible_length(self, catalog: Catalog, limit: int) -> None:
        with pytest.raises(InvalidArgument) as refusal:
            await catalog.page(TENANT, limit=limit)
        assert refusal.value.details["field"] == "limit"

    async def test_unfinished_are_those_a_start_has_to_reconcile(self, catalog: Catalog) -> None:
        for number, status in enumerate(Status):
            await catalog.insert(session(number, status=status, tenant=TENANT if number % 2 else STRANGER))
        found = {record.status for record in await catalog.unfinished()}
        assert found == set(Status) - {Status.PAUSED_LOCAL, Status.PAUSED_DURABLE, Status.LOST, Status.DELETED}


class TemplateContract:
    """Template records."""

    async def test_due_are_those_of_which_a_clock_has_ended(self, catalog: Catalog) -> None:
        kept_s = Policy(retention_s=100.0)
        marks: tuple[dict[str, Any], ...] = (
            {"hard_deadline_at_s": 50.0},
            {"status": Status.RUNNING, "run_deadline_at_s": 60.0, "policy": kept_s},
            {"status": Status.PAUSED_LOCAL, "paused_at_s": 10.0, "policy": kept_s},
            {"status": Status.DELETED, "hard_deadline_at_s": 1.0},
            {"policy": kept_s},
        )
        for number, changes in enumerate(marks):
            await catalog.insert(session(number, **changes))

        async def due(now_s: float) -> set[str]:
            return {found.id for found in await catalog.due(now_s)}

        assert await due(49.0) == set()
        assert await due(60.0) == {session(0).id, session(1).id}
        assert await due(100.0) == {session(0).id, session(1).id, session(2).id}  # its expiry is announced at 100

    async def test_a_template_comes_back_whole_by_name_and_digest(self, catalog: Catalog, other: Catalog) -> None:
        await catalog.put_template(template())
        assert await other.template(TENANT, "data") == template()
        assert await other.template(TENANT, "b3:0123") == template()

    async def test_a_later_template_takes_the_name_over(self, catalog: Catalog) -> None:
        # The clock is no judge of order: the later put is the newer, though it says it is older.
        await catalog.put_template(template(digest="b3:old", created_at_s=2000.0))
        await catalog.put_template(template(digest="b3:new", created_at_s=1000.0))
        assert (await catalog.template(TENANT, "data")).digest == "b3:new"
        assert (await catalog.template(TENANT, "b3:old")).digest == "b3:old"
        assert [found.digest for found in await catalog.templates(TENANT)] == ["b3:new"]

    async def test_a_template_put_again_is_replaced_and_newest(self, catalog: Catalog) -> None:
        await catalog.put_template(template(digest="b3:one"))
        await catalog.put_template(template(digest="b3:two"))
        await catalog.put_template(template(digest="b3:one", engine_build="gvisor-2"))
        assert (await catalog.template(TENANT, "data")).engine_build == "gvisor-2"
        assert len(await catalog.templates(TENANT)) == 1

    async def test_a_name_comes_before_a_digest_of_the_same_text(self, catalog: Catalog) -> None:
        await catalog.put_template(template(name="b3:0123", digest="b3:else"))
        await catalog.put_template(template(name="data", digest="b3:0123"))
        assert (await catalog.template(TENANT, "b3:0123")).digest == "b3:else"

    async def test_templates_are_listed_by_name_within_a_tenant(self, catalog: Catalog) -> None:
        for name in ("web", "data", "bare"):
            await catalog.put_template(template(name=name))
        await catalog.put_template(template(name="theirs", tenant=STRANGER))
        assert [found.name for found in await catalog.templates(TENANT)] == ["bare", "data", "web"]

    async def test_an_unknown_template_names_the_known_ones(self, catalog: Catalog) -> None:
        await catalog.put_template(template())
        with pytest.raises(NotFound, match="data") as refusal:
            await catalog.template(TENANT, "dta")
        assert refusal.value.details["known"] == ["data"]
        with pytest.raises(NotFound):
            await catalog.template(STRANGER, "data")


class CatalogContract(SessionContract, TemplateContract):
    """The whole port."""
