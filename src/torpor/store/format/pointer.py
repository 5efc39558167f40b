"""The pointer to a subject's newest snapshot. Source: docs/formats/manifest-v0.md §4."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

import blake3

from torpor.domain.errors import Corrupt, InvalidArgument, Unsupported
from torpor.domain.snapshot import SnapshotRef

VERSION = 0
POINTER_BYTES_MAX = 4096
_MAGIC = b"TORHEAD\0"
_HEADER = struct.Struct("<8sHH")
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a head object says. ``write`` tells one's own write from another's when an answer was lost."""

    ref: SnapshotRef
    write: str


def encode_pointer(pointer: Pointer) -> bytes:
    """The object, at most POINTER_BYTES_MAX."""
    body = json.dumps({**pointer.ref.to_json(), "write": pointer.write}, sort_keys=True, separators=(",", ":")).encode()
    data = _HEADER.pack(_MAGIC, VERSION, len(body)) + body
    data += blake3.blake3(data).digest()
    assert len(data) <= POINTER_BYTES_MAX
    assert decode_pointer(data) == pointer
    return data


def decode_pointer(data: bytes) -> Pointer:
    """Raises: Corrupt; Unsupported for a whole pointer of another version."""
    if not _HEADER.size + _DIGEST_BYTES < len(data) <= POINTER_BYTES_MAX:
        raise Corrupt(f"cannot read a pointer: {len(data)} bytes is not a pointer's size")
    body = data[_HEADER.size : -_DIGEST_BYTES]
    magic, version, json_bytes = _HEADER.unpack_from(data)
    checked = blake3.blake3(data[:-_DIGEST_BYTES]).digest()
    if magic != _MAGIC or checked != data[-_DIGEST_BYTES:] or json_bytes != len(body):
        raise Corrupt("cannot read a pointer: its bytes are not those that were written")
    if version != VERSION:
        raise Unsupported(f"cannot read a pointer: format version {version}; this torpor reads {VERSION}")
    try:
        value = json.loads(body)
        return Pointer(ref=SnapshotRef.from_json(value), write=str(value["write"]))
    except (ValueError, KeyError, TypeError, InvalidArgument) as error:
        raise Corrupt(f"cannot read a pointer: {error}") from error
