"""Keys as files with mode 0600 under one folder. Keep that folder out of the backups of the object store.

Layout, for each tenant: ``{tenant}/kek`` (32 bytes), ``{tenant}/secrets/{subject}`` (32 bytes),
``{tenant}/destroyed/{subject}`` (empty: a tombstone), ``{tenant}/lock``.
Invariants: files appear whole (written, synced, then linked under their name, which never replaces another); a
tombstone is durable before its secret is erased, and once there it counts; the next ``create`` or ``destroy`` of the
tenant finishes an erasure that a crash cut short. Overwriting reaches the old bytes on most file systems but not below
a copy-on-write file system or a solid-state disk's own mapping: put the folder on an encrypted disk where that matters.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torpor.adapters.keys.wrapping import NONCE_BYTES, SECRET_BYTES, unwrap, wrap, wrapping_key
from torpor.domain.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    KeyDestroyed,
    NotFound,
    StorageFull,
    Unavailable,
    Unsupported,
)
from torpor.domain.ids import TenantId
from torpor.domain.snapshot import parse_key_part
from torpor.ports.entropy import Entropy
from torpor.ports.keys import KEY_BYTES, NewKey


class FileKeys:
    """Keys under ``root``, which is made with mode 0700 if absent. Safe among processes on one machine.

    Raises: InvalidArgument if others may read ``root`` or a key in it; Unavailable and StorageFull as the disk has it.
    """

    def __init__(self, root: Path, entropy: Entropy) -> None:
        self._root = root
        self._entropy = entropy
        with _translated(root):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_if_open(root)

    async def create(self, tenant: TenantId, subject: str) -> NewKey:
        """A new secret file; the KEK too, if the tenant has neither KEK nor secrets."""
        return await asyncio.to_thread(self._create, *_owner(tenant, subject))

    async def unwrap(self, tenant: TenantId, subject: str, wrapped: bytes) -> bytes:
        """The data key, from KEK and secret."""
        return await asyncio.to_thread(self._unwrap, *_owner(tenant, subject), wrapped)

    async def destroy(self, tenant: TenantId, subject: str) -> None:
        """Tombstone, then overwrite, sync and unlink the secret."""
        await asyncio.to_thread(self._destroy, *_owner(tenant, subject))

    async def is_destroyed(self, tenant: TenantId, subject: str) -> bool:
        """Whether there is a tombstone."""
        return self._tombstone(*_owner(tenant, subject)).exists()

    def _create(self, tenant: TenantId, subject: str) -> NewKey:
        with _translated(self._root / tenant), self._locked(tenant):
            self._finish_erasures(tenant)
            if self._tombstone(tenant, subject).exists():
                raise KeyDestroyed(f"cannot make a key for {subject}: its key was destroyed", subject=subject)
            secret_file = self._secret(tenant, subject)
            if secret_file.exists():
                raise Conflict(f"cannot make a key for {subject}: it has one", reason="key_exists", subject=subject)
            if not self._kek(tenant).exists() and not any(secret_file.parent.iterdir()):
                self._write(self._kek(tenant), self._entropy.bytes(KEY_BYTES))
            kek = self._read_kek(tenant)
            secret = self._entropy.bytes(SECRET_BYTES)
            self._write(secret_file, secret)
        data_key, nonce = self._entropy.bytes(KEY_BYTES), self._entropy.bytes(NONCE_BYTES)
        key = wrapping_key(kek=kek, secret=secret, tenant=tenant, subject=subject)
        return NewKey(data_key, wrap(data_key, wrapping_key=key, nonce=nonce))

    def _unwrap(self, tenant: TenantId, subject: str, wrapped: bytes) -> bytes:
        with _translated(self._root / tenant):
            if self._tombstone(tenant, subject).exists():
                raise KeyDestroyed(f"cannot open data of {subject}: its key was destroyed", subject=subject)
            kek = self._read_kek(tenant)
            try:
                secret = _read_key(self._secret(tenant, subject))
            except FileNotFoundError as error:
                message = f"cannot open data of {subject}: there is no key of it in {self._root}; restore that folder"
                raise NotFound(message, subject=subject) from error
        key = wrapping_key(kek=kek, secret=secret, tenant=tenant, subject=subject)
        return unwrap(wrapped, wrapping_key=key, subject=subject)

    def _destroy(self, tenant: TenantId, subject: str) -> None:
        with _translated(self._root / tenant), self._locked(tenant):
            if not self._tombstone(tenant, subject).exists():
                self._write(self._tombstone(tenant, subject), b"")
            self._finish_erasures(tenant)

    def _finish_erasures(self, tenant: TenantId) -> None:
        """Erase each secret that has a tombstone. Under the lock."""
        for secret in (self._root / tenant / "secrets").iterdir():
            if self._tombstone(tenant, secret.name).exists():
                _erase(secret)

    def _read_kek(self, tenant: TenantId) -> bytes:
        try:
            return _read_key(self._kek(tenant))
        except FileNotFoundError as error:
            raise Unsupported(
                f"cannot open data of tenant {tenant} here: {self._kek(tenant)} is missing, and nothing of that tenant "
                "can be read without it; restore it from its backup, or set TORPOR_KEYS_DIR to the folder that has it",
                tenant=tenant,
                missing_key=str(self._kek(tenant)),
            ) from error

    def _write(self, path: Path, data: bytes) -> None:
        """A new file, durable on return, or none."""
        fresh = self._root / ".fresh" / f"{path.name}-{self._entropy.bytes(8).hex()}"
        fresh.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                if os.write(descriptor, data) != len(data):
                    raise OSError(errno.ENOSPC, "short write")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.link(fresh, path)
            _sync_folder(path.parent)
        finally:
            fresh.unlink(missing_ok=True)  # after a crash it stays, sharing the inode that an erasure overwrites

    @contextmanager
    def _locked(self, tenant: TenantId) -> Iterator[None]:
        folder = self._root / tenant
        for made in (folder, folder / "secrets", folder / "destroyed"):
            if not made.exists():
                made.mkdir(mode=0o700, exist_ok=True)
                _sync_folder(made.parent)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _kek(self, tenant: TenantId) -> Path:
        return self._root / tenant / "kek"

    def _secret(self, tenant: TenantId, subject: str) -> Path:
        return self._root / tenant / "secrets" / subject

    def _tombstone(self, tenant: TenantId, subject: str) -> Path:
        return self._root / tenant / "destroyed" / subject


def _owner(tenant: TenantId, subject: str) -> tuple[TenantId, str]:
    parse_key_part(tenant, field="tenant")
    return tenant, parse_key_part(subject, field="subject")


def _read_key(path: Path) -> bytes:
    """Raises: FileNotFoundError; Corrupt; InvalidArgument if others may read it."""
    data = path.read_bytes()
    _refuse_if_open(path)
    if len(data) != KEY_BYTES:
        raise Corrupt(f"cannot use {path}: it has {len(data)} bytes, not {KEY_BYTES}; restore it from its backup")
    return data


def _refuse_if_open(path: Path) -> None:
    mode = path.stat().st_mode
    if mode & 0o077:
        raise InvalidArgument(
            f"cannot use {path}: its mode {mode & 0o777:04o} lets others in; run: chmod go= {path}", field="keys"
        )


def _erase(path: Path) -> None:
    """Overwrite in place, sync, unlink, sync."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, bytes(os.fstat(descriptor).st_size))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    path.unlink()
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """No OSError crosses the port."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageFull(f"cannot store a key in {path}: no room left on the disk; free some space") from error
        raise Unavailable(f"cannot reach the keys in {path}: {error.strerror}", retry_after_s=1.0) from error
