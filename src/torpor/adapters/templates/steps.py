"""The steps of a build, each a layer over the one before: the base, packages, Python packages, files, commands."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.adapters.templates import chamber, commands, finish
from torpor.adapters.templates.layers import Layer, Layers, Place, key_of
from torpor.adapters.templates.running import BuildLog, run
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
from torpor.adapters.templates.spec import FileSpec, TemplateSpec
from torpor.domain.errors import InvalidArgument, Unsupported

# Raise it when what is done to a tree changes, so that kept layers of the old recipe are not used.
_RECIPE = 2
_COMPILED_FOLDERS = ("/usr/lib/python3",)
_DEBIAN_PACKAGES = ("bash", "ca-certificates", "python3")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries", "no-index")


@dataclass(frozen=True, slots=True)
class Host:
    """Where this machine's packages come from. ``sources``: a deb822 file, perhaps with credentials."""

    distribution: Distribution
    sources: str

    @classmethod
    def read(cls) -> Host:
        """Raises: Unsupported on other distributions."""
        distribution = parse_os_release(Path("/etc/os-release").read_text())
        archives: list[Archive] = []
        one_line = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.list"))]
        for path in one_line:
            if path.is_file():
                archives.extend(parse_one_line(path.read_text()))
        for path in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
            archives.extend(parse_deb822(path.read_text()))
        return cls(distribution, render_deb822(choose_archives(archives, distribution)))

    @property
    def identity(self) -> list[object]:
        """What decides which packages a name stands for; without credentials."""
        named = [self.distribution.id, self.distribution.codename, os.uname().machine]
        return [_RECIPE, named, without_credentials(self.sources)]


class Steps:
    """Performs the steps of one build. ``fresh``: make every layer anew."""

    def __init__(self, layers: Layers, host: Host, log: BuildLog, *, fresh: bool) -> None:
        self._layers = layers
        self._host = host
        self._log = log
        self._fresh = fresh

    async def distribution(self, packages: tuple[str, ...]) -> Layer:
        """A new tree of the distribution with these packages."""
        wanted = tuple(sorted({*packages, *_DEBIAN_PACKAGES}))

        async def work(place: Place) -> None:
            await self._debootstrap(place, wanted)

        key = key_of("", ["distribution", self._host.identity, wanted])
        what = f"installing {len(wanted)} packages of {self._host.distribution.codename}, about a minute"
        return await self._layers.step(None, key, what, work, fresh=self._fresh)

    async def onto(self, layer: Layer, spec: TemplateSpec) -> Layer:
        """All that ``spec`` adds to its base, but for torpor's own files."""
        layer = await self.packages(layer, spec.packages)
        layer = await self.python(layer, spec)
        layer = await self.files(layer, spec.files)
        for argv in spec.commands:
            layer = await self.command(layer, argv, spec.env)
        return layer

    async def packages(self, layer: Layer, packages: tuple[str, ...]) -> Layer:
        """The distribution's packages, by the host's apt."""
        if not packages:
            return layer
        wanted = tuple(sorted(set(packages)))

        async def work(place: Place) -> None:
            await self._apt(place, wanted)

        key = key_of(layer.key, ["packages", self._host.identity, wanted])
        return await self._layers.step(layer, key, f"installing {', '.join(wanted)}", work, fresh=self._fresh)

    async def python(self, layer: Layer, spec: TemplateSpec) -> Layer:
        """Python packages, by pip in the tree."""
        if not spec.python:
            return layer
        inputs = ["python", spec.python, await asyncio.to_thread(_folder_digest, spec.wheels)]

        async def work(place: Place) -> None:
            await self._pip(place, spec)

        what = f"installing {', '.join(spec.python)} with pip"
        return await self._layers.step(layer, key_of(layer.key, inputs), what, work, fresh=self._fresh)

    async def files(self, layer: Layer, files: tuple[FileSpec, ...]) -> Layer:
        """Files, in order; folders above them are made, of root."""
        if not files:
            return layer
        inputs = ["files", [_file_inputs(file) for file in files]]

        async def work(place: Place) -> None:
            for file in files:
                await _put(place, file)

        what = f"putting {len(files)} files"
        return await self._layers.step(layer, key_of(layer.key, inputs), what, work, fresh=self._fresh)

    async def command(self, layer: Layer, argv: tuple[str, ...], env: Mapping[str, str]) -> Layer:
        """One command, as root in the tree, with the host's network and the template's variables."""
        shown = argv[2:] if argv[:2] == ("/bin/sh", "-c") else argv

        async def work(place: Place) -> None:
            proxies = {name: os.environ[name] for name in _PROXIES if name in os.environ}
            whole = chamber.inside_argv(place.root, place.options, argv)
            await run(whole, place.log, env=proxies | dict(env), shown=shown, apart=True)

        key = key_of(layer.key, ["command", argv, sorted(env.items())])
        return await self._layers.step(layer, key, f"running {' '.join(shown)[:120]}", work, fresh=self._fresh)

    async def _debootstrap(self, place: Place, packages: tuple[str, ...]) -> None:
        here, root = place.root.parent, place.root
        sources, settings = here / "torpor.sources", here / "torpor.conf"
        sources.write_text(self._host.sources)
        settings.write_text(commands.carried_settings(await run(("apt-config", "dump"), place.log)))
        settings.chmod(0o600)
        codename = self._host.distribution.codename
        argv = commands.mmdebstrap_argv(packages, codename=codename, target=root, sources=sources, settings=settings)
        await run(argv, place.log)
        sources.unlink()
        settings.unlink()
        await asyncio.to_thread(finish.clean_layer, root)
        place.log.say("compiling the libraries")
        await run(commands.compile_argv(root, _COMPILED_FOLDERS), place.log, may_exit=(0, 1))

    async def _apt(self, place: Place, packages: tuple[str, ...]) -> None:
        here = place.root.parent
        sources, settings = here / "torpor.sources", here / "torpor.conf"
        sources.write_text(self._host.sources)
        carried = commands.carried_settings(await run(("apt-config", "dump"), place.log))
        settings.write_text(commands.apt_settings(place.root, sources=sources, carried=carried))
        settings.chmod(0o600)
        env = {"APT_CONFIG": str(settings)}
        script = (
            'apt-get update && apt-get install --yes "$@" && '
            'rm -rf "$ROOT/var/lib/apt/lists" "$ROOT/var/cache/apt" && mkdir -p "$ROOT/var/cache/apt" '
            '"$ROOT/var/lib/apt/lists" && { [ ! -x "$ROOT/usr/bin/python3" ] || '
            'chroot "$ROOT" /usr/bin/python3 -I -m compileall -q -j 1 /usr/lib/python3 || true; }'
        )
        argv = chamber.outside_argv(place.root, place.options, ("/bin/sh", "-c", script, "apt", *packages))
        shown = ("apt-get", "install", *packages)
        await run(argv, place.log, env=env | {"ROOT": str(place.root)}, shown=shown)
        sources.unlink()
        settings.unlink()
        if place.options:
            await asyncio.to_thread(finish.drop_unused, place.root.parent / "tree")
        else:
            await asyncio.to_thread(finish.drop_unused, place.root)

    async def _pip(self, place: Place, spec: TemplateSpec) -> None:
        lent: dict[str, Path] = {}
        env = dict(spec.env) | {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
        if spec.wheels is not None:
            lent["wheels"] = spec.wheels
            options = ["--no-index", "--find-links", f"{chamber.LENT}/wheels"]
        else:
            options = []
            env |= await _pip_settings(lent)
        lent["pip"] = _host_pip()
        script = (
            'import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); sys.argv[0] = "pip"; '
            'runpy.run_module("pip", run_name="__main__")'
        )
        await asyncio.to_thread(_make_lendable, place.root.parent, lent)
        pip = ("install", "--no-cache-dir", "--no-input", "--disable-pip-version-check", *options, *spec.python)
        argv = ("/usr/bin/python3", "-c", script, f"{chamber.LENT}/pip", *pip)
        whole = chamber.inside_argv(place.root, place.options, argv, lent)
        await run(whole, place.log, env=env, shown=("pip", *pip), apart=True)
        shutil.rmtree(place.root.parent / "lent", ignore_errors=True)


def _make_lendable(here: Path, lent: dict[str, Path]) -> None:
    """Python's pip lies among much else in its folder: only it is lent, as a copy."""
    copy = here / "lent"
    shutil.copytree(lent["pip"], copy / "pip", ignore=shutil.ignore_patterns("__pycache__"))
    lent["pip"] = copy


def _host_pip() -> Path:
    found = importlib.util.find_spec("pip")
    if found is None or found.origin is None:
        raise Unsupported(
            "cannot install Python packages: this Python has no pip; run python -m ensurepip and repeat", lacks="pip"
        )
    return Path(found.origin).parent


async def _pip_settings(lent: dict[str, Path]) -> dict[str, str]:
    """The host's index, as variables; they may hold a password and so are never written into a tree."""
    settings: dict[str, str] = {}
    for line in (
        await run((sys.executable, "-m", "pip", "config", "list"), BuildLog(None, lambda _: None))
    ).splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in _PIP_SETTINGS:
            settings[f"PIP_{name.upper().replace('-', '_')}"] = value.strip("'\"")
        elif name == "cert" and Path(value.strip("'\"")).is_file():
            lent["ca.pem"] = Path(value.strip("'\""))
            settings["PIP_CERT"] = f"{chamber.LENT}/ca.pem"
        elif name == "find-links" and Path(value.strip("'\"")).is_dir():
            lent["links"] = Path(value.strip("'\""))
            settings["PIP_FIND_LINKS"] = f"{chamber.LENT}/links"
    return {name: os.environ[name] for name in _PROXIES if name in os.environ} | settings


def _file_inputs(file: FileSpec) -> list[str]:
    return [file.path, hashlib.sha256(_content(file)).hexdigest(), f"{file.mode:o}", file.owner]


def _content(file: FileSpec) -> bytes:
    if file.source is None:
        return (file.content or "").encode()
    try:
        return file.source.read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"cannot read {file.source} for {file.path}: {error.strerror}", field="files.source"
        ) from error


async def _put(place: Place, file: FileSpec) -> None:
    staged = place.root.parent / "lent"
    staged.write_bytes(_content(file))
    script = (
        f'mkdir -p "$(dirname "$1")" && rm -f "$1" && cp {chamber.LENT}/file "$1" && chown "$3" "$1" && chmod "$2" "$1"'
    )
    inside = ("/bin/sh", "-c", script, "put", file.path, f"{file.mode:o}", file.owner)
    argv = chamber.inside_argv(place.root, place.options, inside, {"file": staged})
    await run(argv, place.log, shown=("put", file.path), apart=True)
    staged.unlink()


def _folder_digest(folder: Path | None) -> str:
    if folder is None:
        return ""
    if not folder.is_dir():
        raise InvalidArgument(f"cannot install from {folder}: there is no such folder", field="wheels")
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            whole.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()
