"""Every wrapper, and the stack that a node uses, keeps the contract of what it wraps."""

from __future__ import annotations

import pytest

from torpor.adapters.clock.virtual import VirtualClock
from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.adapters.objects.cache import CachedObjects
from torpor.adapters.objects.cache_folder import CacheFolder
from torpor.adapters.objects.faulty import FaultyObjects, Weather
from torpor.adapters.objects.limit import LimitObjects
from torpor.adapters.objects.memory import MemoryObjects
from torpor.adapters.objects.metered import MeteredObjects
from torpor.adapters.objects.retry import RetryObjects
from torpor.testing.contracts.objects import ObjectStoreContract

CLOCK = VirtualClock(autojump_after_s=0.0005)


def cached(inner, folder):
    return CachedObjects(inner, CacheFolder(folder, 100_000), is_immutable=lambda key: key.startswith(("a", "m")))


def remote(inner, folder):
    return cached(LimitObjects(RetryObjects(MeteredObjects(inner), CLOCK, SeededEntropy(1)), 3), folder)


WRAPPERS = {
    "retry": lambda inner, _: RetryObjects(inner, CLOCK, SeededEntropy(1)),
    "limit": lambda inner, _: LimitObjects(inner, 2),
    "metered": lambda inner, _: MeteredObjects(inner),
    "faulty": lambda inner, _: FaultyObjects(
        inner, VirtualClock(autojump_after_s=0.0005), SeededEntropy(1), weather=Weather(delayed=0.5, delay_max_s=1.0)
    ),
    "cache": cached,
    "remote": remote,
}


class TestWrappedObjects(ObjectStoreContract):
    @pytest.fixture(params=WRAPPERS)
    def objects(self, request, tmp_path):
        return WRAPPERS[request.param](MemoryObjects(), tmp_path / "cache")


class TestRemoteStack(ObjectStoreContract):
    """As in a node: cache over limit over retry over a real bucket."""

    ETAGS_ARE_DIGESTS = True

    @pytest.fixture
    def objects(self, bucket, tmp_path):
        return remote(bucket, tmp_path / "cache")
