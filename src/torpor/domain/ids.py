"""Identifiers: 20 characters of ``[a-z0-9]``, fixed in length because runsc matches ids by prefix."""

from __future__ import annotations

import re
from typing import NewType

from torpor.domain.errors import InvalidArgument

TenantId = NewType("TenantId", str)
SessionId = NewType("SessionId", str)
SnapshotId = NewType("SnapshotId", str)
InstanceId = NewType("InstanceId", str)

ID_LENGTH = 20
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_LETTERS = bytes(ord(ALPHABET[byte % len(ALPHABET)]) for byte in range(256))
DEFAULT_TENANT = TenantId("default")

_ID = re.compile(r"[a-z0-9]{20}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def id_from_entropy(entropy: bytes) -> str:
    """20 characters from at least 20 random bytes (36**20 values, a modulo bias below 2 %, no secret depends on it)."""
    assert len(entropy) >= ID_LENGTH
    return entropy[:ID_LENGTH].translate(_LETTERS).decode("ascii")


def is_id(text: str) -> bool:
    """True if ``text`` has the form of an id."""
    return _ID.fullmatch(text) is not None


def parse_name(text: str, *, field: str) -> str:
    """A name people give: 1 to 63 of ``[a-z0-9._-]``, not starting with punctuation, and not of an id's form.

    Raises: InvalidArgument naming ``field``.
    """
    if _NAME.fullmatch(text) is None:
        raise InvalidArgument(
            f"cannot use {text!r} as {field}: use 1 to 63 of a-z, 0-9, '.', '_', '-', starting with a letter or digit",
            field=field,
        )
    if is_id(text):
        raise InvalidArgument(
            f"cannot use {text!r} as {field}: 20 letters and digits are reserved for ids", field=field
        )
    return text
