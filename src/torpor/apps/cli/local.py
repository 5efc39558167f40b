"""What the command line does on the home itself, without a server. Imported only by the commands that need it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor.install import install as install_gvisor
from torpor.adapters.engines.gvisor.install import list_builds
from torpor.adapters.engines.gvisor.selftest import self_test
from torpor.adapters.templates import TemplateSpec, built_rootfs, read_declaration, template_named
from torpor.apps.cli import screen
from torpor.apps.config import Config, make_home
from torpor.domain.errors import NotFound

if TYPE_CHECKING:
    from torpor.apps.building import Workshop
    from torpor.services.shelf import Shelved

JSON = dict[str, Any]
T = TypeVar("T")


def build_template(config: Config, what: str, *, quiet: bool, fresh: bool = False, name: str | None = None) -> JSON:
    """Build a template, a built-in one by name or one that a file declares; beside a running server too.

    ``name``: instead of the file's.
    """
    spec = read_declaration(Path(what)) if what.endswith(".toml") or "/" in what else template_named(what)
    return _build(config, replace(spec, name=name) if name else spec, quiet=quiet, fresh=fresh)


def template_from(config: Config, session: str, name: str, *, quiet: bool) -> JSON:
    """Build a template of a session's files, over those of its template."""
    return _build(config, TemplateSpec(name=name, base=f"session:{session}"), quiet=quiet, fresh=False)


def _build(config: Config, spec: TemplateSpec, *, quiet: bool, fresh: bool) -> JSON:
    async def build(workshop: Workshop) -> JSON:
        record, snapshot = await workshop.build(spec, _progress(quiet=quiet), fresh=fresh)
        return {
            "name": record.name,
            "digest": record.digest,
            "engine_build": record.engine_build,
            "image_bytes": snapshot.image_bytes,
            "new_bytes": snapshot.new_bytes,
            "timings_ms": dict(snapshot.timings_ms),
        }

    return _in_workshop(config, build)


def shelved_templates(config: Config) -> list[JSON]:
    """Every template of the home, oldest first."""

    async def all_of(workshop: Workshop) -> list[JSON]:
        return [_shelved_json(config, found) for found in await workshop.shelf.list()]

    return _in_workshop(config, all_of)


def shelved_template(config: Config, name: str) -> JSON:
    """One template, by name or digest."""

    async def one(workshop: Workshop) -> JSON:
        return _shelved_json(config, await workshop.shelf.inspect(name))

    return _in_workshop(config, one)


def remove_template(config: Config, name: str) -> JSON:
    """Remove one that no session was made of."""

    async def remove(workshop: Workshop) -> JSON:
        return _shelved_json(config, await workshop.shelf.remove(name))

    return _in_workshop(config, remove)


def prune_templates(config: Config, *, dry_run: bool) -> list[JSON]:
    """Remove those that nothing needs; what was (or would be) removed."""

    async def prune(workshop: Workshop) -> list[JSON]:
        # Measured before it is gone.
        said = {_golden(one): _shelved_json(config, one) for one in await workshop.shelf.prune(dry_run=True)}
        gone = () if dry_run else await workshop.shelf.prune(dry_run=False)
        return list(said.values()) if dry_run else [said.get(_golden(one), _shelved_json(config, one)) for one in gone]

    return _in_workshop(config, prune)


def _in_workshop(config: Config, work: Callable[[Workshop], Coroutine[Any, Any, T]]) -> T:
    from torpor.apps.node import Role, open_node  # noqa: PLC0415 - engine commands need no node

    async def opened() -> T:
        async with open_node(config, Role.build(config)) as node:
            return await work(node.workshop)

    return asyncio.run(opened())


def _golden(found: Shelved) -> str:
    return str(found.record.golden["snapshot"])


def _shelved_json(config: Config, found: Shelved) -> JSON:
    record = found.record
    tree: JSON = {"rootfs_bytes": 0, "files_count": 0, "user": ""}
    if not found.superseded:  # else the tree is the later capture's
        with contextlib.suppress(NotFound):  # it is in the store alone, and fetched when it is wanted
            built = built_rootfs(config.templates_dir, record.digest)
            tree = {"rootfs_bytes": built.size_bytes, "files_count": built.file_count, "user": built.user}
    return {
        "name": record.name,
        "digest": record.digest,
        "newest": found.newest,
        "superseded": found.superseded,
        "sessions_count": len(found.sessions),
        "created_at_s": record.created_at_s,
        "engine_build": record.engine_build,
        "image_bytes": record.image_bytes,
        "limits": dict(record.shape),
        **tree,
    }


def engine_builds(config: Config) -> list[JSON]:
    """The builds of the home, with who needs them; new templates use the ``preferred`` one, the latest installed."""
    from torpor.apps.retiring import builds_with_use  # noqa: PLC0415 - other engine commands need no store

    return asyncio.run(builds_with_use(config))


def retire_engine(config: Config, build: str, *, agreed: bool) -> JSON:
    """Remove a build, if nothing is lost by it."""
    from torpor.apps.retiring import retire_build  # noqa: PLC0415 - other engine commands need no store

    return asyncio.run(retire_build(config, build, agreed=agreed))


def install_engine(config: Config, *, quiet: bool) -> JSON:
    """Find or get a build that passes the self-test."""
    make_home(config)
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
