"""Build a template's root filesystem: a layer of the distribution's packages, finished with torpor's own files.

The layer takes a minute and is kept per machine, named by its inputs; finishing takes seconds. The result lies at
``<into>/<digest>/rootfs`` with its description beside it in ``template.json``, and appears by one rename.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torpor.adapters.templates import commands, finish
from torpor.adapters.templates.digest import digest_tree
from torpor.adapters.templates.sources import (
    Archive,
    Distribution,
    choose_archives,
    parse_deb822,
    parse_one_line,
    parse_os_release,
    render_deb822,
    without_credentials,
)
from torpor.adapters.templates.spec import TemplateSpec
from torpor.adapters.templates.workplace import Progress, workplace
from torpor.domain.errors import Corrupt, NotFound, Unsupported

LAYERS_FOLDER = Path("/var/cache/torpor/layers")

# Raise it when what is done to a tree changes, so that kept layers of the old recipe are not used.
_RECIPE = 1
_LAYERS_MAX = 4
_LOG_BYTES_MAX = 1 << 20
_DESCRIPTION_FILE = "template.json"
_COMPILED_FOLDERS = ("/usr/lib/python3",)
_GUEST_FOLDERS = ("/opt/torpor",)


@dataclass(frozen=True, slots=True)
class RootfsBuild:
    """A finished root filesystem. ``digest``: 64 hex digits, of the tree. ``rootfs``: read-only to all who use it.

    ``packages``: installed version by package name. ``env``: of PID 1. ``layer``: name of the layer it was made from.
    """

    name: str
    digest: str
    rootfs: Path
    size_bytes: int
    file_count: int
    packages: Mapping[str, str]
    env: Mapping[str, str]
    layer: str


@dataclass(frozen=True, slots=True)
class _Recipe:
    """All that decides what a layer holds."""

    spec: TemplateSpec
    distribution: Distribution
    sources: str

    @property
    def key(self) -> str:
        inputs = {
            "recipe": _RECIPE,
            "packages": sorted(set(self.spec.packages)),
            "distribution": [self.distribution.id, self.distribution.codename, os.uname().machine],
            "sources": without_credentials(self.sources),
        }
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


async def build_rootfs(
    spec: TemplateSpec,
    into: Path,
    *,
    guest_lib: Path,
    progress: Progress,
    layers: Path = LAYERS_FOLDER,
    fresh: bool = False,
) -> RootfsBuild:
    """Build ``spec`` into ``<into>/<digest>/``; the same inputs give the build that is there already.

    ``guest_lib``: the folder that holds the packages torpor_guest and torpor_wire. ``layers``: where layers are kept.
    ``fresh``: fetch the packages anew, in the versions that the archives have now.
    Progress lines are for people. On failure and on cancellation nothing of the attempt is left.

    Raises: Unsupported (not root, no mmdebstrap, not Debian or Ubuntu), InvalidArgument (a package that is not
    there), StorageFull, EngineError with the end of the tool's output.
    """
    _require_root_and_tools()
    into = into.resolve()  # an engine may refuse a root filesystem whose path leads through a link
    recipe = _Recipe(spec, *_host_sources())
    layer = await _layer(recipe, layers, progress, fresh=fresh)
    async with workplace(into, f"{spec.name}-{layer.name[:12]}", progress) as here:
        here.mkdir(mode=0o755)
        root = here / "rootfs"
        progress("copying the layer")
        await _run(commands.copy_argv(layer / "rootfs", root), progress)
        progress("adding the guest agent")
        sources = without_credentials(recipe.sources)
        await asyncio.to_thread(finish.add_torpor, root, spec, guest_lib=guest_lib, sources=sources)
        await _run(commands.compile_argv(root, _GUEST_FOLDERS), progress)
        await asyncio.to_thread(finish.check_tree, root)
        progress("computing the digest")
        tree = await asyncio.to_thread(digest_tree, root)
        build = RootfsBuild(
            name=spec.name,
            digest=tree.digest,
            rootfs=into / tree.digest / "rootfs",
            size_bytes=tree.size_bytes,
            file_count=tree.file_count,
            packages=MappingProxyType(_packages(root)),
            env=spec.env,
            layer=layer.name,
        )
        _publish(here, into / tree.digest, build, spec)
    progress(f"template {spec.name} is {build.digest[:12]}: {build.file_count} files, {build.size_bytes >> 20} MiB")
    return build


def built_rootfs(into: Path, digest: str) -> RootfsBuild:
    """The build of that digest under ``into``. Raises: NotFound; Corrupt if its description does not parse."""
    folder = into.resolve() / digest
    try:
        described: dict[str, Any] = json.loads((folder / _DESCRIPTION_FILE).read_bytes())
        return RootfsBuild(
            name=described["spec"]["name"],
            digest=described["digest"],
            rootfs=folder / "rootfs",
            size_bytes=described["size_bytes"],
            file_count=described["file_count"],
            packages=MappingProxyType(described["packages"]),
            env=MappingProxyType(described["spec"]["env"]),
            layer=described["layer"],
        )
    except FileNotFoundError as error:
        raise NotFound(
            f"cannot find the root filesystem {digest}: build it with torpor template build", digest=digest
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"cannot read {folder / _DESCRIPTION_FILE}: {error}; remove {folder} and build again") from error


async def _layer(recipe: _Recipe, layers: Path, progress: Progress, *, fresh: bool) -> Path:
    target = layers / recipe.key
    if target.is_dir() and not fresh:
        progress(f"using the kept layer {recipe.key[:12]}")
        os.utime(target)  # the least recently used are forgotten
        return target
    async with workplace(layers, recipe.key, progress) as here:
        if target.is_dir() and not fresh:  # another builder made it while this one waited
            return target
        here.mkdir(mode=0o755)
        await _fetch(recipe, here, progress)
        if target.is_dir():
            shutil.rmtree(target)
        here.rename(target)
        _forget_old_layers(layers)
    return target


async def _fetch(recipe: _Recipe, here: Path, progress: Progress) -> None:
    sources, settings, root = here / "torpor.sources", here / "torpor.conf", here / "rootfs"
    sources.write_text(recipe.sources)
    settings.write_text(commands.carried_settings(await _run(("apt-config", "dump"), progress)))
    settings.chmod(0o600)
    argv = commands.mmdebstrap_argv(
        recipe.spec, codename=recipe.distribution.codename, target=root, sources=sources, settings=settings
    )
    progress(f"installing {len(recipe.spec.packages)} packages of {recipe.distribution.codename}, about a minute")
    await _run(argv, progress)
    sources.unlink()
    settings.unlink()
    await asyncio.to_thread(finish.clean_layer, root)
    progress("compiling the libraries")
    await _run(commands.compile_argv(root, _COMPILED_FOLDERS), progress, may_exit=(0, 1))


def _forget_old_layers(layers: Path) -> None:
    kept = sorted(
        (entry for entry in layers.iterdir() if entry.is_dir() and not entry.name.startswith(".")),
        key=lambda entry: entry.stat().st_mtime,
        reverse=True,
    )
    for old in kept[_LAYERS_MAX:]:
        shutil.rmtree(old)


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
    }
    with (here / _DESCRIPTION_FILE).open("w") as file:
        json.dump(described, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    here.rename(target)


def _packages(root: Path) -> dict[str, str]:
    packages: dict[str, str] = {}
    name = ""
    for line in (root / "var/lib/dpkg/status").read_text().splitlines():
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
    for tool, package in (("mmdebstrap", "mmdebstrap"), ("apt-config", "apt"), ("chroot", "coreutils")):
        if shutil.which(tool, path=path) is None:
            raise Unsupported(f"cannot build a template: {tool} is not installed; run apt-get install {package}")


def _host_sources() -> tuple[Distribution, str]:
    distribution = parse_os_release(Path("/etc/os-release").read_text())
    archives: list[Archive] = []
    one_line = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.list"))]
    for path in one_line:
        if path.is_file():
            archives.extend(parse_one_line(path.read_text()))
    for path in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        archives.extend(parse_deb822(path.read_text()))
    return distribution, render_deb822(choose_archives(archives, distribution))


async def _run(argv: tuple[str, ...], progress: Progress, *, may_exit: tuple[int, ...] = (0,)) -> str:
    """Run to the end; what it wrote. Its whole process group dies with a cancellation."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=commands.build_environment(os.environ),
        start_new_session=True,
    )
    assert process.stdout is not None
    log = bytearray()
    try:
        # Read in blocks: a progress bar is one endless line.
        while block := await process.stdout.read(1 << 16):
            for line in block.decode(errors="replace").splitlines():
                if line.startswith("I: ") and argv[0] == "mmdebstrap" and "signal" not in line:
                    progress(line[3:])
            log += block
            del log[:-_LOG_BYTES_MAX]
        exit_code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
            await _ended(process)
    text = log.decode(errors="replace")
    if exit_code not in may_exit:
        raise commands.build_error(argv, exit_code=exit_code, log=text)
    return text


async def _ended(process: asyncio.subprocess.Process) -> None:
    # mmdebstrap takes its mounts off when it is asked to end; it is killed only if it does not.
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        await process.wait()
