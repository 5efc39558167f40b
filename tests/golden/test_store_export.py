"""An export that was written once stays readable. Run this file to freeze it anew, until the first release."""

import asyncio
import random
import tempfile
from pathlib import Path

from torpor.store.snapshots import ImportRequest
from torpor.testing.store import StoreBench

FROZEN = Path(__file__).parent / "formats" / "export-v0.torpor"
PASSPHRASE = "correct horse battery staple"
PARTS = {
    "pages.img": random.Random(1).randbytes(9000) + bytes(8192) + b"text " * 2000,
    "upper.tar": random.Random(2).randbytes(1536),
}


async def test_an_export_of_version_0_is_imported_as_it_was(tmp_path):
    bench = StoreBench(tmp_path)
    key = await bench.key("default", "arrived")

    async def admit(exported):
        assert (exported.source.subject, exported.source.sequence) == ("session", 1)
        return ImportRequest("default", "arrived", "first", key.wrapped)

    async def pieces():
        yield FROZEN.read_bytes()

    stored = await bench.store.import_(pieces(), PASSPHRASE, admit)
    assert await bench.read(stored.ref) == PARTS
    manifest = await bench.store.open(stored.ref)
    assert (manifest.meta, manifest.requirements) == ({"name": "day"}, {"build": "runsc"})
    await bench.assert_clean()


async def _freeze(folder):
    bench = StoreBench(folder)
    stored = await bench.write(PARTS, meta={"name": "day"}, requirements={"build": "runsc"})
    FROZEN.write_bytes(b"".join([piece async for piece in bench.store.export(stored.ref, PASSPHRASE)]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(_freeze(Path(made)))
