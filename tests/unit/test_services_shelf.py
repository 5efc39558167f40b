"""The shelf of templates: what nobody needs goes with all that is its own, and nothing else does."""

from __future__ import annotations

import shutil

import pytest
from stored_nodes import Shared, make_tree, node, silent, value

from torpor.domain.errors import Conflict, NotFound
from torpor.domain.ids import DEFAULT_TENANT as TENANT
from torpor.domain.session import Limits
from torpor.domain.snapshot import SnapshotRef
from torpor.services.requests import CreateRequest
from torpor.services.rootfs import META_FIELD
from torpor.services.shelf import Shelf
from torpor.services.templates import PUBLIC_TENANT, RootFilesystem


class Home:
    """A node's services, its shelf, and the folder of its trees."""

    def __init__(self, services, catalog, engine, folder):
        self.services = services
        self.catalog = catalog
        self.folder = folder
        self.shelf = Shelf(catalog, catalog, services.store, self._remove_rootfs)
        self._engine = engine

    async def build(self, name, *files):
        """A template of a tree with those files."""
        digest = make_tree(self.folder, *files)
        rootfs = RootFilesystem(name, digest, self.folder / digest / "rootfs")
        record, _ = await self.services.templates.capture_golden(rootfs, self._engine, Limits(), silent)
        return record

    async def stored(self, record):
        """Whether the golden snapshot and the stored tree of a template can be read: both, or neither."""
        golden = SnapshotRef.from_json(record.golden)
        head = await self.services.store.head(golden.tenant, golden.subject)
        if head is None:
            return False
        rootfs = SnapshotRef.from_json((await self.services.store.open(head)).meta[META_FIELD])
        return (await self.services.store.open(rootfs)) is not None

    def trees(self):
        """Digests of the trees that lie here."""
        return {path.name for path in self.folder.iterdir() if len(path.name) == 64}

    async def _remove_rootfs(self, digest):
        shutil.rmtree(self.folder / digest)


@pytest.fixture
async def home(tmp_path):
    async with node(Shared(), tmp_path / "home") as (services, catalog, engine):
        yield Home(services, catalog, engine, tmp_path / "home")


@pytest.fixture
async def three(home):
    """Three builds of one name, from old to new: a session was made of the first, nothing of the second."""
    used = await home.build("data", "a")
    await home.services.sessions.create(TENANT, CreateRequest(name="day", template="data"))
    await value(home.services, "day", "set x 41")
    await home.services.sessions.pause(TENANT, "day")
    return used, await home.build("data", "a", "b"), await home.build("data", "a", "b", "c")


async def test_a_dry_run_says_what_would_go_and_removes_nothing(home, three):
    would = await home.shelf.prune(dry_run=True)
    assert [found.record for found in would] == [three[1]]
    assert home.trees() == {record.digest for record in three}
    assert [await home.stored(record) for record in three] == [True, True, True]
    assert len(await home.shelf.list()) == 3


async def test_what_nothing_needs_goes_with_its_golden_snapshot_and_its_tree(home, three):
    used, unused, newest = three
    assert [found.record for found in await home.shelf.prune(dry_run=False)] == [unused]
    assert [await home.stored(record) for record in three] == [True, False, True]
    assert home.trees() == {used.digest, newest.digest}
    with pytest.raises(NotFound):
        await home.shelf.inspect(unused.digest)
    assert [(found.record, found.newest, len(found.sessions)) for found in await home.shelf.list()] == [
        (used, False, 1),
        (newest, True, 0),
    ]
    assert await home.shelf.prune(dry_run=False) == ()
    assert (await home.services.store.check()).clean


async def test_a_session_of_an_old_template_resumes_after_a_prune_and_new_ones_start(home, three):
    await home.shelf.prune(dry_run=False)
    assert await value(home.services, "day", "get x") == "41"
    shutil.rmtree(home.folder / three[2].digest)  # it comes back out of the store, though it borrowed from what went
    await home.services.sessions.create(TENANT, CreateRequest(name="new", template="data"))
    assert await value(home.services, "new", "set x 1") is not None
    assert home.trees() == {three[0].digest, three[2].digest}


async def test_an_old_template_goes_once_its_last_session_is_deleted(home, three):
    used, unused, newest = three
    await home.services.sessions.delete(TENANT, "day")
    assert {found.record.digest for found in await home.shelf.prune(dry_run=False)} == {used.digest, unused.digest}
    assert (home.trees(), await home.stored(newest)) == ({newest.digest}, True)
    assert (await home.services.store.check()).clean


async def test_a_paused_or_running_session_keeps_its_template_from_being_removed(home, three):
    for ref in (three[0].digest, "day"):
        if ref == "day":
            await value(home.services, "day", "get x")
        with pytest.raises(Conflict, match="delete them first") as told:
            await home.shelf.remove(three[0].digest)
        assert told.value.details["sessions_count"] == 1
    assert await home.stored(three[0])


async def test_an_earlier_capture_of_the_same_tree_goes_once_no_session_may_need_it(home):
    first = await home.build("data", "a")
    await home.services.sessions.create(TENANT, CreateRequest(name="day", template="data"))
    shutil.rmtree(home.folder / first.digest)
    second = await home.build("data", "a")
    assert (second.digest, second.golden == first.golden) == (first.digest, False)
    assert await home.shelf.prune(dry_run=False) == ()
    assert await value(home.services, "day", "set x 41") is not None
    await home.services.sessions.delete(TENANT, "day")
    [gone] = await home.shelf.prune(dry_run=False)
    assert (gone.record.golden, gone.newest) == (first.golden, False)
    assert [await home.stored(record) for record in (first, second)] == [False, True]
    assert (home.trees(), await home.shelf.prune(dry_run=False)) == ({second.digest}, ())
    await home.services.sessions.create(TENANT, CreateRequest(name="new", template="data"))
    assert (await home.services.store.check()).clean


async def test_removing_a_template_takes_its_earlier_captures_along(home):
    first = await home.build("data", "a")
    shutil.rmtree(home.folder / first.digest)
    second = await home.build("data", "a")
    await home.shelf.remove("data")
    assert [await home.stored(record) for record in (first, second)] == [False, False]
    assert [found async for found in home.services.store.subjects()] == []


async def test_a_tree_that_two_names_share_stays_while_one_of_them_needs_it(home):
    first = await home.build("one", "a")
    rootfs = RootFilesystem("two", first.digest, home.folder / first.digest / "rootfs")
    second, _ = await home.services.templates.capture_golden(rootfs, home._engine, Limits(), silent)
    assert second.digest == first.digest
    await home.shelf.remove("one")
    assert (home.trees(), await home.stored(second)) == ({first.digest}, True)
    await home.services.sessions.create(TENANT, CreateRequest(name="new", template="two"))
    await home.services.sessions.delete(TENANT, "new")
    await home.shelf.remove("two")
    assert home.trees() == set()
    assert await home.catalog.templates(PUBLIC_TENANT) == ()
