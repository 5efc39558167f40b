"""A snapshot as one file under a passphrase, and back on a machine that has none of its keys."""

import random
import struct

import pytest

from torpor.adapters.objects.memory import MemoryObjects
from torpor.domain.errors import Conflict, Corrupt, InvalidArgument, NotFound, StorageFull, Unsupported
from torpor.store.format import sealed_stream
from torpor.store.format.sealed_stream import FRAME_BYTES, HEADER_BYTES, StreamOpener, StreamSealer
from torpor.store.snapshots import ImportRequest
from torpor.testing.store import StoreBench

PASSPHRASE = "correct horse battery"
IMAGE = random.Random(1).randbytes(3 << 20)
PARTS = {"pages.img": IMAGE + bytes(1 << 20) + b"own" * 2000, "upper.tar": b"x" * 5000, "empty": b""}


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """scrypt at its least cost: what is tested is not how slow it is."""
    monkeypatch.setattr(sealed_stream, "_COSTS", (10, 8, 1))


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return StoreBench(tmp_path / "home")


@pytest.fixture
def away(tmp_path):
    (tmp_path / "away").mkdir()
    return StoreBench(tmp_path / "away", seed=9)


@pytest.fixture
async def clone(home):
    """A clone of a template: its file holds the template's chunks as well."""
    golden = await home.write({"pages.img": IMAGE}, tenant="public", subject="template")
    meta, requirements = {"template_digest": "d", "name": "day"}, {"build": "b"}
    stored = await home.write(PARTS, template=golden.ref, meta=meta, requirements=requirements, region="eu")
    assert stored.new_chunk_count < stored.chunk_count
    return stored.ref


async def exported(bench, ref, passphrase=PASSPHRASE):
    return [piece async for piece in bench.store.export(ref, passphrase)]


async def pieces_of(data, size=65_537):
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def imported(bench, data, passphrase=PASSPHRASE, *, subject="arrived", said=None, size=65_537):
    async def admit(file):
        if said is not None:
            said.append(file)
        key = await bench.key("acme", subject)
        return ImportRequest("acme", subject, "first", key.wrapped, meta={"name": "night"}, generation=4)

    return await bench.store.import_(pieces_of(data, size), passphrase, admit)


async def keys_of(bench):
    return [info.key async for info in bench.objects.list("")]


async def test_a_snapshot_arrives_whole_under_a_new_subject_without_its_templates_key(home, away, clone):
    data, said = b"".join(await exported(home, clone)), []
    stored = await imported(away, data, said=said)
    assert await away.read(stored.ref) == PARTS
    assert (stored.ref.tenant, stored.ref.subject, stored.ref.sequence) == ("acme", "arrived", 1)
    manifest, original = await away.store.open(stored.ref), await home.store.open(clone)
    assert (manifest.meta, manifest.requirements) == ({"template_digest": "d", "name": "night"}, {"build": "b"})
    assert (manifest.parent, manifest.template, manifest.cut_key) == (None, original.template, original.cut_key)
    assert (manifest.header.region, manifest.header.generation, manifest.header.lenders) == ("eu", 4, ())
    assert not {chunk.key for chunk in manifest.chunks} & {chunk.key for chunk in original.chunks}
    assert (said[0].source, said[0].template) == (clone, original.template)
    assert await away.store.head("acme", "arrived") == stored.ref
    again = await away.write(PARTS, tenant="acme", subject="arrived", sequence=2, parent=stored.ref)
    assert again.new_chunk_count == 0
    await away.assert_clean()


async def test_the_file_holds_nothing_readable_and_comes_in_bounded_pieces(home, clone):
    pieces = await exported(home, clone)
    data = b"".join(pieces)
    assert max(map(len, pieces)) <= FRAME_BYTES + 20
    for secret in (b"own" * 10, b"template_digest", b"pages.img", IMAGE[:32]):
        assert secret not in data
    assert data != b"".join(await exported(home, clone))


@pytest.mark.parametrize("size", [1, 7, 1 << 24])
async def test_it_does_not_matter_how_the_file_is_cut_into_pieces(home, away, size):
    ref = (await home.write({"a": b"small" * 50})).ref
    stored = await imported(away, b"".join(await exported(home, ref)), size=size)
    assert await away.read(stored.ref) == {"a": b"small" * 50}


async def test_a_wrong_passphrase_is_told_from_a_damaged_file(home, away, clone):
    data = b"".join(await exported(home, clone))
    with pytest.raises(InvalidArgument, match="passphrase") as raised:
        await imported(away, data, "another passphrase")
    assert raised.value.details["field"] == "passphrase"
    with pytest.raises(InvalidArgument, match="no export"):
        await imported(away, b"PK\x03\x04" + data)
    with pytest.raises(InvalidArgument, match="no export"):
        await imported(away, b"")
    with pytest.raises(Unsupported, match="version 1"):
        await imported(away, data[:8] + struct.pack("<H", 1) + data[10:])
    with pytest.raises(InvalidArgument, match="at least 8"):
        await exported(home, clone, "short")
    assert await keys_of(away) == []


async def test_a_file_cut_or_altered_anywhere_is_corrupt_and_leaves_nothing(home, away, clone):
    data = b"".join(await exported(home, clone))
    chance = random.Random(4)
    frame = FRAME_BYTES + 20
    swapped = data[:HEADER_BYTES] + data[HEADER_BYTES + frame : HEADER_BYTES + 2 * frame]
    swapped += data[HEADER_BYTES : HEADER_BYTES + frame] + data[HEADER_BYTES + 2 * frame :]
    damaged = [data[:cut] for cut in (10, HEADER_BYTES, HEADER_BYTES + 3, HEADER_BYTES + frame, len(data) - 1)]
    damaged += [swapped, data + b"x", data + data[HEADER_BYTES:], data[: HEADER_BYTES + frame] + data[-100:]]
    for _ in range(12):
        at = chance.randrange(HEADER_BYTES, len(data))
        damaged.append(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
    for number, bad in enumerate(damaged):
        with pytest.raises(Corrupt):
            await imported(away, bad, subject=f"arrived-{number}")
        assert await keys_of(away) == []


async def test_an_import_never_overwrites_and_may_be_refused(home, away, clone):
    data = b"".join(await exported(home, clone))
    first = await imported(away, data)
    before = await keys_of(away)
    with pytest.raises(Conflict, match="has snapshots"):
        await imported(away, data)

    async def refuse(file):
        raise NotFound(f"needs the root filesystem {file.meta['template_digest']}")

    with pytest.raises(NotFound, match="root filesystem d"):
        await away.store.import_(pieces_of(data), PASSPHRASE, refuse)
    assert await keys_of(away) == before
    assert await away.read(first.ref) == PARTS


async def test_a_full_disk_takes_nothing_of_an_import(home, tmp_path, clone):
    data = b"".join(await exported(home, clone))
    small = StoreBench(tmp_path, objects=MemoryObjects(capacity_bytes=1 << 20), seed=2)
    with pytest.raises(StorageFull):
        await imported(small, data)
    assert await keys_of(small) == []


def test_the_last_frame_alone_opens_as_the_last():
    sealer = StreamSealer(PASSPHRASE, salt=bytes(32))
    frames = [*sealer.feed(bytes(3 * FRAME_BYTES)), sealer.finish()]
    assert len(frames) == 3
    opener = StreamOpener(PASSPHRASE, sealer.header)
    assert b"".join(plain for frame in frames for plain in opener.feed(frame)) == bytes(3 * FRAME_BYTES)
    opener.finish()
    cut = StreamOpener(PASSPHRASE, sealer.header)
    assert len(list(cut.feed(frames[0] + frames[1]))) == 2
    with pytest.raises(Corrupt, match="cut short"):
        cut.finish()
