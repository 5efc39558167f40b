"""Seal and open one piece of plaintext: compress, encrypt, authenticate. Keys are handed in and used once.

Source: docs/formats/envelope-v0.md; AES-256-GCM, NIST SP 800-38D.
"""

from __future__ import annotations

import struct

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from torpor.domain.errors import Corrupt
from torpor.domain.snapshot import CHUNK_BYTES_MAX

KEY_BYTES = 32
TAG_BYTES = 16
OVERHEAD_BYTES = 1 + TAG_BYTES
CHUNK_CONTEXT = b"torpor chunk v0"

# Measured on a 256 MiB Python process (docs/design/001-chunking.md).
ZSTD_LEVEL = 1

_STORED = 0
_ZSTD = 1
_NONCE = bytes(12)  # a key seals once, so that a fixed nonce never repeats under it
_PLAIN_BYTES = struct.Struct("<Q")

Buffer = bytes | bytearray | memoryview


class Sealer:
    """Seals. Holds a compressor: one per thread."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True)

    def seal(self, plaintext: Buffer, *, key: bytes, context: bytes = CHUNK_CONTEXT) -> bytes:
        """The envelope of ``plaintext`` (at least 1 byte). ``key``: 32 random bytes that never sealed before."""
        assert len(key) == KEY_BYTES
        assert len(plaintext) > 0
        codec = _ZSTD
        encoded: Buffer = self._zstd.compress(plaintext)
        if len(encoded) > len(plaintext) - len(plaintext) // 16:
            codec, encoded = _STORED, plaintext
        bound = _bound(context, codec=codec, plain_bytes=len(plaintext))
        sealed = AESGCM(key).encrypt(_NONCE, encoded, bound)
        return b"".join((bytes((codec,)), sealed))


class Opener:
    """Opens, into buffers it uses again: one per thread. ``plain_bytes_max`` bounds what it will ever hold."""

    def __init__(self, *, plain_bytes_max: int = CHUNK_BYTES_MAX) -> None:
        self._plain_bytes_max = plain_bytes_max
        self._plain = self._encoded = memoryview(bytearray())
        self._zstd = zstandard.ZstdDecompressor()

    def open(self, sealed: Buffer, *, key: bytes, plain_bytes: int, context: bytes = CHUNK_CONTEXT) -> memoryview:
        """The plaintext, of exactly ``plain_bytes``; a view that is valid until the next call.

        Raises: Corrupt if anything differs from what was sealed.
        """
        assert len(key) == KEY_BYTES
        encoded_bytes = len(sealed) - OVERHEAD_BYTES
        if not (0 < encoded_bytes <= plain_bytes <= self._plain_bytes_max):
            raise Corrupt(f"cannot open an envelope of {len(sealed)} bytes for {plain_bytes}: the lengths do not fit")
        self._grow(plain_bytes)
        self._open_into(sealed, self._plain[:plain_bytes], key=key, context=context)
        return self._plain[:plain_bytes]

    def open_into(self, sealed: Buffer, into: memoryview, *, key: bytes, context: bytes = CHUNK_CONTEXT) -> None:
        """The same, into ``into``, which is exactly as long as the plaintext. Raises: Corrupt."""
        assert len(key) == KEY_BYTES
        if not (0 < len(sealed) - OVERHEAD_BYTES <= len(into) <= self._plain_bytes_max):
            raise Corrupt(f"cannot open an envelope of {len(sealed)} bytes for {len(into)}: the lengths do not fit")
        self._grow(len(into))
        self._open_into(sealed, into, key=key, context=context)

    def _open_into(self, sealed: Buffer, into: memoryview, *, key: bytes, context: bytes) -> None:
        encoded_bytes, plain_bytes = len(sealed) - OVERHEAD_BYTES, len(into)
        codec = sealed[0]
        if codec == _STORED and encoded_bytes != plain_bytes:
            raise Corrupt(f"cannot open an envelope: codec {codec} does not make {plain_bytes} bytes")
        encoded = into if codec == _STORED else self._encoded[:encoded_bytes]
        bound = _bound(context, codec=codec, plain_bytes=plain_bytes)
        try:
            AESGCM(key).decrypt_into(_NONCE, memoryview(sealed)[1:], bound, encoded)
        except InvalidTag as error:
            raise Corrupt(
                "cannot open an envelope: its bytes, key or place are not those it was sealed with"
            ) from error
        if codec == _ZSTD:
            self._expand(encoded, into)
        elif codec != _STORED:
            raise Corrupt(f"cannot open an envelope: codec {codec} does not make {plain_bytes} bytes")

    def _expand(self, encoded: memoryview, into: memoryview) -> None:
        """One zstd frame of exactly the size of ``into``. Reading into a kept buffer is 1.4 times as fast as a new one.

        Raises: Corrupt.
        """
        try:
            if zstandard.frame_content_size(encoded) != len(into):
                raise Corrupt(f"cannot expand a frame: it does not hold {len(into)} bytes")
            done = 0
            with self._zstd.stream_reader(encoded, closefd=False) as reader:
                while done < len(into):
                    count = reader.readinto(into[done:])
                    if not count:
                        raise Corrupt(f"cannot expand a frame: it ends after {done} of {len(into)} bytes")
                    done += count
        except zstandard.ZstdError as error:
            raise Corrupt(f"cannot expand a frame: {error}") from error

    def _grow(self, plain_bytes: int) -> None:
        if plain_bytes > len(self._plain):
            size_bytes = max(plain_bytes, min(2 * len(self._plain), self._plain_bytes_max))
            self._plain = memoryview(bytearray(size_bytes))
            self._encoded = memoryview(bytearray(size_bytes))


def _bound(context: bytes, *, codec: int, plain_bytes: int) -> bytes:
    """The associated data: what an opener must agree on with the sealer."""
    return b"".join((context, bytes((codec,)), _PLAIN_BYTES.pack(plain_bytes)))
