"""Engine builds of a home: who needs them, and taking one away. Needs no engine to run, and counts beside a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from torpor.adapters.catalog.sqlite import SqliteCatalog
from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor.install import InstalledBuild, list_builds, remove_build
from torpor.adapters.engines.gvisor.layout import Layout
from torpor.adapters.entropy.system import SystemEntropy
from torpor.adapters.keys.file import FileKeys
from torpor.apps.api.ownership import owned
from torpor.apps.config import Config
from torpor.apps.node import engine_dir
from torpor.apps.object_store import open_objects
from torpor.domain.errors import Conflict, NotFound
from torpor.services.builds import Builds, BuildUse
from torpor.store.snapshots import SnapshotStore

JSON = dict[str, Any]


async def builds_with_use(config: Config) -> list[JSON]:
    """The builds of the home, each with the counts of who needs it; new templates use the ``preferred`` one."""
    installed = list_builds(config.engines_dir)
    if not installed:
        return []
    async with _opened(config) as builds:
        return [
            {**asdict(build), "preferred": build is installed[-1], **_counts(await builds.use(build.build))}
            for build in installed
        ]


async def retire_build(config: Config, name: str, *, agreed: bool) -> JSON:
    """Remove a build; what rests on it comes back as its disk. No server may run on the home meanwhile.

    Raises: NotFound; Conflict if a server or sessions run, if it is the only build, or if something needs it that would
    be lost; with the counts unless ``agreed``, if something needs it at all.
    """
    installed = list_builds(config.engines_dir)
    build = next((each for each in installed if each.build == name), None)
    if build is None:
        known = ", ".join(each.build for each in installed) or "none"
        raise NotFound(f"cannot retire {name!r}: installed are {known}", build=name)
    with owned(config):
        async with _opened(config) as builds:
            use = await builds.check_retirable(name, tuple(each.build for each in installed), agreed=agreed)
        _check_empty(config, build)
        await asyncio.to_thread(remove_build, build)
    return {"build": name, **_counts(use)}


def _check_empty(config: Config, build: InstalledBuild) -> None:
    """Instances that a killed server left can be ended by their own build alone."""
    instances = Layout(engine_dir(config, build)).instances
    count = len(list(instances.iterdir())) if instances.is_dir() else 0
    if count:
        raise Conflict(
            f"cannot retire {build.build}: a server that was killed left {count} sandboxes of it; start one with "
            "`torpor up`, which takes them over, stop it with `torpor down`, and repeat",
            reason="build_in_use",
            build=build.build,
            awake_count=count,
        )


def _counts(use: BuildUse) -> JSON:
    return {
        "sessions_count": len(use.resting),
        "awake_count": len(use.awake),
        "templates": [template.name for template in use.templates],
    }


@contextlib.asynccontextmanager
async def _opened(config: Config) -> AsyncIterator[Builds]:
    clock, entropy = SystemClock(), SystemEntropy()
    catalog = SqliteCatalog(config.catalog_file)
    await catalog.open()
    try:
        opened = await open_objects(config, clock, entropy, owns_cache=False)
        store = SnapshotStore(opened.objects, FileKeys(config.keys_dir, entropy), entropy, clock)
        yield Builds(catalog, catalog, store)
    finally:
        await catalog.close()
