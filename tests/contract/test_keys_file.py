import pytest

from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.domain.errors import Corrupt, InvalidArgument, KeyDestroyed, Unsupported
from torpor.domain.ids import TenantId
from torpor.testing.contracts.keys import KeyStoreContract

TENANT = TenantId("acme")


@pytest.fixture
def keys(tmp_path):
    return FileKeys(tmp_path / "keys", SystemEntropy())


class TestFileKeys(KeyStoreContract):
    pass


async def test_keys_survive_the_process(tmp_path, keys):
    key = await keys.create(TENANT, "one")
    again = FileKeys(tmp_path / "keys", SystemEntropy())
    assert await again.unwrap(TENANT, "one", key.wrapped) == key.plaintext
    await again.destroy(TENANT, "one")
    with pytest.raises(KeyDestroyed):
        await keys.unwrap(TENANT, "one", key.wrapped)


async def test_files_are_for_their_owner_alone_and_hold_no_data_key(tmp_path, keys):
    key = await keys.create(TENANT, "one")
    files = [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["kek", "lock", "one"]
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600
        assert key.plaintext not in path.read_bytes()


async def test_a_key_that_others_may_read_is_refused_with_the_remedy(tmp_path, keys):
    key = await keys.create(TENANT, "one")
    kek = tmp_path / "keys" / TENANT / "kek"
    kek.chmod(0o644)
    with pytest.raises(InvalidArgument, match="chmod go="):
        await keys.unwrap(TENANT, "one", key.wrapped)
    kek.chmod(0o600)
    (tmp_path / "keys").chmod(0o755)
    with pytest.raises(InvalidArgument, match="chmod go="):
        FileKeys(tmp_path / "keys", SystemEntropy())


async def test_destroying_overwrites_the_secret_before_it_unlinks_it(tmp_path, keys):
    await keys.create(TENANT, "one")
    secret = tmp_path / "keys" / TENANT / "secrets" / "one"
    kept = tmp_path / "hard-link"
    kept.hardlink_to(secret)
    await keys.destroy(TENANT, "one")
    assert not secret.exists()
    assert kept.read_bytes() == bytes(32)
    assert (tmp_path / "keys" / TENANT / "destroyed" / "one").exists()


async def test_an_erasure_that_a_crash_cut_short_counts_and_is_finished(tmp_path, keys):
    key = await keys.create(TENANT, "one")
    (tmp_path / "keys" / TENANT / "destroyed" / "one").touch()
    with pytest.raises(KeyDestroyed):
        await keys.unwrap(TENANT, "one", key.wrapped)
    await keys.create(TENANT, "two")
    assert not (tmp_path / "keys" / TENANT / "secrets" / "one").exists()


async def test_a_lost_kek_is_named_and_never_replaced(tmp_path, keys):
    key = await keys.create(TENANT, "one")
    (tmp_path / "keys" / TENANT / "kek").unlink()
    for call in (keys.unwrap(TENANT, "one", key.wrapped), keys.create(TENANT, "two")):
        with pytest.raises(Unsupported, match="restore it") as told:
            await call
        assert told.value.details["missing_key"] == str(tmp_path / "keys" / TENANT / "kek")
    assert not (tmp_path / "keys" / TENANT / "kek").exists()


async def test_both_halves_are_needed(tmp_path, keys):
    key = await keys.create(TENANT, "one")
    for name in ("kek", "secrets/one"):
        file = tmp_path / "keys" / TENANT / name
        right = file.read_bytes()
        file.write_bytes(bytes(32))
        with pytest.raises(Corrupt):
            await keys.unwrap(TENANT, "one", key.wrapped)
        file.write_bytes(right[:-1])
        with pytest.raises(Corrupt):
            await keys.unwrap(TENANT, "one", key.wrapped)
        file.write_bytes(right)
    assert await keys.unwrap(TENANT, "one", key.wrapped) == key.plaintext


async def test_seeded_entropy_makes_keys_again(tmp_path):
    made = [await FileKeys(tmp_path / name, SeededEntropy(7)).create(TENANT, "one") for name in ("x", "y")]
    assert made[0] == made[1]
