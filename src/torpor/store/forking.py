"""A snapshot under another subject's name: a new manifest over the same chunks. No chunk is read, copied or sealed.

Invariant: a fork outlives its source. Its manifest is written first and then the source is looked at once more: a
removal that began before would be seen now, and one that begins later finds the fork's manifest and spares its packs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torpor.domain.errors import InvalidArgument, KeyDestroyed, NotFound, TorporError, Unavailable
from torpor.domain.ids import SnapshotId, TenantId
from torpor.domain.snapshot import SEQUENCE_MAX, Lender, Manifest, ManifestHeader, SnapshotRef, parse_key_part
from torpor.store.format.manifest import SALT_BYTES, encode_json, encode_manifest, manifest_digest
from torpor.store.heads import stale
from torpor.store.layout import manifest_key
from torpor.store.outside import Outside
from torpor.store.requests import StoredSnapshot


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A snapshot to store under ``subject`` with the content of ``source``.

    ``source``: of the same tenant, or, with ``of_template``, a template's of any tenant: then it becomes the fork's
    template; else it becomes its parent, and the template is the source's. ``wrapped_key``: the subject's own data
    key. ``meta``: replaces the source's entries of those names; others are kept. ``region``: the source's if empty.
    """

    source: SnapshotRef
    tenant: TenantId
    subject: str
    snapshot: SnapshotId
    sequence: int
    wrapped_key: bytes = field(repr=False)
    meta: Mapping[str, Any] = field(default_factory=dict)
    generation: int = 0
    region: str = ""
    of_template: bool = False

    def validate(self) -> None:
        """Raises: InvalidArgument naming the field. Done before anything is read or written."""
        for name in ("tenant", "subject", "snapshot"):
            parse_key_part(getattr(self, name), field=name)
        if self.region:
            parse_key_part(self.region, field="region")
        if not 0 <= self.sequence <= SEQUENCE_MAX:
            raise InvalidArgument(f"cannot store sequence {self.sequence}: use 0 to {SEQUENCE_MAX}", field="sequence")
        if self.source.tenant != self.tenant and not self.of_template:
            raise InvalidArgument(
                f"cannot fork a snapshot of tenant {self.source.tenant}: chunks are shared inside one tenant and with "
                "templates only",
                field="source",
            )
        if (self.source.tenant, self.source.subject) == (self.tenant, self.subject):
            raise InvalidArgument("cannot fork a snapshot into its own subject: name another", field="subject")
        encode_json({"meta": dict(self.meta)})


async def fork_snapshot(outside: Outside, request: ForkRequest) -> StoredSnapshot:
    """Store one fork; the contract is ``SnapshotStore.fork``'s."""
    request.validate()
    head = await outside.heads.read(request.tenant, request.subject)
    if head and head.sequence >= request.sequence:
        if (head.snapshot, head.sequence) != (request.snapshot, request.sequence):
            raise stale(request.subject, sequence=request.sequence, head=head)
        return _stored(await outside.manifests.open(head), head, new_bytes=0)
    source = await outside.manifests.open(request.source)
    data_key = await outside.keys.unwrap(request.tenant, request.subject, request.wrapped_key)
    fork = _fork_of(source, request, salt=outside.entropy.bytes(SALT_BYTES))
    data = await asyncio.to_thread(encode_manifest, fork, data_key=data_key)
    ref = SnapshotRef(request.tenant, request.subject, request.snapshot, request.sequence, manifest_digest(data))
    try:
        await outside.objects.put(manifest_key(ref), data)
        await _refuse_if_removed(outside, request.source)
        pointer_bytes = await outside.heads.advance(ref)
    except TorporError as error:
        if not isinstance(error, Unavailable):  # after a lost answer the pointer may name it
            with suppress(TorporError):
                await outside.objects.delete(manifest_key(ref))
        raise
    return _stored(fork, ref, new_bytes=len(data) + pointer_bytes)


def _fork_of(source: Manifest, request: ForkRequest, *, salt: bytes) -> Manifest:
    """The fork's manifest. Its cut key is the source's: chunks of the two can only meet under one key."""
    own = Lender(request.tenant, request.subject)
    header = ManifestHeader(
        tenant=request.tenant,
        subject=request.subject,
        snapshot=request.snapshot,
        sequence=request.sequence,
        generation=request.generation,
        region=request.region or source.header.region,
        wrapped_key=request.wrapped_key,
        lenders=tuple(sorted({pack.owner for pack in source.packs} - {own})),
        salt=salt,
    )
    return replace(
        source,
        header=header,
        parent=None if request.of_template else request.source,
        template=request.source if request.of_template else source.template,
        meta={**source.meta, **request.meta},
    )


async def _refuse_if_removed(outside: Outside, source: SnapshotRef) -> None:
    """Raises: KeyDestroyed, NotFound if the source's removal has begun."""
    if await outside.keys.is_destroyed(source.tenant, source.subject):
        raise KeyDestroyed(f"cannot fork {source.subject}: it was deleted meanwhile", subject=source.subject)
    try:
        await outside.objects.head(manifest_key(source))
    except NotFound as error:
        raise NotFound(f"cannot fork snapshot {source.snapshot}: it was removed meanwhile") from error


def _stored(manifest: Manifest, ref: SnapshotRef, *, new_bytes: int) -> StoredSnapshot:
    return StoredSnapshot(
        ref=ref,
        image_bytes=manifest.image_bytes,
        new_bytes=new_bytes,
        chunk_count=len(manifest.chunks),
        new_chunk_count=0,
        timings_ms={},
    )
