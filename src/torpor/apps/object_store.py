"""The object store that the configuration names, with the wrappers it needs."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from torpor.adapters.objects.bucket import BucketObjects
from torpor.adapters.objects.cache import CachedObjects
from torpor.adapters.objects.cache_folder import CacheFolder
from torpor.adapters.objects.limit import LimitObjects
from torpor.adapters.objects.localfs import LocalObjects
from torpor.adapters.objects.metered import Meter, MeteredObjects
from torpor.adapters.objects.profile_file import profile_credentials
from torpor.adapters.objects.retry import RetryObjects
from torpor.adapters.objects.store_place import FolderPlace, StorePlace, parse_store_url
from torpor.apps.config import Config
from torpor.domain.session import Durability
from torpor.ports.clock import Clock
from torpor.ports.entropy import Entropy
from torpor.ports.objects import ObjectStore
from torpor.store.layout import Kind, parse_key

CALL_COUNT_MAX = 32  # at once, of all sessions of the node; one read has 20


@dataclass(frozen=True, slots=True)
class OpenedObjects:
    """An object store ready for use.

    ``objects`` may answer from this node's cache. ``direct`` never does: for check, rebuild and garbage collection.
    ``durability``: what a write that returned has. ``meter`` and ``cache`` are None where there is none.
    """

    objects: ObjectStore
    direct: ObjectStore
    durability: Durability
    meter: Meter | None = None
    cache: CachedObjects | None = None


def store_place(config: Config) -> StorePlace:
    """Where the store's objects lie. Raises: InvalidArgument that names TORPOR_STORE_URL."""
    if config.store_url is None:
        return FolderPlace(config.store_dir)
    return parse_store_url(config.store_url, setting="TORPOR_STORE_URL")


async def open_objects(config: Config, clock: Clock, entropy: Entropy, *, owns_cache: bool) -> OpenedObjects:
    """The store of ``config``. ``owns_cache``: this process alone uses the home's cache.

    Raises: Unavailable with the remedy if the store or the cache folder cannot be reached; InvalidArgument for a
    URL that names none, and a profile without credentials.
    """
    place = store_place(config)
    if isinstance(place, FolderPlace):
        local = await asyncio.to_thread(LocalObjects, place.path)
        return OpenedObjects(local, local, Durability.DISK)
    bucket = BucketObjects(place, credentials=await asyncio.to_thread(profile_credentials, os.environ, clock))
    metered = MeteredObjects(bucket)
    direct = LimitObjects(RetryObjects(metered, clock, entropy), CALL_COUNT_MAX)
    async for _ in direct.list(""):
        break
    if not (owns_cache and config.cache_bytes):
        return OpenedObjects(direct, direct, Durability.OBJECT, metered.meter)
    folder = await asyncio.to_thread(CacheFolder, config.cache_dir, config.cache_bytes)
    cache = CachedObjects(direct, folder, is_immutable=_is_immutable)
    return OpenedObjects(cache, direct, Durability.OBJECT, metered.meter, cache)


def _is_immutable(key: str) -> bool:
    placed = parse_key(key)
    return placed is not None and placed.kind in {Kind.PACK, Kind.MANIFEST}
