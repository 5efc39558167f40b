"""Bytes that were written once stay readable, and what is wrong with them stays noticed.

``formats/v0`` holds a frozen store, its keys and ``vectors.json``. Run this file to freeze them anew; that is allowed
until the first release, and afterwards only for a new version in a new folder.
"""

import asyncio
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.adapters.objects.localfs import LocalObjects
from torpor.domain.errors import TorporError
from torpor.domain.snapshot import SnapshotRef
from torpor.store.format.chunker import Cutter
from torpor.testing.store import StoreBench

FROZEN = Path(__file__).parent / "formats" / "v0"
VECTORS = json.loads((FROZEN / "vectors.json").read_text()) if (FROZEN / "vectors.json").exists() else {}

PARENT = {
    "pages.img": random.Random(1).randbytes(9000) + bytes(8192) + b"text " * 2000,
    "upper.tar": random.Random(2).randbytes(1536),
}
PAGE = 4096
TEMPLATE = {"pages.img": random.Random(4).randbytes(12 * PAGE)}
CLONE = {"pages.img": TEMPLATE["pages.img"][: 5 * PAGE] + bytes(PAGE) + random.Random(5).randbytes(PAGE)
         + TEMPLATE["pages.img"][7 * PAGE :]}  # fmt: skip
CHILD = {**PARENT, "pages.img": PARENT["pages.img"] + random.Random(3).randbytes(100)}

# Object, change, error of a read of the child, kinds of problem that check reports.
CHANGES = [
    ("a flipped bit in the child's pack", "packs/child", {"flip_bit": 8 * 500}, "data_loss", ["corrupt_chunk"]),
    ("a flipped bit in the parent's pack", "packs/parent", {"flip_bit": 8 * 500}, None, ["corrupt_chunk"]),
    ("a flipped bit in a pack's header", "packs/child", {"flip_bit": 100}, None, ["corrupt_pack"]),
    ("a pack cut in half", "packs/child", {"truncate": 5000}, "data_loss", ["corrupt_chunk", "corrupt_pack"]),
    ("a pack without its last byte", "packs/child", {"truncate": -1}, None, ["corrupt_pack"]),
    ("a pack that is gone", "packs/child", {"delete": True}, "data_loss", ["missing_pack"]),
    ("a pack in another's place", "packs/child", {"copy": "packs/parent"}, "data_loss", ["corrupt_pack"]),
    ("a flipped bit in a manifest's body", "manifests/child", {"flip_bit": -9}, "data_loss", ["corrupt_manifest"]),
    ("another sequence in a header", "manifests/child", {"flip_bit": 8 * 20}, "data_loss", ["corrupt_manifest"]),
    ("a newer format version", "manifests/child", {"flip_bit": 8 * 8}, "data_loss", ["corrupt_manifest"]),
    ("a manifest cut short", "manifests/child", {"truncate": -1}, "data_loss", ["corrupt_manifest"]),
    ("an older manifest in a newer one's place", "manifests/child", {"copy": "manifests/parent"}, "data_loss",
     ["corrupt_manifest"]),
    ("a manifest that is gone", "manifests/child", {"delete": True}, "not_found", ["missing_manifest"]),
    ("a flipped bit in the pointer", "head", {"flip_bit": 200}, None, ["corrupt_head"]),
    ("a pointer that is gone", "head", {"delete": True}, None, []),
    ("a zeroed secret", "key:acme/secrets/session", {"zero": True}, "data_loss", ["corrupt_manifest"]),
    ("a lost secret", "key:acme/secrets/session", {"delete": True}, "not_found", ["missing_key"]),
    ("a tombstone", "key:acme/destroyed/session", {"create": True}, "key_destroyed", []),
]  # fmt: skip


def thaw(folder):
    """A store on a copy of the frozen one. Git keeps no modes: keys are closed to others again."""
    shutil.copytree(FROZEN / "objects", folder / "store" / "objects")
    shutil.copytree(FROZEN / "keys", folder / "keys")
    for path in [folder / "keys", *(folder / "keys").rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    keys = FileKeys(folder / "keys", SeededEntropy(9))
    return StoreBench(folder, objects=LocalObjects(folder / "store"), keys=keys)


def file_of(folder, name):
    if name.startswith("key:"):
        return folder / "keys" / name.removeprefix("key:")
    return folder / "store" / "objects" / VECTORS["objects"][name]


def change(folder, name, how):
    path = file_of(folder, name)
    if "delete" in how:
        path.unlink()
        return
    if "create" in how:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        return
    data = bytearray(path.read_bytes())
    if "flip_bit" in how:
        bit = how["flip_bit"] % (8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
    elif "truncate" in how:
        del data[how["truncate"] :]
    elif "copy" in how:
        data = file_of(folder, how["copy"]).read_bytes()
    elif "zero" in how:
        data = bytes(len(data))
    path.write_bytes(data)


async def test_the_frozen_store_reads_as_it_was_written(tmp_path):
    bench = thaw(tmp_path)
    refs = {name: SnapshotRef.from_json(ref) for name, ref in VECTORS["snapshots"].items()}
    assert await bench.read(refs["parent"]) == PARENT
    assert await bench.read(refs["child"]) == CHILD
    assert await bench.store.head("acme", "session") == refs["child"]
    manifest = await bench.store.open(refs["child"])
    assert (manifest.parent, manifest.meta, manifest.header.region) == (refs["parent"], {"note": "child"}, "eu")
    assert [part.runs for part in manifest.parts] == [((0, 3), (1, 3)), ((0, 3),)]
    await bench.assert_clean()


async def test_a_frozen_clone_still_names_single_pages_of_its_template(tmp_path):
    bench = thaw(tmp_path)
    refs = {name: SnapshotRef.from_json(ref) for name, ref in VECTORS["snapshots"].items()}
    assert await bench.read(refs["template"]) == TEMPLATE
    assert await bench.read(refs["clone"]) == CLONE
    assert await bench.read(refs["clone"], resident=await bench.resident(refs["template"])) == CLONE
    manifest = await bench.store.open(refs["clone"])
    (part,) = manifest.parts
    assert (part.runs, part.extents) == (((0, 5), (1, 6)), ((1, 0, 5), (0, 0, 1), (1, 7, 5)))
    assert [manifest.packs[chunk.pack].subject for chunk in manifest.chunks] == ["clone", "template"]
    await bench.assert_clean()


@pytest.mark.parametrize("vector", VECTORS.get("failures", []), ids=lambda vector: vector["name"])
async def test_what_is_wrong_with_frozen_bytes_is_noticed(tmp_path, vector):
    bench = thaw(tmp_path)
    change(tmp_path, vector["object"], vector["change"])
    ref = SnapshotRef.from_json(VECTORS["snapshots"]["child"])
    if vector["read"] is None:
        assert await bench.read(ref) == CHILD
    else:
        with pytest.raises(TorporError) as caught:
            await bench.read(ref)
        assert caught.value.code == vector["read"]
    report = await bench.store.check()
    assert {problem.kind.value for problem in report.problems} >= set(vector["check"])
    assert report.clean == (not vector["check"])


def test_every_listed_change_has_its_vector():
    assert [vector["name"] for vector in VECTORS["failures"]] == [name for name, *_ in CHANGES]


@pytest.mark.parametrize("granule", [512, 4096])
def test_cut_points_are_those_of_the_first_day(granule):
    # Other cut points would read well but find nothing again: every next pause would store the whole image.
    assert cut_sizes(granule) == VECTORS["cuts"][str(granule)]


def cut_sizes(granule):
    cutter = Cutter(SeededEntropy(1).bytes(32), granule_bytes=granule)
    data = SeededEntropy(2).bytes(6 << 20)
    return [len(chunk) for chunk in [*cutter.feed(data), *cutter.finish()]]


async def freeze(folder):
    """Write the frozen store and its vectors."""
    keys = FileKeys(folder / "keys", SeededEntropy(1))
    bench = StoreBench(folder, objects=LocalObjects(folder / "store"), keys=keys)
    common = {"tenant": "acme", "region": "eu", "generation": 3, "requirements": {"build": "golden"}}
    parent = (await bench.write(PARENT, meta={"note": "parent"}, **common)).ref
    parent_packs = {info.key async for info in bench.objects.list("v0/acme/session/packs/")}
    child = (await bench.write(CHILD, sequence=2, parent=parent, meta={"note": "child"}, **common)).ref
    template = (await bench.write(TEMPLATE, subject="template", **common)).ref
    held = await bench.resident(template)
    clone = (await bench.write(CLONE, subject="clone", template=template, resident=held, **common)).ref
    keys_now = [info.key async for info in bench.objects.list("v0/acme/session/")]
    packs = [key for key in keys_now if "/packs/" in key]
    objects = {
        "head": "v0/acme/session/head",
        "manifests/parent": next(key for key in keys_now if "/00000001-" in key),
        "manifests/child": next(key for key in keys_now if "/00000002-" in key),
        "packs/parent": next(key for key in packs if key in parent_packs),
        "packs/child": next(key for key in packs if key not in parent_packs),
    }
    vectors = {
        "snapshots": {
            "parent": parent.to_json(),
            "child": child.to_json(),
            "template": template.to_json(),
            "clone": clone.to_json(),
        },
        "objects": objects,
        "cuts": {str(granule): cut_sizes(granule) for granule in (512, 4096)},
        "failures": [
            {"name": name, "object": target, "change": how, "read": read, "check": check}
            for name, target, how, read, check in CHANGES
        ],
    }
    shutil.rmtree(FROZEN, ignore_errors=True)
    shutil.copytree(folder / "store" / "objects", FROZEN / "objects")
    shutil.copytree(folder / "keys", FROZEN / "keys", ignore=shutil.ignore_patterns("lock", ".fresh"))
    (FROZEN / "vectors.json").write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(freeze(Path(temporary)))
    sys.stdout.write(f"froze {FROZEN}\n")
