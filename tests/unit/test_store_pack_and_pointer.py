import pytest

from torpor.domain.errors import Corrupt, InvalidArgument
from torpor.domain.snapshot import PACK_BYTES_MAX, SnapshotRef
from torpor.store.format.pack import HEADER_BYTES, PAYLOAD_BYTES_MAX, encode_pack, verify_pack
from torpor.store.format.pointer import Pointer, decode_pointer, encode_pointer
from torpor.store.layout import Kind, Placed, parse_key

PACK = "abcdefghij0123456789"
REF = SnapshotRef("acme", "session", "snapshot", 7, "0123456789abcdef" * 4)


def flips(data):
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def test_a_pack_holds_its_chunks_from_its_header_on():
    data = encode_pack(PACK, [b"first", b"second"])
    assert verify_pack(data, pack=PACK) == 2
    assert data[HEADER_BYTES:].startswith(b"firstsecond")


def test_a_full_pack_has_exactly_the_greatest_size():
    data = encode_pack(PACK, [bytes(PAYLOAD_BYTES_MAX)])
    assert len(data) == PACK_BYTES_MAX
    assert verify_pack(data, pack=PACK) == 1


def test_any_change_of_a_pack_is_corrupt():
    data = encode_pack(PACK, [b"first", b"second"])
    for changed in (*flips(data), *(data[:length] for length in range(len(data))), data + b"\0"):
        with pytest.raises(Corrupt):
            verify_pack(changed, pack=PACK)


def test_a_pack_under_another_name_is_corrupt():
    with pytest.raises(Corrupt):
        verify_pack(encode_pack(PACK, [b"first"]), pack="b" * 20)


def test_a_pointer_comes_back():
    pointer = Pointer(ref=REF, write="w" * 20)
    assert decode_pointer(encode_pointer(pointer)) == pointer


def test_any_change_of_a_pointer_is_corrupt():
    data = encode_pointer(Pointer(ref=REF, write="w" * 20))
    for changed in (*flips(data), *(data[:length] for length in range(len(data))), data + b"\0", bytes(5000)):
        with pytest.raises(Corrupt):
            decode_pointer(changed)


def test_a_reference_comes_back_from_json_and_a_wrong_one_is_refused():
    assert SnapshotRef.from_json(REF.to_json()) == REF
    wrong = [
        {"digest": "00"},
        {"digest": "G" * 64},
        {"sequence": -1},
        {"sequence": "7"},
        {"sequence": True},
        {"sequence": 100_000_000},
        {"tenant": "../etc"},
        {"subject": 5},
        {"snapshot": ""},
    ]
    for change in wrong:
        with pytest.raises(InvalidArgument):
            SnapshotRef.from_json({**REF.to_json(), **change})
    with pytest.raises(InvalidArgument):
        SnapshotRef.from_json({"tenant": "acme"})


def test_object_keys_name_their_objects_both_ways():
    for placed, key in (
        (Placed(Kind.HEAD, "acme", "s"), "v0/acme/s/head"),
        (Placed(Kind.PACK, "acme", "s", PACK), f"v0/acme/s/packs/{PACK}"),
        (Placed(Kind.MANIFEST, "acme", "s", "one", 7), "v0/acme/s/manifests/00000007-one"),
    ):
        assert placed.key == key
        assert parse_key(key) == placed
    for stranger in ("", "v1/acme/s/head", "v0/acme/head", "v0/acme/s/packs/a/b", "v0/acme/s/manifests/7-one"):
        assert parse_key(stranger) is None
