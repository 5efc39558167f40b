"""A stream under a passphrase: frames that open only whole, in order and complete. Source: docs/formats/export-v0.md.

No I/O: a ``StreamSealer`` makes a file's bytes out of plaintext, a ``StreamOpener`` takes a file's bytes as they come.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from torpor.domain.errors import Corrupt, InvalidArgument, Unsupported

VERSION = 0
SALT_BYTES = 32
FRAME_BYTES = 256 * 1024
PASSPHRASE_CHARACTERS_MIN = 8
TAG_BYTES = 16

_MAGIC = b"TOREXPO\0"
_FIXED = struct.Struct("<8sHBBH32s")
_SIZE = struct.Struct("<I")
_NONCE = struct.Struct("<Q3xB")
_CHECK_BYTES = 16
HEADER_BYTES = _FIXED.size + _CHECK_BYTES
_COSTS = (16, 8, 1)
_LOG2_N = range(10, 19)
_R = range(1, 17)
_P = range(1, 5)


class StreamSealer:
    """Seals one stream. ``salt``: fresh random bytes. Takes 64 MiB and some 0.2 s of CPU to make: call it on a thread.

    Raises: InvalidArgument for a passphrase that is too short.
    """

    def __init__(self, passphrase: str, *, salt: bytes) -> None:
        assert len(salt) == SALT_BYTES
        if len(passphrase) < PASSPHRASE_CHARACTERS_MIN:
            raise InvalidArgument(
                f"cannot export under a passphrase of {len(passphrase)} characters: use at least "
                f"{PASSPHRASE_CHARACTERS_MIN}, better five random words",
                field="passphrase",
            )
        fixed = _FIXED.pack(_MAGIC, VERSION, *_COSTS, salt)
        self._cipher, check = _keys(passphrase, fixed, _COSTS, salt)
        self.header = fixed + check
        self._pending = bytearray()
        self._index = 0

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Frames that are full. One frame's worth is held back: the last one is sealed as such."""
        self._pending += data
        while len(self._pending) > FRAME_BYTES:
            plaintext = bytes(self._pending[:FRAME_BYTES])
            del self._pending[:FRAME_BYTES]
            yield self._frame(plaintext, is_last=False)

    def finish(self) -> bytes:
        """The last frame. The sealer is used up."""
        return self._frame(bytes(self._pending), is_last=True)

    def _frame(self, plaintext: bytes, *, is_last: bool) -> bytes:
        sealed = self._cipher.encrypt(_NONCE.pack(self._index, is_last), plaintext, self.header)
        self._index += 1
        return _SIZE.pack(len(sealed)) + sealed


class StreamOpener:
    """Opens one stream. ``header``: the file's first HEADER_BYTES. As slow to make as a sealer.

    Raises: InvalidArgument for another kind of file or a wrong passphrase; Corrupt if the header is short;
    Unsupported.
    """

    def __init__(self, passphrase: str, header: bytes) -> None:
        if header[: len(_MAGIC)] != _MAGIC[: len(header)] or not header:
            raise InvalidArgument("cannot import: this is no export of torpor's", field="file")
        if len(header) != HEADER_BYTES:
            raise Corrupt(f"cannot import: the file ends after {len(header)} bytes")
        _, version, log2_n, r, p, salt = _FIXED.unpack_from(header)
        if version != VERSION:
            raise Unsupported(f"cannot import: the file has format version {version}; this torpor reads {VERSION}")
        refused = InvalidArgument(
            "cannot import: the passphrase is not the one it was exported under, or the file's header was altered",
            field="passphrase",
        )
        if not (log2_n in _LOG2_N and r in _R and p in _P):
            raise refused
        self._cipher, check = _keys(passphrase, header[: _FIXED.size], (log2_n, r, p), salt)
        if not hmac.compare_digest(check, header[_FIXED.size :]):
            raise refused
        self._header = header
        self._pending = bytearray()
        self._index = 0
        self._has_ended = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Plaintexts of the frames that are complete with ``data``. Raises: Corrupt."""
        self._pending += data
        while len(self._pending) >= _SIZE.size:
            (size_bytes,) = _SIZE.unpack_from(self._pending)
            if not TAG_BYTES <= size_bytes <= FRAME_BYTES + TAG_BYTES or self._has_ended:
                raise Corrupt(f"cannot import: frame {self._index} of the file is not one that was written")
            end = _SIZE.size + size_bytes
            if len(self._pending) < end:
                return
            sealed = bytes(self._pending[_SIZE.size : end])
            del self._pending[:end]
            yield self._opened(sealed)

    def finish(self) -> None:
        """The file has ended. Raises: Corrupt if it was cut."""
        if self._pending or not self._has_ended:
            raise Corrupt("cannot import: the file is cut short")

    def _opened(self, sealed: bytes) -> bytes:
        for is_last in (False, True):
            try:
                plaintext = self._cipher.decrypt(_NONCE.pack(self._index, is_last), sealed, self._header)
            except InvalidTag:
                continue
            self._index += 1
            self._has_ended = is_last
            return plaintext
        raise Corrupt(f"cannot import: frame {self._index} of the file was altered")


def _keys(passphrase: str, fixed: bytes, costs: tuple[int, int, int], salt: bytes) -> tuple[AESGCM, bytes]:
    log2_n, r, p = costs
    secret = Scrypt(salt=salt, length=32, n=1 << log2_n, r=r, p=p).derive(passphrase.encode())

    def derived(info: bytes, length: int) -> bytes:
        return HKDF(algorithm=SHA256(), length=length, salt=fixed, info=info).derive(secret)

    return AESGCM(derived(b"torpor export frames v0", 32)), derived(b"torpor export check v0", _CHECK_BYTES)
