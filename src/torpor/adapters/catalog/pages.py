"""Cursors of listings: the place of the last session that was given. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from typing import NamedTuple

from torpor.domain.errors import InvalidArgument
from torpor.domain.session import Session

PAGE_SESSIONS_MAX = 1000


class Place(NamedTuple):
    """Where a session stands in creation order; places compare as sessions are listed, oldest first."""

    created_at_s: float
    id: str


def place_of(session: Session) -> Place:
    """The place of ``session``."""
    return Place(session.created_at_s, session.id)


def cursor_for(place: Place) -> str:
    """An opaque cursor that ``parse_cursor`` reads back."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def parse_cursor(cursor: str) -> Place:
    """Raises: InvalidArgument for what ``cursor_for`` did not make."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        created_at_s, session = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if isinstance(session, str) and isinstance(created_at_s, float | int):
            return Place(float(created_at_s), session)
    except (ValueError, TypeError, binascii.Error):
        pass
    raise InvalidArgument(
        f"cannot page from cursor {cursor[:40]!r}: use the cursor of an earlier page, or none for the first",
        field="cursor",
    )


def check_limit(limit: int) -> int:
    """``limit``, if a page may be that long. Raises: InvalidArgument."""
    if not 1 <= limit <= PAGE_SESSIONS_MAX:
        raise InvalidArgument(
            f"cannot list {limit} sessions at once: use a limit of 1 to {PAGE_SESSIONS_MAX}", field="limit"
        )
    return limit
