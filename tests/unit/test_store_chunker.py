import random

import blake3
import pytest

from torpor.domain.errors import InvalidArgument
from torpor.store.format.chunker import Cutter

KEY = bytes(range(32))
GRANULE = 4096


def cut(data, *, key=KEY, granule=GRANULE, window=1 << 20):
    cutter = Cutter(key, granule_bytes=granule)
    chunks = []
    for start in range(0, len(data), window):
        chunks += cutter.feed(data[start : start + window])
    chunks += cutter.finish()
    return [bytes(chunk) for chunk in chunks], cutter.runs


def rebuild(chunks, runs, *, size, granule=GRANULE):
    """The part, from what the manifest would say of it."""
    data, out, at = b"".join(chunks), bytearray(), 0
    for zero_count, data_count in runs:
        out += bytes(zero_count * granule)
        out += data[at : at + data_count * granule]
        at += data_count * granule
    assert at >= len(data)
    return bytes(out[:size])


def pages(count, *, seed=1):
    return random.Random(seed).randbytes(count * GRANULE)


def digests(chunks):
    return {blake3.blake3(chunk).digest() for chunk in chunks}


def test_nothing_makes_no_chunk_and_no_run():
    assert cut(b"") == ([], ())


def test_chunks_stay_between_their_bounds_and_near_their_mean():
    data = pages(8192)
    chunks, runs = cut(data)
    sizes = [len(chunk) for chunk in chunks]
    assert b"".join(chunks) == data
    assert runs == ((0, 8192),)
    assert min(sizes[:-1]) >= 64 * 1024
    assert max(sizes) <= 1024 * 1024
    assert 128 * 1024 < sum(sizes) / len(sizes) < 512 * 1024
    assert all(size % GRANULE == 0 for size in sizes)


@pytest.mark.parametrize("window", [GRANULE, 3 * GRANULE, 1 << 20, 1 << 24])
def test_how_the_data_is_fed_does_not_matter(window):
    data = pages(900) + bytes(40 * GRANULE) + pages(500, seed=2) + b"short tail"
    assert cut(data, window=window) == cut(data, window=64 * GRANULE)


@pytest.mark.parametrize("insert", [True, False])
def test_after_one_page_came_or_went_nearly_all_chunks_are_found_again(insert):
    data, middle = pages(16384), 8191 * GRANULE
    changed = data[:middle] + (pages(1, seed=3) + data[middle:] if insert else data[middle + GRANULE :])
    before, after = digests(cut(data)[0]), digests(cut(changed)[0])
    assert len(before & after) >= 0.95 * len(before)


def test_cut_points_depend_on_the_key():
    data = pages(4096)
    assert len(digests(cut(data)[0]) & digests(cut(data, key=bytes(32))[0])) <= 2


def test_zero_granules_are_in_runs_and_in_no_chunk():
    data = bytes(5 * GRANULE) + pages(3) + bytes(2 * GRANULE) + pages(1, seed=2) + bytes(GRANULE)
    chunks, runs = cut(data)
    assert runs == ((5, 3), (2, 1), (1, 0))
    assert b"".join(chunks) == pages(3) + pages(1, seed=2)
    assert cut(bytes(1000 * GRANULE)) == ([], ((1000, 0),))


def test_a_page_whose_sampled_words_are_zero_but_others_are_not_is_data():
    page = bytearray(GRANULE)
    page[8] = 1  # the second word; every sixteenth is sampled
    chunks, runs = cut(bytes(GRANULE) + bytes(page))
    assert (chunks, runs) == ([bytes(page)], ((1, 1),))


@pytest.mark.parametrize("tail", [b"x", b"\0", b"\0" * 4095, b"\0" * 4094 + b"x"])
def test_a_short_last_granule_counts_as_one(tail):
    data = pages(2) + tail
    chunks, runs = cut(data)
    assert rebuild(chunks, runs, size=len(data)) == data
    assert sum(zero + some for zero, some in runs) == 3


def test_a_tar_is_cut_at_512_bytes():
    data = random.Random(5).randbytes(2_000_000 // 512 * 512)
    shifted = data[:512] + random.Random(6).randbytes(512) + data[512:]
    chunks, runs = cut(data, granule=512)
    assert rebuild(chunks, runs, size=len(data), granule=512) == data
    assert len(digests(chunks) & digests(cut(shifted, granule=512)[0])) >= len(chunks) - 2


@pytest.mark.parametrize("granule", [0, 256, 1000, 4097, 131072])
def test_an_odd_granule_is_refused(granule):
    with pytest.raises(InvalidArgument) as caught:
        Cutter(KEY, granule_bytes=granule)
    assert caught.value.details["field"] == "granule_bytes"


def test_equal_pages_in_a_row_are_cut_at_a_bound():
    chunks, _ = cut(pages(1) * 2000)
    assert {len(chunk) for chunk in chunks[:-1]} in ({64 * 1024}, {1024 * 1024})
