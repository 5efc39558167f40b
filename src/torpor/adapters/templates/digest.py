"""The digest of a tree: its name.

Covers kind, permission bits, owner, size, content, link target and device number of every path, in the order of the
paths' bytes; not times, nor how the file system stores it. Two trees of one digest behave alike in a sandbox.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_READ_BYTES = 1 << 20
_HEADER = b"torpor-rootfs-1\n"


@dataclass(frozen=True, slots=True)
class TreeDigest:
    """``digest``: 64 hex digits. ``size_bytes``: sum of the regular files' sizes."""

    digest: str
    file_count: int
    size_bytes: int


def digest_tree(root: Path) -> TreeDigest:
    """Read all of ``root``. Blocking: about two seconds per GB."""
    whole = hashlib.sha256(_HEADER)
    file_count = size_bytes = 0
    for relative, path in _walk(os.fsencode(root)):
        info = os.lstat(path)
        whole.update(_line(relative, path, info))
        if stat.S_ISREG(info.st_mode):
            file_count += 1
            size_bytes += info.st_size
    return TreeDigest(whole.hexdigest(), file_count, size_bytes)


def _walk(root: bytes) -> Iterator[tuple[bytes, bytes]]:
    # Names, not entries, are sorted, so that the order is the same on every file system.
    pending = [b""]
    while pending:
        relative = pending.pop()
        path = os.path.join(root, relative) if relative else root
        yield relative, path
        if not os.path.islink(path) and os.path.isdir(path):
            names = sorted(os.listdir(path), reverse=True)
            pending.extend(os.path.join(relative, name) if relative else name for name in names)


def _line(relative: bytes, path: bytes, info: os.stat_result) -> bytes:
    kind = stat.S_IFMT(info.st_mode)
    if stat.S_ISREG(info.st_mode):
        body = f"{info.st_size} {_content_digest(path)}".encode()
    elif stat.S_ISLNK(info.st_mode):
        body = os.readlink(path)
    elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
        body = str(info.st_rdev).encode()
    else:
        body = b""
    meta = f"{kind:o} {stat.S_IMODE(info.st_mode):o} {info.st_uid} {info.st_gid}".encode()
    # Paths and link targets cannot hold a NUL, so the fields cannot be shifted into one another.
    return b"\0".join((relative, meta, body)) + b"\0\n"


def _content_digest(path: bytes) -> str:
    content = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_READ_BYTES):
            content.update(block)
    return content.hexdigest()
