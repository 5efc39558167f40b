import dataclasses

import pytest

from torpor.domain.errors import Corrupt, InvalidArgument, Unsupported
from torpor.domain.snapshot import ChunkRef, Extent, Lender, Manifest, ManifestHeader, PackRef, Part, SnapshotRef
from torpor.store.format.manifest import decode_header, encode_manifest, open_manifest, split_manifest

DATA_KEY = bytes(range(32))
WHOLE = Extent(0, 0, 1)
REF = SnapshotRef("acme", "parent", "zero", 6, "ab" * 32)


def manifest(**changes):
    header = ManifestHeader(
        tenant="acme",
        subject="session",
        snapshot="one",
        sequence=7,
        generation=3,
        region="eu",
        wrapped_key=b"wrapped",
        lenders=(Lender("acme", "parent"),),
        salt=bytes(32),
    )
    fields = {
        "header": header,
        "parts": (
            Part("pages.img", 5 * 4096, 4096, ((1, 3), (1, 0)), (WHOLE, Extent(1, 1, 1), Extent(1, 0, 1))),
            Part("empty.tar", 0, 512, (), ()),
        ),
        "chunks": (
            ChunkRef(b"k" * 32, b"d" * 32, 0, 32, 1000, 4096),
            ChunkRef(b"K" * 32, b"D" * 32, 1, 32, 2000, 2 * 4096),
        ),
        "packs": (PackRef("acme", "session", "p" * 20), PackRef("acme", "parent", "q" * 20)),
        "parent": REF,
        "template": None,
        "requirements": {"build": "x", "cpu_flags": ["sse2"]},
        "meta": {"note": "ü"},
        "cut_key": b"c" * 32,
    }
    return Manifest(**{**fields, **changes})


def reopened(data, *, data_key=DATA_KEY):
    return open_manifest(split_manifest(data), data_key=data_key)


def test_a_manifest_comes_back_whole():
    assert reopened(encode_manifest(manifest(), data_key=DATA_KEY)) == manifest()


def test_the_header_is_readable_without_a_key_and_nothing_else_is():
    data = encode_manifest(manifest(), data_key=DATA_KEY)
    header, _ = decode_header(data)
    assert header == manifest().header
    for secret in (b"k" * 32, b"d" * 32, b"c" * 32, b"pages.img", b"cpu_flags", b"note"):
        assert secret not in data


def test_any_flipped_bit_is_never_a_manifest():
    data = encode_manifest(manifest(), data_key=DATA_KEY)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        # A flipped version or flag cannot be told from a newer format without the snapshot's digest.
        with pytest.raises(Unsupported if 64 <= bit < 96 else Corrupt):
            reopened(bytes(flipped))


def test_any_truncation_is_corrupt():
    data = encode_manifest(manifest(), data_key=DATA_KEY)
    for changed in (*(data[:length] for length in range(len(data))), data + b"\0"):
        with pytest.raises(Corrupt):
            reopened(changed)


def test_another_data_key_does_not_open_it():
    with pytest.raises(Corrupt):
        reopened(encode_manifest(manifest(), data_key=DATA_KEY), data_key=bytes(32))


CHUNK = manifest().chunks[0]
WRONG = {
    "a pack that is not in the list": {"chunks": (dataclasses.replace(CHUNK, pack=9), manifest().chunks[1])},
    "a chunk beyond the largest pack": {
        "chunks": (dataclasses.replace(CHUNK, offset_bytes=1 << 24), manifest().chunks[1])
    },
    "a chunk that expands beyond its limit": {
        "chunks": (dataclasses.replace(CHUNK, plain_bytes=1 << 21), manifest().chunks[1])
    },
    "an index that is not in the table": {"parts": (Part("a", 2 * 4096, 4096, ((0, 2),), (WHOLE, Extent(5, 0, 1))),)},
    "runs that do not fill the part": {"parts": (Part("a", 3 * 4096, 4096, ((0, 2),), (WHOLE, WHOLE)),)},
    "chunks that do not fill the runs": {"parts": (Part("a", 2 * 4096, 4096, ((0, 2),), (WHOLE,)),)},
    "an extent beyond the end of its chunk": {"parts": (Part("a", 2 * 4096, 4096, ((0, 2),), (Extent(0, 0, 2),)),)},
    "an extent after the end of its chunk": {"parts": (Part("a", 4096, 4096, ((0, 1),), (Extent(0, 1, 1), WHOLE)),)},
    "an extent of nothing": {"parts": (Part("a", 4096, 4096, ((0, 1),), (Extent(0, 0, 0), WHOLE)),)},
    "a short granule before the last extent": {
        "chunks": (dataclasses.replace(CHUNK, plain_bytes=4000), manifest().chunks[1]),
        "parts": (Part("a", 4096 + 4000, 4096, ((0, 2),), (WHOLE, Extent(1, 0, 1))),),
    },
    "two parts of one name": {"parts": (Part("a", 0, 4096, (), ()), Part("a", 0, 4096, (), ()))},
    "a part outside of the folder": {"parts": (Part("../a", 0, 4096, (), ()),)},
    "a lender that is not named": {"packs": (PackRef("acme", "session", "p" * 20), PackRef("x", "y", "q" * 20))},
    "a pack outside of the store": {"packs": (PackRef("acme", "session", "../p"), PackRef("acme", "parent", "q"))},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG.keys())
def test_an_authentic_body_that_does_not_hold_together_is_corrupt(changes):
    with pytest.raises(Corrupt):
        reopened(encode_manifest(manifest(**changes), data_key=DATA_KEY))


@pytest.mark.parametrize("meta", [{"a": object()}, {"a": float("nan")}, {"a": "x" * (9 << 20)}])
def test_meta_that_is_no_small_json_is_refused(meta):
    with pytest.raises(InvalidArgument) as caught:
        encode_manifest(manifest(meta=meta), data_key=DATA_KEY)
    assert caught.value.details["field"] == "meta"


def test_secrets_stay_out_of_representations():
    shown = repr(manifest()) + repr(manifest().chunks[0]) + repr(manifest().header)
    for secret in (b"k" * 32, b"d" * 32, b"c" * 32, b"wrapped"):
        assert repr(secret) not in shown
