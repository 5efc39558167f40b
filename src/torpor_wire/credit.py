"""Credit: how many bytes of a stream may be on their way. Pure counting."""

from __future__ import annotations

WINDOW_BYTES = 262_144  # four frames: enough to keep a pipe busy over a round trip of a few ms


class SendWindow:
    """One direction of one id, at its sender. Acknowledgements are cumulative, so repeating one is harmless."""

    def __init__(self, window_bytes: int = WINDOW_BYTES) -> None:
        assert window_bytes > 0
        self._window_bytes = window_bytes
        self._sent_bytes = 0
        self._acknowledged_bytes = 0

    @property
    def room_bytes(self) -> int:
        """How many more bytes may be sent now."""
        room = self._window_bytes - (self._sent_bytes - self._acknowledged_bytes)
        assert 0 <= room <= self._window_bytes
        return room

    def sent(self, count: int) -> None:
        """Note ``count`` bytes as sent; at most ``room_bytes``."""
        assert 0 <= count <= self.room_bytes
        self._sent_bytes += count

    def acknowledged(self, total: int) -> bool:
        """Note that the peer has consumed ``total`` bytes of this stream; True if that is news.

        A total beyond what was sent is a lie or damage, one below the last is a repeat: neither changes anything.
        """
        if not self._acknowledged_bytes < total <= self._sent_bytes:
            return False
        self._acknowledged_bytes = total
        return True
