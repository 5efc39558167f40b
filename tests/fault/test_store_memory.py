"""An image larger than the memory allowed goes through both ways."""

import subprocess
import sys
import textwrap

import pytest

SIZES_MIB = (pytest.param(400, 256, marks=pytest.mark.slow), (240, 200))

PROGRAM = textwrap.dedent(
    """
    import asyncio, os, sys
    from pathlib import Path
    from torpor.adapters.entropy.system import SystemEntropy
    from torpor.adapters.objects.localfs import LocalObjects
    from torpor.store.snapshots import PartSource, ReadOptions, Resident
    from torpor.testing.store import StoreBench
    import dataclasses

    def most_rss_mib():
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    async def main(folder):
        bench = StoreBench(folder, objects=LocalObjects(folder / "objects"))
        request = await bench.request({}, subject="template")
        Path("/proc/self/clear_refs").write_text("5")  # forget the most so far: a parent's counts as well
        before = most_rss_mib()
        stored = await bench.store.write(
            dataclasses.replace(request, parts=(PartSource("pages.img", folder / "image"),))
        )
        await bench.store.read(stored.ref, folder / "back")
        held = Resident.indexed(await bench.store.open(stored.ref), folder / "back", frozenset({"pages.img"}))
        with open(folder / "image", "r+b") as file:
            for page in range(0, int(sys.argv[2]) * 256, 97):
                file.seek(page * 4096 + 8)
                file.write(b"changed")
        clone = await bench.request({}, template=stored.ref, resident=held)
        clone = await bench.store.write(
            dataclasses.replace(clone, parts=(PartSource("pages.img", folder / "image"),))
        )
        await bench.store.read(clone.ref, folder / "clone", options=ReadOptions(resident=held))
        await bench.store.read(clone.ref, folder / "alone")
        report = await bench.store.check()
        little = clone.new_bytes < 16 << 20
        many = stored.new_chunk_count > int(sys.argv[2])
        print(stored.image_bytes, many and little, report.clean, most_rss_mib() - before)

    asyncio.run(main(Path(sys.argv[1])))
    """
)


@pytest.mark.parametrize(("size_mib", "grows_mib_max"), SIZES_MIB)
def test_an_image_and_a_changed_clone_are_stored_read_and_checked_in_bounded_memory(tmp_path, size_mib, grows_mib_max):
    image = tmp_path / "image"
    with image.open("wb") as file, open("/dev/urandom", "rb") as noise:
        for _ in range(size_mib // 16):
            file.write(noise.read(4 << 20) + b"text" * (1 << 20) + noise.read(2 << 20))
            file.seek(6 << 20, 1)
        file.truncate(size_mib << 20)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(size_mib)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    size, many, clean, grew_mib = done.stdout.split() or done.stderr
    assert (size, many, clean) == (str(size_mib << 20), "True", "True")
    assert float(grew_mib) <= grows_mib_max
    for name in ("clone", "alone"):
        assert subprocess.run(["cmp", image, tmp_path / name / "pages.img"], check=False).returncode == 0
        assert (tmp_path / name / "pages.img").stat().st_blocks <= image.stat().st_blocks + 8
