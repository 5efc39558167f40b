"""One object that holds many sealed chunks. Source: docs/formats/pack-v0.md."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import blake3

from torpor.domain.errors import Corrupt, Unsupported
from torpor.domain.ids import is_id
from torpor.domain.snapshot import PACK_BYTES_MAX

VERSION = 0
_MAGIC = b"TORPACK\0"
_END = b"KCAPROT\0"
_HEADER = struct.Struct("<8sHH20s")
_FOOTER = struct.Struct("<II32s8s")

HEADER_BYTES = _HEADER.size
FOOTER_BYTES = _FOOTER.size
PAYLOAD_BYTES_MAX = PACK_BYTES_MAX - HEADER_BYTES - FOOTER_BYTES


def encode_pack(pack: str, chunks: Sequence[bytes]) -> bytes:
    """The object. ``chunks``: at least one, together at most ``PAYLOAD_BYTES_MAX``; the first lies at HEADER_BYTES."""
    payload_bytes = sum(len(chunk) for chunk in chunks)
    assert is_id(pack)
    assert chunks
    assert payload_bytes <= PAYLOAD_BYTES_MAX
    header = _HEADER.pack(_MAGIC, VERSION, 0, pack.encode())
    digest = blake3.blake3(header)
    for chunk in chunks:
        digest.update(chunk)
    counts = struct.pack("<II", len(chunks), payload_bytes)
    digest.update(counts)
    return b"".join((header, *chunks, counts, digest.digest(), _END))


def verify_pack(data: bytes, *, pack: str) -> int:
    """The number of chunks in an object that is exactly what ``encode_pack`` made for this id.

    Raises: Corrupt; Unsupported for a whole pack of another version.
    """
    if not HEADER_BYTES + FOOTER_BYTES < len(data) <= PACK_BYTES_MAX:
        raise Corrupt(f"cannot read pack {pack}: {len(data)} bytes is not a pack's size", pack=pack)
    magic, version, flags, name = _HEADER.unpack_from(data)
    chunk_count, payload_bytes, digest, end = _FOOTER.unpack_from(data, len(data) - FOOTER_BYTES)
    checked = blake3.blake3(memoryview(data)[: len(data) - 40]).digest()
    if magic != _MAGIC or end != _END or digest != checked or payload_bytes != len(data) - HEADER_BYTES - FOOTER_BYTES:
        raise Corrupt(f"cannot read pack {pack}: its bytes are not those that were written", pack=pack)
    if version != VERSION or flags:
        raise Unsupported(f"cannot read pack {pack}: format version {version}; this torpor reads {VERSION}", pack=pack)
    if name != pack.encode() or not chunk_count:
        raise Corrupt(f"cannot read pack {pack}: the object holds pack {name!r}", pack=pack)
    return int(chunk_count)
