"""The snapshot library: usable without the rest of torpor; knows no lifecycle, node or engine.

::

    from pathlib import Path
    from torpor.adapters.clock.system import SystemClock
    from torpor.adapters.entropy.system import SystemEntropy
    from torpor.adapters.keys.file import FileKeys
    from torpor.adapters.objects.localfs import LocalObjects
    from torpor.store.snapshots import PartSource, SnapshotStore, WriteRequest

    entropy = SystemEntropy()
    keys = FileKeys(Path("keys"), entropy)
    store = SnapshotStore(LocalObjects(Path("objects")), keys, entropy, SystemClock())

    key = await keys.create("default", "my-subject")
    stored = await store.write(
        WriteRequest(
            tenant="default", subject="my-subject", snapshot="first", sequence=1, wrapped_key=key.wrapped,
            parts=(PartSource("pages.img", Path("pages.img")),),
            parent=None, template=None, requirements={}, meta={},
        )
    )
    await store.read(stored.ref, Path("back"))      # back/pages.img
    assert (await store.check()).clean
    await keys.destroy("default", "my-subject")     # nobody can read it any more

Invariants: write order is packs → manifest → pointer, and only then does ``write`` return; read order is the reverse;
removal is pointer → manifest → packs. A manifest names only durable chunks. Nothing about plaintext is published:
digests, lengths and keys of chunks are inside the sealed manifest. Truncation or any flipped bit is ``Corrupt``.
"""
