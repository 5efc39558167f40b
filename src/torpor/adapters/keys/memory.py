"""Keys in this process's memory: the shipped fake, with the same cryptography as the file store."""

from __future__ import annotations

from torpor.adapters.keys.wrapping import NONCE_BYTES, SECRET_BYTES, unwrap, wrap, wrapping_key
from torpor.domain.errors import Conflict, KeyDestroyed, NotFound
from torpor.domain.ids import TenantId
from torpor.domain.snapshot import parse_key_part
from torpor.ports.entropy import Entropy
from torpor.ports.keys import KEY_BYTES, NewKey


class MemoryKeys:
    """Dictionaries. All is lost with the process."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._keks: dict[TenantId, bytes] = {}
        self._secrets: dict[tuple[TenantId, str], bytes] = {}
        self._destroyed: set[tuple[TenantId, str]] = set()
        self._wrapping_keys: dict[tuple[TenantId, str], bytes] = {}  # made on first use

    async def create(self, tenant: TenantId, subject: str) -> NewKey:
        """A new key."""
        owner = _owner(tenant, subject)
        if owner in self._destroyed:
            raise KeyDestroyed(f"cannot make a key for {subject}: its key was destroyed", subject=subject)
        if owner in self._secrets:
            raise Conflict(f"cannot make a key for {subject}: it has one", reason="key_exists", subject=subject)
        self._keks.setdefault(tenant, self._entropy.bytes(KEY_BYTES))
        self._secrets[owner] = self._entropy.bytes(SECRET_BYTES)
        data_key = self._entropy.bytes(KEY_BYTES)
        nonce = self._entropy.bytes(NONCE_BYTES)
        return NewKey(data_key, wrap(data_key, wrapping_key=self._wrapping_key(tenant, subject), nonce=nonce))

    async def unwrap(self, tenant: TenantId, subject: str, wrapped: bytes) -> bytes:
        """The data key."""
        owner = _owner(tenant, subject)
        if owner in self._destroyed:
            raise KeyDestroyed(f"cannot open data of {subject}: its key was destroyed", subject=subject)
        if owner not in self._secrets:
            raise NotFound(f"cannot open data of {subject}: this key store has no key of it", subject=subject)
        return unwrap(wrapped, wrapping_key=self._wrapping_key(tenant, subject), subject=subject)

    async def destroy(self, tenant: TenantId, subject: str) -> None:
        """Forget."""
        owner = _owner(tenant, subject)
        self._destroyed.add(owner)
        self._secrets.pop(owner, None)
        self._wrapping_keys.pop(owner, None)

    async def is_destroyed(self, tenant: TenantId, subject: str) -> bool:
        """Whether it was destroyed."""
        return _owner(tenant, subject) in self._destroyed

    def _wrapping_key(self, tenant: TenantId, subject: str) -> bytes:
        made = self._wrapping_keys.get((tenant, subject))
        if made is None:
            secret = self._secrets[tenant, subject]
            made = wrapping_key(kek=self._keks[tenant], secret=secret, tenant=tenant, subject=subject)
            self._wrapping_keys[tenant, subject] = made
        return made


def _owner(tenant: TenantId, subject: str) -> tuple[TenantId, str]:
    parse_key_part(tenant, field="tenant")
    return tenant, parse_key_part(subject, field="subject")
