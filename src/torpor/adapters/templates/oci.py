"""OCI image archives: what ``docker save`` and ``podman save`` write, and OCI layouts in a tar. Reading only.

Source: the OCI image layout, image manifest and image config specifications, version 1.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torpor.adapters.templates import unpack
from torpor.adapters.templates.chamber import mounted_argv
from torpor.adapters.templates.grounds import Ground
from torpor.adapters.templates.layers import Place
from torpor.adapters.templates.running import run
from torpor.adapters.templates.spec import base_env
from torpor.domain.errors import InvalidArgument, Unsupported

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DOCUMENT_BYTES_MAX = 4 << 20
_REF_DEPTH_MAX = 4
_LINK_DEPTH_MAX = 4


@dataclass(frozen=True, slots=True)
class OciImage:
    """``layers``: names of members of the archive, the lowest first. ``digest``: of the config, so of all content."""

    digest: str
    layers: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    user: str


def read_image(archive: Path) -> OciImage:
    """The archive's one image for this machine. Raises: InvalidArgument; Unsupported for another architecture."""
    try:
        with tarfile.open(archive) as tar:
            return _read(tar, archive)
    except (OSError, tarfile.TarError) as error:
        raise InvalidArgument(
            f"cannot read {archive} as an image archive: {error}; make one with docker save or podman save",
            field="base",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f"cannot read {archive} as an image archive: {type(error).__name__} {error}", field="base"
        ) from error


async def oci_ground(archive: Path) -> Ground:
    """The image as a base: its layers laid over one another, its variables, folder and user."""
    image = await asyncio.to_thread(read_image, archive)

    async def fill(place: Place) -> None:
        place.root.mkdir(exist_ok=True)
        staged = place.root.parent / "layer.tar"
        for number, name in enumerate(image.layers, start=1):
            place.log.say(f"unpacking layer {number} of {len(image.layers)}")
            await asyncio.to_thread(_extract, archive, name, staged)
            await lay_tar(place, staged)
            staged.unlink()

    return Ground(
        inputs=["oci", image.digest, image.layers],
        fill=fill,
        what=f"unpacking {archive.name}",
        env=MappingProxyType({**base_env(), **image.env}),
        user=image.user,
        workdir=image.workdir,
        of_this_host=False,
    )


async def lay_tar(place: Place, tar: Path) -> None:
    """Lay a tar (a container layer, or a filesystem part) over the place's tree."""
    # By its path, not as a module: it needs nothing of the package.
    program = (sys.executable, "-P", "-B", unpack.__file__, str(place.root), str(tar))
    await run(mounted_argv(place.root, place.options, program), place.log, shown=("unpack", tar.name))


def _read(tar: tarfile.TarFile, archive: Path) -> OciImage:
    names = {os.path.normpath(name) for name in tar.getnames()}
    if "manifest.json" in names:  # what docker save writes, also beside a layout
        images = _json(tar, "manifest.json")
        _only_one(images, archive)
        return _image(
            tar, os.path.normpath(images[0]["Config"]), [os.path.normpath(name) for name in images[0]["Layers"]]
        )
    if "index.json" not in names:
        raise InvalidArgument(
            f"cannot read {archive} as an image archive: it has neither manifest.json nor index.json; "
            "make one with docker save or podman save",
            field="base",
        )
    manifest = _manifest(tar, _json(tar, "index.json"), archive)
    return _image(tar, _blob(manifest["config"]), [_blob(layer) for layer in manifest["layers"]])


def _manifest(tar: tarfile.TarFile, index: Mapping[str, Any], archive: Path) -> Mapping[str, Any]:
    document = index
    for _ in range(_REF_DEPTH_MAX):
        if "manifests" not in document:
            return document
        here = _ARCHITECTURES.get(platform.machine(), platform.machine())
        fitting = [
            entry for entry in document["manifests"] if entry.get("platform", {}).get("architecture", here) == here
        ]
        if not fitting:
            raise Unsupported(f"cannot use {archive}: it has no image for {here}; save one for this machine")
        _only_one(fitting, archive)
        document = _json(tar, _blob(fitting[0]))
    raise InvalidArgument(f"cannot read {archive}: its index refers to indexes without end", field="base")


def _image(tar: tarfile.TarFile, config_name: str, layers: list[str]) -> OciImage:
    raw = _bytes(tar, config_name)
    described = json.loads(raw)
    here = _ARCHITECTURES.get(platform.machine(), platform.machine())
    if described.get("architecture", here) != here:
        raise Unsupported(f"cannot use an image for {described['architecture']} on {here}: save one for this machine")
    config = described.get("config") or {}
    variables = (entry.partition("=") for entry in config.get("Env") or ())
    return OciImage(
        digest=hashlib.sha256(raw).hexdigest(),
        layers=tuple(layers),
        env=MappingProxyType({name: value for name, _, value in variables}),
        workdir=config.get("WorkingDir") or "",
        user=(config.get("User") or "root").partition(":")[0],
    )


def _only_one(images: list[Any], archive: Path) -> None:
    if len(images) != 1:
        raise InvalidArgument(f"cannot use {archive}: it holds {len(images)} images; save one alone", field="base")


def _blob(descriptor: Mapping[str, Any]) -> str:
    algorithm, _, digest = descriptor["digest"].partition(":")
    return f"blobs/{algorithm}/{digest}"


def _json(tar: tarfile.TarFile, name: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(_bytes(tar, name))


def _member(tar: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    for _ in range(_LINK_DEPTH_MAX):
        found = next((member for member in tar.getmembers() if os.path.normpath(member.name) == name), None)
        if found is None:
            raise KeyError(f"{name} is not in it")
        if not found.issym():
            return found
        # docker save writes a layer that is used twice as a link
        name = os.path.normpath(os.path.join(os.path.dirname(name), found.linkname))
    raise KeyError(f"{name} is a link without end")


def _bytes(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(_member(tar, name))
    if file is None:
        raise KeyError(f"{name} is no file")
    return file.read(_DOCUMENT_BYTES_MAX)


def _extract(archive: Path, name: str, target: Path) -> None:
    """Copy one layer out. Raises: InvalidArgument if a blob is not what its name says."""
    seen = hashlib.sha256()
    with tarfile.open(archive) as tar, target.open("wb") as file:
        try:
            source = tar.extractfile(_member(tar, name))
        except KeyError as error:
            raise InvalidArgument(
                f"cannot read the layer {name} of {archive}: {error.args[0]}; save it again", field="base"
            ) from error
        if source is None:
            raise InvalidArgument(f"cannot read the layer {name} of {archive}: it is no file", field="base")
        while block := source.read(1 << 20):
            seen.update(block)
            file.write(block)
    if name.startswith("blobs/sha256/") and seen.hexdigest() != name.rpartition("/")[2]:
        raise InvalidArgument(f"cannot use {archive}: the layer {name} has other content than its name", field="base")
