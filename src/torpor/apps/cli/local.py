"""What the command line does on the home itself, without a server. Imported only by the commands that need it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor.install import install as install_gvisor
from torpor.adapters.engines.gvisor.install import list_builds
from torpor.adapters.engines.gvisor.selftest import self_test
from torpor.apps.cli import screen
from torpor.apps.config import Config
from torpor.domain.errors import NotFound

JSON = dict[str, Any]


def build_template(config: Config, name: str, *, quiet: bool) -> JSON:
    """Build a template's root filesystem and golden snapshot; beside a running server too."""
    from torpor.apps.node import Role, open_node  # noqa: PLC0415 - engine commands need no node

    async def build() -> JSON:
        async with open_node(config, Role.build(config)) as node:
            record, snapshot = await node.build_template(name, _progress(quiet=quiet))
        return {
            "name": record.name,
            "digest": record.digest,
            "engine_build": record.engine_build,
            "image_bytes": snapshot.image_bytes,
            "new_bytes": snapshot.new_bytes,
            "timings_ms": dict(snapshot.timings_ms),
        }

    return asyncio.run(build())


def engine_builds(config: Config) -> list[JSON]:
    """The builds of the home; new sessions use the one that is ``preferred``, the latest installed."""
    builds = list_builds(config.engines_dir)
    return [{**dataclasses.asdict(build), "preferred": build is builds[-1]} for build in builds]


def install_engine(config: Config, *, quiet: bool) -> JSON:
    """Find or get a build that passes the self-test."""
    config.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    progress = _progress(quiet=quiet)
    return dataclasses.asdict(asyncio.run(install_gvisor(config.engines_dir, progress=progress, clock=SystemClock())))


def test_engine(config: Config, *, quiet: bool) -> list[JSON]:
    """Prove every build of the home on this host. Raises: NotFound if there is none; Unsupported if one cannot run."""
    builds = list_builds(config.engines_dir)
    if not builds:
        raise NotFound(
            f"cannot test an engine: {config.engines_dir} holds none; get one with `torpor engine install gvisor`"
        )
    progress = _progress(quiet=quiet)
    results = []
    for build in builds:
        progress(f"testing {build.build}: run, checkpoint, restore twice, compare")
        tested = asyncio.run(self_test(build.runsc, SystemClock()))
        results.append({"build": build.build, "passed": tested.passed, **tested.to_json()})
    return results


def _progress(*, quiet: bool) -> Callable[[str], None]:
    return (lambda _line: None) if quiet else screen.note
