"""Keys of sessions and templates: made, unwrapped and destroyed here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torpor.domain.ids import TenantId

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class NewKey:
    """A fresh data key and its wrapped form. Only ``wrapped`` may be stored."""

    plaintext: bytes
    wrapped: bytes


class KeyStore(Protocol):
    """A data key opens only with the tenant's KEK *and* a secret per subject that only this store holds.

    ``subject`` is a session's or a template's id. The secret lies outside the object store and the catalog, so that a
    restored backup of either does not undo ``destroy``.
    """

    async def create(self, tenant: TenantId, subject: str) -> NewKey:
        """A new data key for ``subject``, which must have none. Raises: Conflict if it has one; KeyDestroyed."""
        ...

    async def unwrap(self, tenant: TenantId, subject: str, wrapped: bytes) -> bytes:
        """The 32-byte data key.

        Raises: KeyDestroyed; NotFound (no secret); Unsupported with ``missing_key`` (no KEK here); Corrupt (altered).
        """
        ...

    async def destroy(self, tenant: TenantId, subject: str) -> None:
        """Erase the subject's secret and leave a tombstone, durable on return. Idempotent; unknown subjects too."""
        ...

    async def is_destroyed(self, tenant: TenantId, subject: str) -> bool:
        """True once ``destroy`` has returned for ``subject``."""
        ...
