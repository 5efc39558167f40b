"""How a data key is wrapped: AES-256-GCM under a key made of the tenant's KEK and the subject's secret. Pure.

Layout: 1 byte version (0) ‖ 12 bytes nonce ‖ 32 bytes ciphertext ‖ 16 bytes tag. The wrapping key is HKDF-SHA256 of
``KEK ‖ secret`` with tenant and subject as info, so that a wrapped key opens for its own subject only.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from torpor.domain.errors import Corrupt
from torpor.domain.ids import TenantId
from torpor.ports.keys import KEY_BYTES

NONCE_BYTES = 12
SECRET_BYTES = 32
_VERSION = b"\0"


def wrap(data_key: bytes, *, wrapping_key: bytes, nonce: bytes) -> bytes:
    """The wrapped form. ``nonce``: fresh random bytes; a wrapping key wraps one data key in its life."""
    assert len(data_key) == KEY_BYTES
    assert len(nonce) == NONCE_BYTES
    return _VERSION + nonce + AESGCM(wrapping_key).encrypt(nonce, data_key, _VERSION)


def unwrap(wrapped: bytes, *, wrapping_key: bytes, subject: str) -> bytes:
    """The data key. Raises: Corrupt if anything differs from what ``wrap`` made."""
    version, nonce, sealed = wrapped[:1], wrapped[1 : 1 + NONCE_BYTES], wrapped[1 + NONCE_BYTES :]
    try:
        if version != _VERSION or len(sealed) != KEY_BYTES + 16:
            raise Corrupt(f"cannot unwrap the key of {subject}: {len(wrapped)} bytes are no wrapped key of version 0")
        return AESGCM(wrapping_key).decrypt(nonce, sealed, version)
    except InvalidTag as error:
        raise Corrupt(f"cannot unwrap the key of {subject}: it was altered, or made under another KEK") from error


def wrapping_key(*, kek: bytes, secret: bytes, tenant: TenantId, subject: str) -> bytes:
    """The key that wraps; both halves are needed to make it."""
    info = b"torpor wrapping key v0\0" + f"{tenant}\0{subject}".encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(kek + secret)
