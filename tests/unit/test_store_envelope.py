import random

import pytest

from torpor.domain.errors import Corrupt
from torpor.store.format.envelope import OVERHEAD_BYTES, Opener, Sealer

KEY = bytes(range(32))
TEXT = b"the quick brown fox " * 50
NOISE = random.Random(1).randbytes(4096)


def seal(plaintext, **other):
    return Sealer().seal(plaintext, key=KEY, **other)


def opened(sealed, *, plain_bytes, key=KEY, **other):
    return bytes(Opener().open(sealed, key=key, plain_bytes=plain_bytes, **other))


@pytest.mark.parametrize("plaintext", [b"x", TEXT, NOISE, bytes(1 << 20), NOISE * 256])
def test_what_was_sealed_opens(plaintext):
    assert opened(seal(plaintext), plain_bytes=len(plaintext)) == plaintext


def test_what_does_not_shrink_is_stored_as_it_is():
    assert seal(NOISE)[0] == 0
    assert len(seal(NOISE)) == len(NOISE) + OVERHEAD_BYTES
    assert seal(TEXT)[0] == 1
    assert len(seal(TEXT)) < len(TEXT) // 4


@pytest.mark.parametrize("plaintext", [TEXT, NOISE[:64]])
def test_any_flipped_bit_is_corrupt(plaintext):
    sealed = seal(plaintext)
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            opened(bytes(flipped), plain_bytes=len(plaintext))


def test_any_truncation_is_corrupt():
    sealed = seal(TEXT)
    for length in range(len(sealed)):
        with pytest.raises(Corrupt):
            opened(sealed[:length], plain_bytes=len(TEXT))
    with pytest.raises(Corrupt):
        opened(sealed + b"\0", plain_bytes=len(TEXT))


def test_another_key_context_or_length_is_corrupt():
    sealed = seal(TEXT)
    for other in ({"key": bytes(32)}, {"context": b"else"}, {"plain_bytes": len(TEXT) - 1}, {"plain_bytes": 1 << 20}):
        with pytest.raises(Corrupt):
            opened(sealed, **{"plain_bytes": len(TEXT), **other})


def test_an_opener_never_holds_more_than_it_was_allowed():
    sealed = seal(bytes(5000))
    with pytest.raises(Corrupt):
        Opener(plain_bytes_max=4999).open(sealed, key=KEY, plain_bytes=5000)


def test_an_opener_uses_its_buffer_again_and_leaks_nothing_into_the_next():
    opener = Opener()
    first = opener.open(seal(TEXT), key=KEY, plain_bytes=len(TEXT))
    assert bytes(first) == TEXT
    with pytest.raises(Corrupt):
        opener.open(seal(NOISE)[:-1], key=KEY, plain_bytes=len(NOISE))
    assert bytes(opener.open(seal(b"short"), key=KEY, plain_bytes=5)) == b"short"
