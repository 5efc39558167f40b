"""The root of one snapshot as bytes. Source: docs/formats/manifest-v0.md.

Invariants: the header is authenticated with the body; a header is decoded again right after it was encoded; a body that
opens but does not hold together (an index out of range, runs that do not fill a part) is ``Corrupt`` all the same.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import blake3
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from torpor.domain.errors import Corrupt, InvalidArgument, Unsupported
from torpor.domain.ids import SnapshotId, TenantId
from torpor.domain.snapshot import (
    CHUNK_BYTES_MAX,
    PACK_BYTES_MAX,
    PART_COUNT_MAX,
    ChunkRef,
    Extent,
    Lender,
    Manifest,
    ManifestHeader,
    PackRef,
    Part,
    SnapshotRef,
    parse_key_part,
)
from torpor.store.format.chunker import CUT_KEY_BYTES
from torpor.store.format.envelope import OVERHEAD_BYTES, Opener, Sealer

VERSION = 0
SALT_BYTES = 32
HEADER_BYTES_MAX = 65536
BODY_BYTES_MAX = 64 * 1024 * 1024
JSON_BYTES_MAX = 8 * 1024 * 1024
MANIFEST_BYTES_MAX = HEADER_BYTES_MAX + BODY_BYTES_MAX + OVERHEAD_BYTES

_MAGIC = b"TORMANI\0"
_INFO = b"torpor manifest v0"
_FIXED = struct.Struct("<8sHHIIQQ32s")
_BODY_BYTES_AT = 16
_COUNTS = struct.Struct("<II")
_CHUNK = struct.Struct("<32s32sIIII")
_RUN = struct.Struct("<II")
_EXTENT = struct.Struct("<III")


@dataclass(frozen=True, slots=True)
class Envelope:
    """A manifest whose body is still sealed. ``header_bytes`` is the header as it stood in the object."""

    header: ManifestHeader
    header_bytes: bytes
    sealed: bytes
    body_bytes: int


def manifest_digest(data: bytes) -> str:
    """The identity of the snapshot whose manifest object this is."""
    return blake3.blake3(data).hexdigest()


def encode_manifest(manifest: Manifest, *, data_key: bytes) -> bytes:
    """The object. ``manifest.header.salt`` must be fresh. Raises: InvalidArgument if it is larger than a limit."""
    body = _encode_body(manifest)
    key = _body_key(data_key, manifest.header.salt)
    header = encode_header(manifest.header, body_bytes=len(body))
    sealed = Sealer().seal(body, key=key, context=header)
    assert split_manifest(header + sealed).header == manifest.header
    return header + sealed


def encode_header(header: ManifestHeader, *, body_bytes: int) -> bytes:
    """The header's bytes. Raises: InvalidArgument if there are more lenders than fit."""
    assert len(header.salt) == SALT_BYTES
    texts = (header.tenant, header.subject, header.snapshot, header.region)
    tail = [*(_short(text) for text in texts), struct.pack("<H", len(header.wrapped_key)), header.wrapped_key]
    tail.append(struct.pack("<H", len(header.lenders)))
    tail.extend(_short(lender.tenant) + _short(lender.subject) for lender in header.lenders)
    rest = b"".join(tail)
    header_bytes = _FIXED.size + len(rest)
    if header_bytes > HEADER_BYTES_MAX:
        raise InvalidArgument(
            f"cannot write a manifest that names packs of {len(header.lenders)} subjects: fork from a nearer ancestor",
            field="parent",
        )
    fixed = _FIXED.pack(_MAGIC, VERSION, 0, header_bytes, body_bytes, header.sequence, header.generation, header.salt)
    return fixed + rest


def decode_header(data: bytes) -> tuple[ManifestHeader, int]:
    """The header and its length, from the first HEADER_BYTES_MAX bytes or more. Not authenticated by itself.

    Raises: Corrupt; Unsupported for another version.
    """
    if len(data) < _FIXED.size:
        raise Corrupt(f"cannot read a manifest: {len(data)} bytes are less than a header")
    magic, version, flags, header_bytes, _, sequence, generation, salt = _FIXED.unpack_from(data)
    if magic != _MAGIC:
        raise Corrupt("cannot read a manifest: the object does not start like one")
    if version != VERSION or flags:
        raise Unsupported(f"cannot read a manifest: format version {version}; this torpor reads {VERSION}")
    if not _FIXED.size < header_bytes <= min(HEADER_BYTES_MAX, len(data)):
        raise Corrupt(f"cannot read a manifest: a header of {header_bytes} bytes does not fit")
    fields = _Fields(data[_FIXED.size : header_bytes])
    tenant, subject, snapshot, region = (fields.text() for _ in range(4))
    wrapped_key = fields.take(fields.number())
    lenders = tuple(Lender(TenantId(fields.text()), fields.text()) for _ in range(fields.number()))
    fields.end()
    header = ManifestHeader(
        tenant=TenantId(tenant),
        subject=subject,
        snapshot=SnapshotId(snapshot),
        sequence=sequence,
        generation=generation,
        region=region,
        wrapped_key=wrapped_key,
        lenders=lenders,
        salt=salt,
    )
    return header, header_bytes


def split_manifest(data: bytes) -> Envelope:
    """Header and sealed body. Raises: Corrupt, Unsupported."""
    header, header_bytes = decode_header(data)
    (body_bytes,) = struct.unpack_from("<I", data, _BODY_BYTES_AT)
    if body_bytes > BODY_BYTES_MAX or len(data) > MANIFEST_BYTES_MAX:
        raise Corrupt(f"cannot read a manifest: {len(data)} bytes for a body of {body_bytes} are more than the limit")
    return Envelope(header, data[:header_bytes], data[header_bytes:], body_bytes)


def open_manifest(envelope: Envelope, *, data_key: bytes) -> Manifest:
    """The manifest, authentic and whole. Raises: Corrupt."""
    opener = Opener(plain_bytes_max=BODY_BYTES_MAX)
    key = _body_key(data_key, envelope.header.salt)
    body = opener.open(envelope.sealed, key=key, plain_bytes=envelope.body_bytes, context=envelope.header_bytes)
    try:
        return _decode_body(body, envelope.header)
    except (struct.error, ValueError, KeyError, TypeError, IndexError, InvalidArgument) as error:
        raise Corrupt(f"cannot read a manifest: its body does not hold together: {error!r}") from error


def _body_key(data_key: bytes, salt: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=_INFO).derive(data_key)


def _encode_body(manifest: Manifest) -> bytes:
    description = {
        "parent": manifest.parent.to_json() if manifest.parent else None,
        "template": manifest.template.to_json() if manifest.template else None,
        "requirements": dict(manifest.requirements),
        "meta": dict(manifest.meta),
        "packs": [[pack.tenant, pack.subject, pack.pack] for pack in manifest.packs],
        "parts": [
            {
                "name": part.name,
                "size_bytes": part.size_bytes,
                "granule_bytes": part.granule_bytes,
                "run_count": len(part.runs),
                "extent_count": len(part.extents),
            }
            for part in manifest.parts
        ],
    }
    text = encode_json(description)
    pieces = [manifest.cut_key, _COUNTS.pack(len(text), len(manifest.chunks)), text]
    pieces.extend(
        _CHUNK.pack(chunk.key, chunk.digest, chunk.pack, chunk.offset_bytes, chunk.sealed_bytes, chunk.plain_bytes)
        for chunk in manifest.chunks
    )
    for part in manifest.parts:
        numbers = [*itertools.chain.from_iterable(part.runs), *itertools.chain.from_iterable(part.extents)]
        pieces.append(struct.pack(f"<{len(numbers)}I", *numbers))
    body = b"".join(pieces)
    if len(body) > BODY_BYTES_MAX:
        raise InvalidArgument(
            f"cannot write a manifest of {len(body)} bytes: the limit is {BODY_BYTES_MAX}; use smaller parts",
            field="parts",
        )
    return body


def encode_json(value: Mapping[str, Any]) -> bytes:
    """One spelling for equal values. Raises: InvalidArgument if it is no JSON or more than JSON_BYTES_MAX."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"cannot store requirements and meta: {error}", field="meta") from error
    if len(text) > JSON_BYTES_MAX:
        raise InvalidArgument(
            f"cannot store {len(text)} bytes of requirements and meta: the limit is {JSON_BYTES_MAX}", field="meta"
        )
    return text


def _decode_body(body: memoryview, header: ManifestHeader) -> Manifest:
    cut_key = bytes(body[:CUT_KEY_BYTES])
    json_bytes, chunk_count = _COUNTS.unpack_from(body, CUT_KEY_BYTES)
    at = CUT_KEY_BYTES + _COUNTS.size
    description = json.loads(bytes(body[at : at + json_bytes]))
    at += json_bytes
    records = body[at : at + chunk_count * _CHUNK.size]
    at += chunk_count * _CHUNK.size
    chunks = tuple(itertools.starmap(ChunkRef, _CHUNK.iter_unpack(records)))
    packs = tuple(PackRef(TenantId(tenant), subject, pack) for tenant, subject, pack in description["packs"])
    parts: list[Part] = []
    for entry in description["parts"]:
        run_end = at + entry["run_count"] * _RUN.size
        end = run_end + entry["extent_count"] * _EXTENT.size
        runs: tuple[tuple[int, int], ...] = tuple(_RUN.iter_unpack(body[at:run_end]))
        extents = tuple(itertools.starmap(Extent, _EXTENT.iter_unpack(body[run_end:end])))
        parts.append(Part(entry["name"], entry["size_bytes"], entry["granule_bytes"], runs, extents))
        at = end
    if at != len(body) or len(chunks) != chunk_count:
        raise Corrupt("cannot read a manifest: its body has another length than its counts say")
    manifest = Manifest(
        header=header,
        parts=tuple(parts),
        chunks=chunks,
        packs=packs,
        parent=SnapshotRef.from_json(description["parent"]) if description["parent"] else None,
        template=SnapshotRef.from_json(description["template"]) if description["template"] else None,
        requirements=description["requirements"],
        meta=description["meta"],
        cut_key=cut_key,
    )
    verify_manifest(manifest)
    return manifest


def verify_manifest(manifest: Manifest) -> None:
    """Raises: Corrupt if the manifest could not have come from a writer."""
    if len(manifest.parts) > PART_COUNT_MAX or len({part.name for part in manifest.parts}) != len(manifest.parts):
        raise Corrupt("cannot use a manifest: too many parts, or two of one name")
    own = Lender(manifest.header.tenant, manifest.header.subject)
    owners = {pack.owner for pack in manifest.packs} - {own}
    if tuple(sorted(owners)) != manifest.header.lenders:
        raise Corrupt("cannot use a manifest: its lenders are not the owners of its packs")
    for pack in manifest.packs:
        for name in (pack.tenant, pack.subject, pack.pack):
            parse_key_part(name, field="pack")
    for chunk in manifest.chunks:
        fits = chunk.pack < len(manifest.packs) and chunk.offset_bytes + chunk.sealed_bytes <= PACK_BYTES_MAX
        if not (fits and 0 < chunk.plain_bytes <= CHUNK_BYTES_MAX and chunk.sealed_bytes > OVERHEAD_BYTES):
            raise Corrupt("cannot use a manifest: a chunk lies outside of its pack")
    for part in manifest.parts:
        parse_key_part(part.name, field="part")
        granules = sum(zero + data for zero, data in part.runs)
        if granules != part.granule_count or _covered_bytes(part, manifest.chunks) != part.data_bytes:
            raise Corrupt(f"cannot use a manifest: part {part.name} is not filled by its chunks")


def _covered_bytes(part: Part, chunks: Sequence[ChunkRef]) -> int:
    """Bytes that the part's extents cover. Raises: Corrupt if one leaves its chunk, or ends short before the last."""
    covered_bytes, granule_bytes = 0, part.granule_bytes
    for extent in part.extents:
        size_bytes = extent.size_bytes(chunks[extent.chunk_index], granule_bytes)
        most_bytes = extent.granule_count * granule_bytes
        # A rest of a whole granule or more means that the extent leaves its chunk.
        if not most_bytes - granule_bytes < size_bytes or covered_bytes % granule_bytes or not size_bytes > 0:
            raise Corrupt(f"cannot use a manifest: an extent of part {part.name} leaves its chunk")
        covered_bytes += size_bytes
    return covered_bytes


def _short(text: str) -> bytes:
    data = text.encode("ascii")
    assert len(data) <= 255
    return bytes((len(data),)) + data


class _Fields:
    """Reads length-prefixed fields and never beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) != count:
            raise Corrupt("cannot read a manifest: its header ends within a field")
        self._at += count
        return piece

    def number(self) -> int:
        return int.from_bytes(self.take(2), "little")

    def text(self) -> str:
        data = self.take(self.take(1)[0])
        if not data.isascii():
            raise Corrupt("cannot read a manifest: a name in its header is not ASCII")
        return data.decode("ascii")

    def end(self) -> None:
        if self._at != len(self._data):
            raise Corrupt("cannot read a manifest: its header is longer than its fields")
