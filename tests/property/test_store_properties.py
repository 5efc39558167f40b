"""Any image, any damage, any history."""

import asyncio
import dataclasses
import itertools
import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from torpor.domain.errors import Corrupt, KeyDestroyed, NotFound
from torpor.domain.snapshot import Extent
from torpor.store.format.chunker import Cutter
from torpor.store.format.manifest import encode_manifest, manifest_digest
from torpor.store.layout import manifest_key
from torpor.testing.store import StoreBench

PAGE = 4096
SETTINGS = settings(
    max_examples=settings.default.max_examples // 4, deadline=None, suppress_health_check=list(HealthCheck)
)


@st.composite
def images(draw):
    """Runs of noise, text and zeros, not always a whole number of pages."""
    pieces = []
    for _ in range(draw(st.integers(0, 6))):
        size = draw(st.integers(1, 200)) * draw(st.sampled_from([1, 512, PAGE]))
        kind = draw(st.sampled_from("nzt"))
        seed = draw(st.integers(0, 3))
        pieces.append({"n": random.Random(seed).randbytes(size), "z": bytes(size), "t": b"torpor " * (size // 7)}[kind])
    return b"".join(pieces)


@st.composite
def edits(draw):
    """A kind of change, the page where it begins, how many pages, a seed."""
    kind = draw(st.sampled_from(["replace", "zero", "insert", "remove", "move", "touch"]))
    return kind, draw(st.integers(0, 120)), draw(st.integers(1, 30)), draw(st.integers(0, 3))


def _edited(image, changes):
    for kind, page, count, seed in changes:
        start, end = page * PAGE, (page + count) * PAGE
        before, hit, after = image[:start], image[start:end], image[end:]
        image = {
            "replace": lambda: before + random.Random(seed).randbytes(len(hit)) + after,  # noqa: B023
            "zero": lambda: before + bytes(len(hit)) + after,  # noqa: B023
            "insert": lambda: before + random.Random(seed).randbytes(count * PAGE) + hit + after,  # noqa: B023
            "remove": lambda: before + after,  # noqa: B023
            "move": lambda: before + after + hit,  # noqa: B023
            # One byte that no sampled word covers: the weak hash finds the page, the comparison must not.
            "touch": lambda: before + bytes(b ^ (i % PAGE == 100) for i, b in enumerate(hit)) + after,  # noqa: B023
        }[kind]()
    return image


def with_bench(action):
    """Run ``action(bench)`` over a fresh store in memory."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(action(StoreBench(Path(folder))))


@given(st.dictionaries(st.sampled_from(["pages.img", "upper.tar", "meta"]), images(), min_size=1))
@SETTINGS
def test_any_parts_come_back_as_they_were(parts):
    async def action(bench):
        stored = await bench.write(parts)
        assert await bench.read(stored.ref) == parts
        await bench.assert_clean()

    with_bench(action)


@given(st.integers(0, 2**32), st.lists(edits(), max_size=6), st.binary(max_size=100))
@SETTINGS
def test_any_edit_of_a_template_comes_back_with_and_without_its_image_in_memory(seed, changes, tail):
    template = random.Random(seed).randbytes(80 * PAGE) + bytes(20 * PAGE) + b"torpor! " * (20 * PAGE // 8)
    clone = _edited(template, changes) + tail

    async def action(bench):
        golden = (await bench.write({"pages.img": template}, subject="template")).ref
        held = await bench.resident(golden)
        stored = await bench.write({"pages.img": clone}, template=golden, resident=held)
        assert await bench.read(stored.ref) == {"pages.img": clone}
        assert await bench.read(stored.ref, resident=held) == {"pages.img": clone}
        again = await bench.write({"pages.img": clone}, sequence=2, parent=stored.ref, template=golden, resident=held)
        assert again.new_chunk_count == 0
        assert await bench.read(again.ref, resident=held) == {"pages.img": clone}
        await bench.assert_clean()

    with_bench(action)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(1, 20)), min_size=1), st.booleans())
@SETTINGS
def test_any_extents_read_as_what_they_cover(asked, has_resident):
    image = random.Random(1).randbytes(90 * PAGE)

    async def action(bench):
        stored = (await bench.write({"pages.img": image}, subject="template")).ref
        manifest = await bench.store.open(stored)
        extents, expected = [], b""
        starts = [0, *itertools.accumulate(chunk.plain_bytes for chunk in manifest.chunks)]
        for index, first, count in asked:
            chunk_index = index % len(manifest.chunks)
            pages = manifest.chunks[chunk_index].plain_bytes // PAGE
            extent = Extent(chunk_index, first % pages, min(count, pages - first % pages))
            extents.append(extent)
            start = starts[chunk_index] + extent.first_granule * PAGE
            expected += image[start : start + extent.granule_count * PAGE]
        part = dataclasses.replace(
            manifest.parts[0], size_bytes=len(expected), runs=((0, len(expected) // PAGE),), extents=tuple(extents)
        )
        header = dataclasses.replace(manifest.header, salt=bytes(32), sequence=2)
        key = await bench.key("default", "template")
        data_key = await bench.keys.unwrap("default", "template", key.wrapped)
        data = encode_manifest(dataclasses.replace(manifest, header=header, parts=(part,)), data_key=data_key)
        ref = dataclasses.replace(stored, sequence=2, digest=manifest_digest(data))
        await bench.objects.put(manifest_key(ref), data)
        held = await bench.resident(stored) if has_resident else None
        assert await bench.read(ref, resident=held) == {"pages.img": expected}
        await bench.assert_clean()

    with_bench(action)


@given(images(), st.data())
@SETTINGS
def test_damage_of_any_object_is_never_wrong_data_and_always_found(image, data):
    async def action(bench):
        image_with_data = image + b"at least one chunk"
        stored = await bench.write({"pages.img": image_with_data})
        key = data.draw(st.sampled_from([info.key async for info in bench.objects.list("")]), label="object")
        right = await bench.objects.get(key)
        bit = data.draw(st.integers(0, 8 * len(right) - 1), label="bit")
        cut = data.draw(st.booleans(), label="truncate instead")
        damaged = bytearray(right[: bit // 8] if cut else right)
        if not cut:
            damaged[bit // 8] ^= 1 << bit % 8
        await bench.objects.put(key, bytes(damaged))
        try:
            assert await bench.read(stored.ref) == {"pages.img": image_with_data}
        except Corrupt:
            assert not key.endswith("head")
        try:
            assert await bench.store.head("default", "session") == stored.ref
        except Corrupt:
            assert key.endswith("head")
        report = await bench.store.check()
        assert not report.clean
        await bench.objects.put(key, right)
        await bench.assert_clean()

    with_bench(action)


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**32), st.integers(0, 4095), st.booleans())
@SETTINGS
def test_one_page_more_or_less_spares_95_percent_of_the_chunks(key, seed, page, insert):
    data = random.Random(seed).randbytes(4096 * PAGE)
    at = page * PAGE
    changed = data[:at] + (random.Random(seed + 1).randbytes(PAGE) + data[at:] if insert else data[at + PAGE :])
    before, after = _cut(data, key=key), _cut(changed, key=key)
    # Of some fifty chunks: the one that was hit, and rarely its neighbour, where a cut was forced by the largest size.
    assert len(before - after) <= max(2, 0.05 * len(before))


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
@SETTINGS
def test_cut_points_say_nothing_to_who_lacks_the_key(key, other):
    data = random.Random(1).randbytes(1024 * PAGE)
    if key != other:
        assert len(_cut(data, key=key) & _cut(data, key=other)) <= 2


def _cut(data, *, key):
    cutter = Cutter(key, granule_bytes=PAGE)
    return {bytes(chunk) for chunk in [*cutter.feed(data), *cutter.finish()]}


class StoreHistories(RuleBasedStateMachine):
    """Writes, forks, removals, shreds, in any order; the model is a dictionary from reference to bytes."""

    snapshots = Bundle("snapshots")

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.bench = StoreBench(Path(self.folder.name))
        self.model = {}
        self.sequences = {}
        self.shredded = set()

    @rule(target=snapshots, subject=st.sampled_from("abc"), image=images())
    def write_from_nothing(self, subject, image):
        return self._write(subject, image, None)

    @rule(target=snapshots, parent=snapshots, subject=st.sampled_from("abc"), image=images(), keep=st.booleans())
    def write_on_parent(self, parent, subject, image, keep):
        if parent not in self.model:
            return multiple()
        return self._write(subject, self.model[parent] + image if keep else image, parent)

    @rule(ref=consumes(snapshots))
    def delete_snapshot(self, ref):
        self.run(self.bench.store.delete_snapshot(ref))
        self.model.pop(ref, None)

    @rule(subject=st.sampled_from("abc"))
    def delete_subject(self, subject):
        self.run(self.bench.store.delete_subject("default", subject))
        self.shredded.add(subject)
        for ref in [ref for ref in self.model if ref.subject == subject]:
            del self.model[ref]

    @invariant()
    def the_store_is_clean(self):
        self.run(self.bench.assert_clean())

    @invariant()
    def every_head_is_the_newest_that_was_not_removed(self):
        for subject in "abc":
            refs = [ref for ref in self.model if ref.subject == subject]
            newest = max(refs, key=lambda ref: ref.sequence, default=None)
            assert self.run(self.bench.store.head("default", subject)) == newest

    @rule(ref=snapshots)
    def read(self, ref):
        try:
            found = self.run(self.bench.read(ref))
        except (NotFound, KeyDestroyed):
            assert ref not in self.model
        else:
            assert found == {"pages.img": self.model[ref]}

    def teardown(self):
        for ref, image in self.model.items():
            assert self.run(self.bench.read(ref)) == {"pages.img": image}
        self.runner.close()
        self.folder.cleanup()

    def run(self, coroutine):
        return self.runner.run(coroutine)

    def _write(self, subject, image, parent):
        if subject in self.shredded:
            return multiple()
        sequence = self.sequences[subject] = self.sequences.get(subject, 0) + 1
        writing = self.bench.write({"pages.img": image}, subject=subject, sequence=sequence, parent=parent)
        ref = self.run(writing).ref
        self.model[ref] = image
        return ref


StoreHistories.TestCase.settings = settings(
    max_examples=settings.default.max_examples // 6,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestStoreHistories = StoreHistories.TestCase
