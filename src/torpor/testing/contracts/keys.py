"""What every key store keeps. Subclass with a fixture ``keys`` that gives an empty store."""

from __future__ import annotations

import pytest

from torpor.domain.errors import Conflict, Corrupt, InvalidArgument, KeyDestroyed, NotFound, Unsupported
from torpor.domain.ids import TenantId
from torpor.ports.keys import KEY_BYTES, KeyStore

TENANT = TenantId("acme")
OTHER = TenantId("globex")


class KeyStoreContract:
    """The suite."""

    async def test_a_wrapped_key_opens_to_the_data_key(self, keys: KeyStore) -> None:
        key = await keys.create(TENANT, "one")
        assert len(key.plaintext) == KEY_BYTES
        assert key.plaintext not in key.wrapped
        assert await keys.unwrap(TENANT, "one", key.wrapped) == key.plaintext

    async def test_every_subject_has_its_own_key(self, keys: KeyStore) -> None:
        owners = [(TENANT, "one"), (TENANT, "two"), (OTHER, "one")]
        made = [await keys.create(tenant, subject) for tenant, subject in owners]
        assert len({key.plaintext for key in made}) == 3
        for (tenant, subject), key in zip(owners, made, strict=True):
            assert await keys.unwrap(tenant, subject, key.wrapped) == key.plaintext

    async def test_a_key_of_another_subject_or_tenant_does_not_open(self, keys: KeyStore) -> None:
        key = await keys.create(TENANT, "one")
        await keys.create(TENANT, "two")
        await keys.create(OTHER, "one")
        for tenant, subject in ((TENANT, "two"), (OTHER, "one")):
            with pytest.raises(Corrupt):
                await keys.unwrap(tenant, subject, key.wrapped)

    async def test_an_altered_wrapped_key_is_corrupt(self, keys: KeyStore) -> None:
        wrapped = (await keys.create(TENANT, "one")).wrapped
        for bit in range(8 * len(wrapped)):
            flipped = bytearray(wrapped)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(Corrupt):
                await keys.unwrap(TENANT, "one", bytes(flipped))
        for altered in (b"", wrapped[:-1], wrapped + b"\0"):
            with pytest.raises(Corrupt):
                await keys.unwrap(TENANT, "one", altered)

    async def test_a_subject_has_one_key(self, keys: KeyStore) -> None:
        key = await keys.create(TENANT, "one")
        with pytest.raises(Conflict):
            await keys.create(TENANT, "one")
        assert await keys.unwrap(TENANT, "one", key.wrapped) == key.plaintext

    async def test_an_unknown_subject_or_tenant_does_not_open(self, keys: KeyStore) -> None:
        wrapped = (await keys.create(TENANT, "one")).wrapped
        for tenant, subject in ((TENANT, "two"), (OTHER, "one")):
            with pytest.raises((NotFound, Unsupported)):
                await keys.unwrap(tenant, subject, wrapped)
            assert not await keys.is_destroyed(tenant, subject)

    async def test_a_destroyed_key_stays_destroyed(self, keys: KeyStore) -> None:
        key = await keys.create(TENANT, "one")
        other = await keys.create(TENANT, "two")
        for _ in range(2):
            await keys.destroy(TENANT, "one")
            assert await keys.is_destroyed(TENANT, "one")
            with pytest.raises(KeyDestroyed):
                await keys.unwrap(TENANT, "one", key.wrapped)
            with pytest.raises(KeyDestroyed):
                await keys.create(TENANT, "one")
        assert not await keys.is_destroyed(TENANT, "two")
        assert await keys.unwrap(TENANT, "two", other.wrapped) == other.plaintext

    async def test_an_unknown_subject_can_be_destroyed(self, keys: KeyStore) -> None:
        await keys.destroy(TENANT, "never")
        assert await keys.is_destroyed(TENANT, "never")
        with pytest.raises(KeyDestroyed):
            await keys.create(TENANT, "never")

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\0", "x" * 129])
    async def test_a_name_that_is_no_file_name_is_refused(self, keys: KeyStore, name: str) -> None:
        for tenant, subject in ((TENANT, name), (TenantId(name), "one")):
            for call in (keys.create, keys.destroy, keys.is_destroyed):
                with pytest.raises(InvalidArgument):
                    await call(tenant, subject)
            with pytest.raises(InvalidArgument):
                await keys.unwrap(tenant, subject, b"")
