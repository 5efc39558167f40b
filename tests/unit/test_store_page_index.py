import asyncio
import random

import pytest

from torpor.domain.snapshot import ChunkRef, Extent
from torpor.testing.store import StoreBench

PAGE = 4096
PAGES = [random.Random(page).randbytes(PAGE) for page in range(40)]


@pytest.fixture
def split(tmp_path):
    """How a chunk splits against an image of PAGES, as (first page, count) of the image or of the residue, and it."""
    bench = StoreBench(tmp_path)
    image = b"".join(PAGES[:20]) + bytes(3 * PAGE) + b"".join(PAGES[20:])
    held = asyncio.run(_resident(bench, image))
    chunks = held.manifest.parts[0].extents
    begins = {extent.chunk_index: sum(e.granule_count for e in chunks[:at]) for at, extent in enumerate(chunks)}

    def act(plaintext):
        with held.held_pages("pages.img", granule_bytes=PAGE) as pages:
            found = pages.split(plaintext)
        if found is None:
            return None
        runs = []
        for digest, extent in found.runs:
            if digest is not None:
                assert digest == held.manifest.chunks[extent.chunk_index].digest
            runs.append(("held" if digest else "own", begins.get(extent.chunk_index, 0) + extent[1], extent[2]))
        return runs, found.residue

    return act


async def _resident(bench, image):
    return await bench.resident((await bench.write({"pages.img": image})).ref)


def test_pages_are_found_where_they_moved_to_and_the_others_become_the_residue(split):
    new = b"n" * PAGE
    runs, residue = split(b"".join([*PAGES[18:22], new, *PAGES[22:24], new, new, PAGES[3]]))
    assert runs == [
        ("held", 18, 4),  # across the zeros of the image, which are in no chunk
        ("own", 0, 1),
        ("held", 22, 2),
        ("own", 1, 2),
        ("held", 3, 1),
    ]
    assert residue == new * 3


def test_a_page_is_believed_only_when_all_of_it_is_equal(split):
    twin = bytearray(PAGES[5])
    twin[100] ^= 1  # in no word that is hashed
    assert split(PAGES[4] + bytes(twin) + PAGES[6]) == ([("held", 4, 1), ("own", 0, 1), ("held", 6, 1)], bytes(twin))


def test_a_chunk_that_is_held_in_full_has_no_residue(split):
    assert split(b"".join(PAGES[7:12])) == ([("held", 7, 5)], b"")


def test_a_chunk_of_which_less_than_a_quarter_is_held_is_not_split(split):
    other = [random.Random(page).randbytes(PAGE) for page in range(100, 104)]
    assert split(b"".join([*other, PAGES[1]])) is None
    assert split(b"".join([*other[:3], PAGES[1]])) is not None


def test_a_chunk_that_ends_within_a_page_is_not_split(split):
    assert split(b"".join(PAGES[:4]) + b"short") is None


async def test_small_granules_and_empty_parts_are_not_indexed(tmp_path):
    bench = StoreBench(tmp_path)
    stored = await bench.write({"upper.tar": PAGES[0], "empty": b"", "zeros": bytes(2 * PAGE), "pages.img": PAGES[0]})
    held = await bench.resident(stored.ref)
    assert held.pages.keys() == {"pages.img"}
    with held.held_pages("upper.tar", granule_bytes=512) as pages:
        assert pages is None


def test_an_extent_covers_the_short_end_of_a_chunk():
    chunk = ChunkRef(bytes(32), bytes(32), 0, 32, 100, 2 * PAGE + 7)
    assert [Extent(0, first, 1).size_bytes(chunk, PAGE) for first in range(3)] == [PAGE, PAGE, 7]
