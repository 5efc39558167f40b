"""Garbage collection over any history: it frees what it must, and never harms what lives."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from torpor.adapters.objects.memory import MemoryObjects
from torpor.store.garbage import GRACE_S
from torpor.store.snapshots import ForkRequest, SnapshotStore, SweepRequest
from torpor.testing.store import StoreBench

SUBJECTS = "abcd"


class Crash(BaseException):
    """The process is gone: no handler of ours runs to its end."""


class DyingObjects(MemoryObjects):
    """Dies at the n-th change from now: nothing after it happens until somebody revives it."""

    def __init__(self):
        super().__init__()
        self.left = None

    def die_after(self, count):
        self.left = count

    def _spend(self):
        if self.left is not None:
            if self.left <= 0:
                raise Crash
            self.left -= 1

    async def put(self, key, data):
        self._spend()
        return await super().put(key, data)

    async def put_if(self, key, data, *, etag):
        self._spend()
        return await super().put_if(key, data, etag=etag)

    async def delete(self, key):
        self._spend()
        await super().delete(key)


class SetClock:
    """Wall time that anybody may set."""

    def __init__(self):
        self.now_s = 1_000_000.0

    def wall_s(self):
        return self.now_s

    def monotonic_s(self):
        return self.now_s


class GarbageHistories(RuleBasedStateMachine):
    """Writes, forks, removals, crashes at any change, collections at any time. The model: what was acknowledged."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.objects = DyingObjects()
        self.bench = StoreBench(Path(self.folder.name), objects=self.objects)
        self.clock = SetClock()
        self.store = SnapshotStore(self.objects, self.bench.keys, self.bench.entropy, self.clock)
        self.bench.store = self.store
        self.model = {subject: [] for subject in SUBJECTS}  # acknowledged (ref, image), oldest first
        self.sequences = dict.fromkeys(SUBJECTS, 0)
        self.shredded = set()

    @rule(
        subject=st.sampled_from(SUBJECTS),
        image=st.binary(min_size=1, max_size=9000),
        dies=st.none() | st.integers(0, 2),
    )
    def write(self, subject, image, dies):
        if subject in self.shredded:
            return
        parent = self.model[subject][-1][0] if self.model[subject] else None
        self.sequences[subject] += 1
        request = self.run(
            self.bench.request({"p.img": image}, subject=subject, sequence=self.sequences[subject], parent=parent)
        )
        self._acknowledge(subject, image, self._until_death(self.store.write(request), dies))

    @rule(source=st.sampled_from(SUBJECTS), subject=st.sampled_from(SUBJECTS), dies=st.none() | st.integers(0, 1))
    def fork(self, source, subject, dies):
        if not self.model[source] or subject == source or subject in self.shredded:
            return
        ref, image = self.model[source][-1]
        self.sequences[subject] += 1
        sequence = self.sequences[subject]
        key = self.run(self.bench.key("default", subject))
        request = ForkRequest(ref, "default", subject, f"f{sequence}", sequence, key.wrapped)
        self._acknowledge(subject, image, self._until_death(self.store.fork(request), dies))

    @rule(subject=st.sampled_from(SUBJECTS), dies=st.none() | st.integers(0, 4))
    def delete_subject(self, subject, dies):
        self.shredded.add(subject)
        self.model[subject] = []
        self._until_death(self.store.delete_subject("default", subject), dies)

    @rule(jump_s=st.sampled_from([0, 1, GRACE_S / 2, GRACE_S, 3 * GRACE_S, -1, -GRACE_S, -9 * GRACE_S]))
    def set_clock(self, jump_s):
        self.clock.now_s += jump_s

    @rule(dies=st.none() | st.integers(0, 6), keep=st.integers(1, 3), dry=st.booleans())
    def collect(self, dies, keep, dry):
        before = set(self.objects_now())
        request = SweepRequest(keep=keep, dry_run=dry)
        report = self._until_death(self.store.collect_garbage(request), dies)
        if report is not None:
            assert {garbage.key for garbage in report.removed} == before - set(self.objects_now())
        if not dry:
            for history in self.model.values():
                del history[: -keep or None]

    @rule(subject=st.sampled_from(SUBJECTS), count=st.integers(1, 2))
    @precondition(lambda self: any(self.model.values()))
    def a_write_under_way_survives_a_collection(self, subject, count):
        """Collections run between any two changes of a write that takes less than the grace."""
        if subject in self.shredded:
            return
        self.sequences[subject] += 1
        image = b"in flight" * count
        request = self.run(
            self.bench.request({"p.img": image}, subject=subject, sequence=self.sequences[subject], parent=None)
        )
        objects, store = CollectingObjects(self.objects), self.store
        objects.collect = lambda: store.collect_garbage(SweepRequest(keep=3))
        writing = SnapshotStore(objects, self.bench.keys, self.bench.entropy, self.clock)
        self._acknowledge(subject, image, self.run(writing.write(request)))
        for history in self.model.values():
            del history[:-3]

    @invariant()
    def all_that_was_acknowledged_and_is_kept_reads_back(self):
        for history in self.model.values():
            for ref, image in history[-1:]:
                assert self.run(self.bench.read(ref)) == {"p.img": image}

    @invariant()
    def every_head_is_the_newest_acknowledged(self):
        for subject, history in self.model.items():
            if subject not in self.shredded and history:
                assert self.run(self.store.head("default", subject)) == history[-1][0]

    @invariant()
    def the_store_is_clean(self):
        self.run(self.bench.assert_clean())

    def teardown(self):
        """Once quiet, two collections a grace apart leave nothing that is of no use."""
        headless = set()
        for _ in range(4):  # a removed manifest sets its packs free for the next
            headless = set(self.run(self.store.collect_garbage()).plan.headless)
            self.clock.now_s += 2 * GRACE_S
        self.run(self.store.collect_garbage(SweepRequest(abandoned=headless)))
        for _ in range(3):
            self.clock.now_s += 2 * GRACE_S
            self.run(self.store.collect_garbage(SweepRequest(abandoned=headless)))
        report = self.run(self.store.check())
        assert (report.clean, report.unreferenced, report.shredded) == (True, (), ())
        for history in self.model.values():
            for ref, image in history[-1:]:
                assert self.run(self.bench.read(ref)) == {"p.img": image}
        for subject in self.shredded:
            leftovers = [key for key in self.objects_now() if key.startswith(f"v0/default/{subject}/")]
            assert all("/packs/" in key for key in leftovers), leftovers
        self.runner.close()
        self.folder.cleanup()

    def run(self, coroutine):
        return self.runner.run(coroutine)

    def objects_now(self):
        async def keys():
            return [info.key async for info in self.objects.list("v0/")]

        return self.run(keys())

    def _until_death(self, coroutine, dies):
        self.objects.left = dies
        try:
            return self.run(coroutine)
        except (Crash, BaseExceptionGroup):
            return None
        finally:
            self.objects.left = None

    def _acknowledge(self, subject, image, stored):
        if stored is not None:
            self.model[subject].append((stored.ref, image))


class CollectingObjects(MemoryObjects):
    """The same objects; a collection runs after every change."""

    def __init__(self, inner):
        super().__init__()
        self._objects = inner._objects  # a second view of one store
        self._inner = inner
        self.collect = None

    async def put(self, key, data):
        info = await self._inner.put(key, data)
        await self.collect()
        return info

    async def put_if(self, key, data, *, etag):
        info = await self._inner.put_if(key, data, etag=etag)
        await self.collect()
        return info


GarbageHistories.TestCase.settings = settings(
    max_examples=settings.default.max_examples // 4,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestGarbageHistories = GarbageHistories.TestCase
