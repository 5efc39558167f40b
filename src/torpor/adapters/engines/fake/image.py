"""The two parts of a fake checkpoint, as real files: memory as JSON, the filesystem delta as a tar. Pure."""

from __future__ import annotations

import base64
import io
import json
import tarfile

from torpor.adapters.engines.fake.host import Delta
from torpor.domain.errors import EngineError

MEMORY_FILE = "memory.json"
FILESYSTEM_FILE = "filesystem.tar"


def pack_memory(dump: bytes, inbound: bytes, filesystem: Delta) -> bytes:
    """The memory part: the program, what it has not read yet, and, as in a real engine, its overlay."""
    files = {path: None if data is None else _text(data) for path, data in sorted(filesystem.items())}
    return json.dumps({"dump": _text(dump), "inbound": _text(inbound), "filesystem": files}).encode()


def unpack_memory(data: bytes) -> tuple[bytes, bytes, Delta]:
    """The inverse of ``pack_memory``. Raises: EngineError."""
    try:
        image = json.loads(data)
        files = {path: None if text is None else _bytes(text) for path, text in image["filesystem"].items()}
        return _bytes(image["dump"]), _bytes(image["inbound"]), files
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"cannot restore: the memory part does not parse: {error}") from error


def pack_filesystem(delta: Delta) -> bytes:
    """The filesystem part: a tar with whiteouts as character devices 0/0."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path, data in sorted(delta.items()):
            member = tarfile.TarInfo("." + path)
            if data is None:
                member.type = tarfile.CHRTYPE
            else:
                member.size = len(data)
            archive.addfile(member, io.BytesIO(data or b""))
    return stream.getvalue()


def unpack_filesystem(data: bytes) -> Delta:
    """The inverse of ``pack_filesystem``; directories are passed over. Raises: EngineError."""
    delta: Delta = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                path = "/" + member.name.removeprefix("./").lstrip("/")
                if member.ischr():
                    delta[path] = None
                elif content := archive.extractfile(member):
                    delta[path] = content.read()
    except tarfile.TarError as error:
        raise EngineError(f"cannot lay the filesystem part over the root: {error}") from error
    return delta


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
