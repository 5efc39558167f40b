"""Build a template's root filesystem: layers of its base and its steps, finished with torpor's own files.

Layers are kept per machine, named by their inputs; finishing takes seconds. The result lies at
``<into>/<digest>/rootfs`` with its description beside it in ``template.json``, and appears by one rename.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torpor.adapters.templates import commands, finish
from torpor.adapters.templates.digest import digest_tree
from torpor.adapters.templates.grounds import Ground, lay_ground
from torpor.adapters.templates.layers import Layer, Layers
from torpor.adapters.templates.running import BuildLog, run
from torpor.adapters.templates.sources import without_credentials
from torpor.adapters.templates.spec import TemplateSpec
from torpor.adapters.templates.steps import Host, Steps
from torpor.adapters.templates.workplace import Progress, workplace
from torpor.domain.errors import Corrupt, NotFound, Unsupported

LAYERS_FOLDER = Path("/var/cache/torpor/layers")
LOGS_FOLDER = ".logs"

_DESCRIPTION_FILE = "template.json"
_GUEST_FOLDERS = ("/opt/torpor",)


@dataclass(frozen=True, slots=True)
class RootfsBuild:
    """A finished root filesystem. ``digest``: 64 hex digits, of the tree. ``rootfs``: read-only to all who use it.

    ``packages``: installed version by package name. ``env``: of PID 1. ``layer``: name of the layer it was made from.
    ``env``, ``warmup``, ``user``, ``workdir``: with what the base gave. ``of_this_host``: of this host's apt sources.
    """

    name: str
    digest: str
    rootfs: Path
    size_bytes: int
    file_count: int
    packages: Mapping[str, str]
    env: Mapping[str, str]
    layer: str
    warmup: str = ""
    user: str = "root"
    workdir: str = ""
    of_this_host: bool = True


async def build_rootfs(
    spec: TemplateSpec,
    into: Path,
    *,
    guest_lib: Path,
    progress: Progress,
    layers: Path = LAYERS_FOLDER,
    fresh: bool = False,
    ground: Ground | None = None,
) -> RootfsBuild:
    """Build ``spec`` into ``<into>/<digest>/``; the same inputs give the build that is there already.

    ``guest_lib``: the folder that holds the packages torpor_guest and torpor_wire. ``layers``: where layers are kept.
    ``fresh``: make every layer anew, from packages in the versions that the archives have now. ``ground``: what a base
    stands for that is neither ``debian`` nor built in. Progress lines are for people; the whole output is kept in
    ``<into>/.logs/<name>.log``. On failure and on cancellation nothing of the attempt is left but finished layers.

    Raises: Unsupported (not root, no mmdebstrap, not Debian or Ubuntu, no fit Python), InvalidArgument (a package
    that is not there), StorageFull, EngineError with the end of the tool's output.
    """
    _require_root_and_tools()
    into = into.resolve()  # an engine may refuse a root filesystem whose path leads through a link
    log = BuildLog(into / LOGS_FOLDER / f"{spec.name}.log", progress)
    host = Host.read()
    kept = Layers(layers, log)
    steps = Steps(kept, host, log, fresh=fresh)
    below, given, packages = await lay_ground(spec, steps, kept, ground)
    try:
        spec = inherited(spec, given)
        layer = await steps.onto(below, replace(spec, packages=packages))
        return await _built(spec, layer, into, (kept, guest_lib, log), host if given.of_this_host else None)
    finally:
        if not given.kept:
            kept.drop(below)


async def _built(
    spec: TemplateSpec, layer: Layer, into: Path, own: tuple[Layers, Path, BuildLog], host: Host | None
) -> RootfsBuild:
    kept, guest_lib, log = own
    sources = without_credentials(host.sources) if host else None
    async with workplace(into, f"{spec.name}-{layer.key[:12]}", log.say) as here:
        here.mkdir(mode=0o755)
        log.say("copying the layers")
        await kept.unpack(layer, here / "rootfs")
        build = await _finished(here, spec, layer, (guest_lib, sources), log)
        build = replace(build, rootfs=into / build.digest / "rootfs", of_this_host=host is not None)
        _publish(here, into / build.digest, build, spec)
    log.say(f"template {spec.name} is {build.digest[:12]}: {build.file_count} files, {build.size_bytes >> 20} MiB")
    return build


async def _finished(
    here: Path, spec: TemplateSpec, layer: Layer, own: tuple[Path, str | None], log: BuildLog
) -> RootfsBuild:
    root, (guest_lib, sources) = here / "rootfs", own
    log.say("adding the guest agent")
    await asyncio.to_thread(finish.clean_layer, root)
    await asyncio.to_thread(finish.add_torpor, root, spec, guest_lib=guest_lib, sources=sources)
    await run(commands.compile_argv(root, _GUEST_FOLDERS), log)
    await asyncio.to_thread(finish.check_tree, root)
    log.say("computing the digest")
    tree = await asyncio.to_thread(digest_tree, root)
    return RootfsBuild(
        name=spec.name,
        digest=tree.digest,
        rootfs=root,
        size_bytes=tree.size_bytes,
        file_count=tree.file_count,
        packages=MappingProxyType(_packages(root)),
        env=spec.env,
        layer=layer.key,
        warmup=spec.warmup,
        user=spec.user,
        workdir=spec.workdir,
    )


def inherited(spec: TemplateSpec, ground: Ground) -> TemplateSpec:
    """``spec`` over what its base gives: variables are joined, the warm-up comes after, user and folder if unsaid."""
    return replace(
        spec,
        env=MappingProxyType({**ground.env, **spec.env}),
        warmup=ground.warmup + spec.warmup,
        user=spec.user if spec.user != "root" else ground.user,
        workdir=spec.workdir or ground.workdir,
    )


def built_rootfs(into: Path, digest: str) -> RootfsBuild:
    """The build of that digest under ``into``. Raises: NotFound; Corrupt if its description does not parse."""
    folder = into.resolve() / digest
    try:
        described: dict[str, Any] = json.loads((folder / _DESCRIPTION_FILE).read_bytes())
        spec = described["spec"]
        return RootfsBuild(
            name=spec["name"],
            digest=described["digest"],
            rootfs=folder / "rootfs",
            size_bytes=described["size_bytes"],
            file_count=described["file_count"],
            packages=MappingProxyType(described["packages"]),
            env=MappingProxyType(spec["env"]),
            layer=described["layer"],
            warmup=spec["warmup"],
            user=spec.get("user", "root"),
            workdir=spec.get("workdir", ""),
            of_this_host=described.get("of_this_host", True),
        )
    except FileNotFoundError as error:
        raise NotFound(
            f"cannot find the root filesystem {digest}: build it with torpor template build", digest=digest
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"cannot read {folder / _DESCRIPTION_FILE}: {error}; remove {folder} and build again") from error


def _publish(here: Path, target: Path, build: RootfsBuild, spec: TemplateSpec) -> None:
    if target.exists():  # built before: the same tree, whose name others may hold already
        return
    described = {
        "format": 1,
        "spec": spec.as_json(),
        "digest": build.digest,
        "size_bytes": build.size_bytes,
        "file_count": build.file_count,
        "packages": dict(sorted(build.packages.items())),
        "layer": build.layer,
        "of_this_host": build.of_this_host,
    }
    with (here / _DESCRIPTION_FILE).open("w") as file:
        json.dump(described, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    here.rename(target)


def _packages(root: Path) -> dict[str, str]:
    packages: dict[str, str] = {}
    name = ""
    status = root / "var/lib/dpkg/status"
    for line in status.read_text().splitlines() if status.is_file() else ():
        key, _, value = line.partition(": ")
        if key == "Package":
            name = value
        elif key == "Version":
            packages[name] = value
    return packages


def _require_root_and_tools() -> None:
    if os.geteuid() != 0:
        raise Unsupported("cannot build a template: making a tree with the right owners needs root; repeat as root")
    path = commands.build_environment(os.environ)["PATH"]
    needed = (
        ("mmdebstrap", "mmdebstrap"),
        ("apt-config", "apt"),
        ("chroot", "coreutils"),
        ("setpriv", "util-linux"),
        ("unshare", "util-linux"),
    )
    for tool, package in needed:
        if shutil.which(tool, path=path) is None:
            raise Unsupported(f"cannot build a template: {tool} is not installed; run apt-get install {package}")
