"""How large frames and windows may be on one connection: what both offer, never less than the first agents had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torpor_wire.credit import WINDOW_BYTES
from torpor_wire.frames import BULK_PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX
from torpor_wire.messages import integer, mapping

BULK_WINDOW_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """``payload_bytes`` of one DATA frame, ``window_bytes`` of one direction of one id. ``bulk``: in frames of §1.1."""

    payload_bytes: int = PAYLOAD_BYTES_MAX
    window_bytes: int = WINDOW_BYTES
    bulk: bool = False

    def fields(self) -> dict[str, int]:
        """The field ``bulk`` of a greeting."""
        return {"payload_bytes": self.payload_bytes, "window_bytes": self.window_bytes}


PLAIN = Limits()
BULK = Limits(BULK_PAYLOAD_BYTES_MAX, BULK_WINDOW_BYTES, bulk=True)


def agreed(greeting: Mapping[str, Any]) -> Limits:
    """What holds with a peer that greets so. Raises: BadMessage."""
    offer = mapping(greeting, "bulk")
    if offer is None:
        return PLAIN
    payload_bytes = min(BULK.payload_bytes, integer(offer, "payload_bytes"))
    window_bytes = min(BULK.window_bytes, integer(offer, "window_bytes"))
    return Limits(max(PLAIN.payload_bytes, payload_bytes), max(PLAIN.window_bytes, window_bytes), bulk=True)
