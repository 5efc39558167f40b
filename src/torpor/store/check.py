"""The checker: pointers, manifests, and every chunk decrypted and hashed. Used by people and by every store test.

Invariants: it changes nothing; findings are values; each pack is fetched once, however many manifests name it. It may
run beside writers: heads are read first, then what they name, so that a new snapshot is never taken for a broken one.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import blake3

from torpor.domain.errors import Corrupt, KeyDestroyed, NotFound, TorporError, Unsupported
from torpor.domain.ids import TenantId
from torpor.domain.snapshot import ChunkRef, Lender, Manifest, PackRef, SnapshotRef
from torpor.store.format.envelope import Opener
from torpor.store.format.pack import verify_pack
from torpor.store.layout import ROOT, Kind, Placed, pack_key, parse_key, tenant_prefix
from torpor.store.outside import Outside
from torpor.store.pipeline import for_each, run, worker_pool
from torpor.store.reader import open_chunk
from torpor.store.requests import CheckReport, Problem, ProblemKind

PACK_COUNT_MAX = 3  # packs in memory at once: 48 MiB


async def check_store(outside: Outside, tenant: TenantId | None) -> CheckReport:
    """Verify one tenant's objects, or all; the contract is ``SnapshotStore.check``'s."""
    checking = _Checking(outside)
    async for info in outside.objects.list(ROOT if tenant is None else tenant_prefix(tenant)):
        checking.listed[info.key] = parse_key(info.key)
    for placed in checking.found(Kind.HEAD):
        await checking.check_head(placed)
    for placed in checking.found(Kind.MANIFEST):
        await checking.check_manifest(placed)
    async with worker_pool(outside.workers) as pool:
        await for_each(checking.named.items(), lambda item: checking.check_pack(pool, *item), limit=PACK_COUNT_MAX)
    return CheckReport(
        problems=tuple(sorted(checking.problems)),
        unreferenced=tuple(sorted(checking.unreferenced())),
        shredded=tuple(sorted(checking.shredded)),
        snapshot_count=len(checking.opened),
        chunk_count=sum(len(chunks) for chunks in checking.named.values()),
        bytes_read=checking.bytes_read,
    )


class _Checking:
    """What one check has seen so far."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.listed: dict[str, Placed | None] = {}
        self.problems: list[Problem] = []
        self.opened: set[str] = set()
        self.shredded: set[str] = set()
        self.named: dict[PackRef, set[ChunkRef]] = {}
        self.bytes_read = 0
        self._heads: dict[Lender, SnapshotRef] = {}
        self._failed: set[str] = set()

    def found(self, kind: Kind) -> list[Placed]:
        """Listed objects of a kind, in key order."""
        return [placed for placed in self.listed.values() if placed and placed.kind is kind]

    async def check_head(self, placed: Placed) -> None:
        """Read a pointer and the manifest it names."""
        try:
            ref = await self._outside.heads.read(placed.tenant, placed.subject)
        except TorporError as error:
            self._report(ProblemKind.CORRUPT_HEAD, placed.key, error)
            return
        if ref is None:
            return
        if Lender(ref.tenant, ref.subject) != placed.owner:
            self._report(ProblemKind.CORRUPT_HEAD, placed.key, Corrupt(f"cannot use {placed.key}: it names {ref}"))
            return
        self._heads[placed.owner] = ref
        manifest = Placed(Kind.MANIFEST, ref.tenant, ref.subject, ref.snapshot, ref.sequence)
        await self._open(manifest, digest=ref.digest)

    async def check_manifest(self, placed: Placed) -> None:
        """Open a manifest that no head named."""
        if placed.key not in self.opened | self.shredded | self._failed:
            await self._open(placed, digest=None)

    async def check_pack(self, pool: ThreadPoolExecutor, pack: PackRef, chunks: Iterable[ChunkRef]) -> None:
        """Fetch a pack; verify it whole, then each chunk that a manifest names in it."""
        key = pack_key(pack)
        try:
            data = await self._outside.objects.get(key)
        except NotFound as error:
            self._report(ProblemKind.MISSING_PACK, key, error)
            return
        except TorporError as error:
            self._report(ProblemKind.UNREADABLE, key, error)
            return
        self.bytes_read += len(data)
        self.problems.extend(await run(pool, _pack_problems, (pack, data, chunks)))

    def unreferenced(self) -> Iterable[str]:
        """Listed objects that nothing live names. Of a shredded subject that is all but what relatives borrowed."""
        packs = {pack_key(pack) for pack in self.named}
        for key, placed in self.listed.items():
            if placed is None:
                yield key
            elif placed.kind is Kind.PACK:
                if key not in packs:
                    yield key
            elif placed.kind is Kind.MANIFEST and key not in self._failed:
                head = self._heads.get(placed.owner)
                if head is None or placed.sequence > head.sequence:
                    yield key

    async def _open(self, placed: Placed, *, digest: str | None) -> None:
        try:
            manifest, _ = await self._outside.manifests.open_placed(placed, digest=digest)
        except KeyDestroyed:
            self.shredded.add(placed.key)
        except NotFound as error:
            await self._note_missing(placed, error, is_head=digest is not None)
        except Corrupt as error:
            self._report(ProblemKind.CORRUPT_MANIFEST, placed.key, error)
        except TorporError as error:
            kind = ProblemKind.MISSING_KEY if "missing_key" in error.details else ProblemKind.UNREADABLE
            self._report(kind, placed.key, error)
        else:
            self.opened.add(placed.key)
            self._note_names(manifest)

    async def _note_missing(self, placed: Placed, error: NotFound, *, is_head: bool) -> None:
        """Tell a missing manifest from a missing key; a manifest that was removed since the listing is neither."""
        try:
            await self._outside.objects.head(placed.key)
        except NotFound:
            if is_head:
                self._report(ProblemKind.MISSING_MANIFEST, placed.key, error)
        else:
            self._report(ProblemKind.MISSING_KEY, placed.key, error)

    def _note_names(self, manifest: Manifest) -> None:
        for chunk in manifest.chunks:
            self.named.setdefault(manifest.packs[chunk.pack], set()).add(chunk)

    def _report(self, kind: ProblemKind, key: str, error: TorporError) -> None:
        self._failed.add(key)
        self.problems.append(Problem(kind, key, error.message))


def _pack_problems(item: tuple[PackRef, bytes, Iterable[ChunkRef]]) -> list[Problem]:
    """On a thread."""
    pack, data, chunks = item
    key = pack_key(pack)
    problems: list[Problem] = []
    try:
        verify_pack(data, pack=pack.pack)
    except (Corrupt, Unsupported) as error:
        problems.append(Problem(ProblemKind.CORRUPT_PACK, key, error.message))
    opener, view = Opener(), memoryview(data)
    for chunk in sorted(chunks, key=lambda chunk: chunk.offset_bytes):
        try:
            sealed = view[chunk.offset_bytes : chunk.offset_bytes + chunk.sealed_bytes]
            if blake3.blake3(open_chunk(opener, sealed, chunk, pack)).digest() != chunk.digest:
                raise Corrupt(f"cannot use {key} at {chunk.offset_bytes}: the plaintext has another digest")
        except Corrupt as error:
            problems.append(Problem(ProblemKind.CORRUPT_CHUNK, key, error.message))
    return problems
