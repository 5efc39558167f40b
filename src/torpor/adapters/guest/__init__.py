"""The host's side of the guest channel: ``FramedDialer`` makes a ``FramedGuest`` of an instance's byte stream."""

from torpor.adapters.guest.client import FramedDialer, FramedGuest

__all__ = ["FramedDialer", "FramedGuest"]
