"""What every adapter accepts as a key."""

from __future__ import annotations

import re

from torpor.domain.errors import InvalidArgument

KEY_LENGTH_MAX = 512
_KEY = re.compile(r"(?!(?:.*/)?\.\.?(?:/|\Z))[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")


def checked_key(key: str) -> str:
    """``key`` itself. Raises: InvalidArgument if the port does not allow it."""
    if len(key) > KEY_LENGTH_MAX or _KEY.fullmatch(key) is None:
        raise InvalidArgument(
            f"cannot use {key[:80]!r} as an object key: use parts of letters, digits, '.', '_', '-' joined by '/', "
            f"none empty, '.' or '..', at most {KEY_LENGTH_MAX} characters",
            field="key",
        )
    return key


def checked_prefix(prefix: str) -> str:
    """``prefix`` itself: the start of a key, ending anywhere. Raises: InvalidArgument."""
    checked_key(f"{prefix}x"[:KEY_LENGTH_MAX])
    return prefix
