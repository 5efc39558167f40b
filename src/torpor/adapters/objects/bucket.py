"""Objects in a bucket of S3 or of a store that speaks like it, by way of obstore.

One call is one request, or several for a large put or a listing; obstore's own repetition is off, so that the retry
wrapper alone decides what may be repeated and the meter sees every attempt.
Known limits: etags of equal bytes are equal; parts of a multipart put that failed stay, unseen, until the bucket's rule
for incomplete uploads removes them; the store must list in key order, which is checked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
from obstore.store import S3Store

from torpor.adapters.objects.object_key import checked_key, checked_prefix
from torpor.adapters.objects.refusals import REFUSALS, translated
from torpor.adapters.objects.store_place import REGION_DEFAULT, BucketPlace
from torpor.domain.errors import Corrupt, Unavailable, Unsupported
from torpor.ports.objects import ObjectInfo, note_traffic

MULTIPART_FROM_BYTES = 16 * 1024 * 1024 + 1  # a pack goes in one request; what is larger in parts
PART_BYTES = 8 * 1024 * 1024
PART_COUNT_MAX = 4  # on their way at once
LIST_PAGE_COUNT = 1000
CONNECT_TIMEOUT_S = 5
REQUEST_TIMEOUT_S = 120  # 16 MiB at 140 kB/s
_NAME_ORDER = "-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"  # of a key, without "/"

Credentials = Callable[[], Mapping[str, Any]]


class BucketObjects:
    """Objects under ``place``.

    ``credentials``: called when some are needed, also after their ``expires_at``. None: obstore's own chain of
    environment variables, web identity, container and instance metadata.
    """

    def __init__(self, place: BucketPlace, *, credentials: Credentials | None = None) -> None:
        config: dict[str, Any] = {"virtual_hosted_style_request": not place.path_style}
        if place.endpoint:
            config["endpoint"] = place.endpoint.rstrip("/")
        if place.region or place.endpoint:
            config["region"] = place.region or REGION_DEFAULT
        provider: Any = credentials
        self._place = str(place)
        self._store = S3Store(
            place.bucket,
            prefix=place.prefix or None,
            config=config,  # type: ignore[arg-type]  # a TypedDict, built by name
            client_options={
                "allow_http": (place.endpoint or "").startswith("http://"),
                "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
                "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
            },
            retry_config={"max_retries": 0},
            credential_provider=provider,
        )

    async def put(self, key: str, data: bytes) -> ObjectInfo:
        """One request, or parts of it at once if it is large."""
        with self._refusals(checked_key(key)):
            done = await obstore.put_async(
                self._store,
                key,
                data,
                use_multipart=len(data) >= MULTIPART_FROM_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PART_COUNT_MAX,
            )
        return ObjectInfo(key, len(data), done["e_tag"] or "")

    async def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """One request with ``If-None-Match: *`` or ``If-Match``; the store compares and writes in one step."""
        with self._refusals(checked_key(key)):
            done = await obstore.put_async(
                self._store, key, data, mode="create" if etag is None else {"e_tag": etag}, use_multipart=False
            )
        return ObjectInfo(key, len(data), done["e_tag"] or "")

    async def get(self, key: str) -> bytes:
        """The whole object, in one request."""
        with self._refusals(checked_key(key)):
            answer = await obstore.get_async(self._store, key)
            data = (await answer.bytes_async()).to_bytes()
        note_traffic(fetched_bytes=len(data))
        return data

    async def get_range(self, key: str, *, offset: int, size: int) -> bytes:
        """One ranged request; one more to see why, if the range does not fit."""
        checked_key(key)
        assert offset >= 0, "a range does not begin before its object"
        assert size >= 0, "a range has no negative size"
        data = await self._range(key, offset, size) if size else b""
        if len(data) < size or not size:
            found = await self.head(key)
            if offset + size > found.size_bytes:
                raise Corrupt(f"cannot read {key} up to {offset + size}: it has {found.size_bytes} bytes", key=key)
            if len(data) < size:
                raise Unavailable(f"cannot read {key}: the answer was cut short", key=key, retry_after_s=1.0)
        note_traffic(fetched_bytes=size)
        return data

    async def _range(self, key: str, offset: int, size: int) -> bytes:
        """What the store has of a range: empty if it begins past the end."""
        try:
            return (await obstore.get_range_async(self._store, key, start=offset, length=size)).to_bytes()
        except REFUSALS as error:
            refusal = translated(error, key, self._place)
            if str(refusal.details.get("said", "")).startswith("416"):
                return b""
            raise refusal from error

    async def head(self, key: str) -> ObjectInfo:
        """One request."""
        with self._refusals(checked_key(key)):
            found = await obstore.head_async(self._store, key)
        return ObjectInfo(key, found["size"], found["e_tag"] or "")

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """One request for each thousand keys. obstore lists whole path parts: what is before the prefix is skipped."""
        folder, _, start = checked_prefix(prefix).rpartition("/")
        before = _key_before(start)
        offset = f"{folder}/{before}".lstrip("/") if before else None
        pages = aiter(obstore.list(self._store, folder or None, offset=offset, chunk_size=LIST_PAGE_COUNT))
        last = ""
        while True:
            with self._refusals(prefix):
                page = await anext(pages, None)
            if page is None:
                return
            for meta in page:
                key = meta["path"]
                if key <= last:
                    raise Unsupported(f"cannot use {self._place}: it lists {key} after {last}, not in key order")
                last = key
                if key.startswith(prefix):
                    yield ObjectInfo(key, meta["size"], meta["e_tag"] or "")
                elif key > prefix:
                    return

    async def delete(self, key: str) -> None:
        """One request."""
        checked_key(key)
        try:
            await obstore.delete_async(self._store, key)
        except FileNotFoundError:
            return
        except REFUSALS as error:
            raise translated(error, key, self._place) from error

    @contextmanager
    def _refusals(self, key: str) -> Iterator[None]:
        try:
            yield
        except REFUSALS as error:
            raise translated(error, key, self._place) from error


def _key_before(start: str) -> str:
    """A name that sorts before all that start with ``start``, and after most that do not; empty if there is none."""
    at = _NAME_ORDER.find(start[-1:]) if start else 0
    before = start[:-1] + _NAME_ORDER[at - 1] if at > 0 else ""
    return "" if before in {".", ".."} else before
