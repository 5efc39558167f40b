"""What the store was handed, in one value, so that each use case takes one argument for it."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.ports.clock import Clock
from torpor.ports.entropy import Entropy
from torpor.ports.keys import KeyStore
from torpor.ports.objects import ObjectStore
from torpor.store.heads import Heads
from torpor.store.manifests import Manifests


@dataclass(frozen=True, slots=True)
class Outside:
    """Ports, and the two views of them that every use case needs. ``workers``: threads of one operation."""

    objects: ObjectStore
    keys: KeyStore
    entropy: Entropy
    clock: Clock
    workers: int

    @property
    def manifests(self) -> Manifests:
        """Opens manifests."""
        return Manifests(self.objects, self.keys)

    @property
    def heads(self) -> Heads:
        """Reads and moves pointers."""
        return Heads(self.objects, self.entropy)
