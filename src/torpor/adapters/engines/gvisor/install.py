"""Getting runsc builds and keeping several side by side: ``engines_dir/BUILD/{runsc,build.json}``.

A build stays for as long as a snapshot needs it, so a binary from elsewhere is copied here and never followed. Routes
are tried in order; a build that passes the self-test but lacks the filesystem part is held in reserve while a later
route may give a better one. Nothing is ever piped into a shell.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import re
import shutil
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from torpor.adapters.engines.gvisor import process
from torpor.adapters.engines.gvisor.probe import sha256_of
from torpor.adapters.engines.gvisor.selftest import SelfTest, self_test
from torpor.domain.errors import EngineError, StorageFull, TorporError, Unavailable, Unsupported
from torpor.ports.clock import Clock

PINNED_MODULE_VERSION = "v0.0.0-20260905035102-160fafc42237"  # a go-branch commit: the main branch does not build
PINNED_VERSION = "torpor-20260905"  # without a stamp every go build calls itself VERSION_MISSING and checks nothing
GO_VERSION_MIN = (1, 26)
GO_VERSION_SWITCHING_MIN = (1, 21)  # from here on go fetches the toolchain that a module asks for
BUILD_TIMEOUT_S = 1800.0
DOWNLOAD_TIMEOUT_S = 600.0
ARCHIVE_BYTES_MAX = 512 * 1024 * 1024
RELEASE_BUCKET = "https://storage.googleapis.com/gvisor/releases/release"
RELEASE = "20260817.0"
SIDECARS = "gvisor-bin"  # release builds look for their helpers beside themselves

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class InstalledBuild:
    """One build on disk. ``probe`` is its self-test as JSON."""

    build: str
    runsc: Path
    version: str
    sha256: str
    route: str
    probe: dict[str, Any] = field(default_factory=dict)


class RouteFailed(EngineError):
    """One route gave no build; the next is tried."""


def list_builds(engines_dir: Path) -> tuple[InstalledBuild, ...]:
    """The builds below ``engines_dir``, the latest installed last. Folders that are not whole are passed over."""
    builds = []
    for record in sorted(engines_dir.glob("*/build.json"), key=lambda path: path.stat().st_mtime_ns):
        try:
            data = json.loads(record.read_text())
            build = InstalledBuild(**{**data, "runsc": record.parent / "runsc"})
        except (ValueError, TypeError):
            continue
        if build.runsc.exists():
            builds.append(build)
    return tuple(builds)


def remove_build(build: InstalledBuild) -> None:
    """Take a build away: at once for ``list_builds``, then its files. Blocking. Raises: Unavailable."""
    folder = build.runsc.parent
    try:
        (folder / "build.json").unlink(missing_ok=True)
        shutil.rmtree(folder)
    except OSError as error:
        raise Unavailable(f"cannot remove {folder}: {error.strerror}; remove the rest of it by hand") from error


def fits_pins(build: InstalledBuild) -> bool:
    """Whether the routes would give this build again, for all that is known of it: a changed pin asks for a new one."""
    pins = {"go": PINNED_VERSION, "archive": RELEASE}
    return pins.get(build.route, "") in build.version


async def install(
    engines_dir: Path, *, progress: Progress, clock: Clock, routes: Sequence[str] | None = None
) -> InstalledBuild:
    """The build to use: one that was installed under the present pins, else one got by the first route that works.

    ``routes``: which to try and in which order, of ROUTES; all by default. Idempotent; a failure leaves nothing, and
    builds of earlier pins stay for the snapshots that need them.
    Raises: Unsupported with the reason of every route in ``details["routes"]``; StorageFull.
    """
    engines_dir.mkdir(parents=True, exist_ok=True)
    builds = list_builds(engines_dir)
    if routes is None and (fitting := [build for build in builds if fits_pins(build)]):
        chosen = fitting[-1]
        progress(f"gVisor {chosen.version} is already installed ({chosen.build})")
        if chosen is not builds[-1]:
            os.utime(chosen.runsc.parent / "build.json")  # the latest is what new sessions use
        return chosen
    reasons: dict[str, str] = {}
    reserve: tuple[str, Path, SelfTest] | None = None
    with tempfile.TemporaryDirectory(prefix=".getting-", dir=engines_dir) as staging:
        for route in routes or tuple(ROUTES):
            folder = Path(staging) / route
            folder.mkdir()
            try:
                await ROUTES[route](folder, progress)
                tested = await _tested(folder / "runsc", progress, clock)
            except StorageFull:
                raise
            except TorporError as error:
                reasons[route] = error.message
                progress(f"{route}: {error.message}")
                continue
            if tested.capabilities.filesystem_part:
                return await asyncio.to_thread(_keep, engines_dir, folder, route, tested)
            reasons[route] = "works, but has no filesystem part; held in reserve"
            progress(f"{route}: {reasons[route]}")
            reserve = reserve or (route, folder, tested)
        if reserve is not None:
            route, folder, tested = reserve
            return await asyncio.to_thread(_keep, engines_dir, folder, route, tested)
    said = "; ".join(f"{route}: {reason}" for route, reason in reasons.items())
    raise Unsupported(
        f"cannot install gVisor: no route worked ({said}); put a runsc of 2025-08 or later on PATH and repeat",
        routes=reasons,
    )


async def _tested(runsc: Path, progress: Progress, clock: Clock) -> SelfTest:
    progress("self-test: run, checkpoint, restore twice, compare")
    tested = await self_test(runsc, clock)
    if not tested.passed:
        raise RouteFailed(f"the self-test of {tested.capabilities.version} failed: {tested.failure}")
    steps = ", ".join(f"{step} {took:.0f} ms" for step, took in tested.steps_ms.items())
    progress(f"self-test passed ({steps})")
    return tested


def _keep(engines_dir: Path, folder: Path, route: str, tested: SelfTest) -> InstalledBuild:
    """Move a tested build to its place. One that is there already stays."""
    capabilities = tested.capabilities
    final = engines_dir / capabilities.build
    build = InstalledBuild(
        build=capabilities.build,
        runsc=final / "runsc",
        version=capabilities.version,
        sha256=sha256_of(folder / "runsc"),
        route=route,
        probe=tested.to_json(),
    )
    (folder / "build.json").write_text(json.dumps({**asdict(build), "runsc": "runsc"}, indent=2))
    if not final.exists():
        folder.rename(final)
    return build


async def _from_path(folder: Path, progress: Progress) -> None:
    """A runsc that is installed already, with its sidecars."""
    found = shutil.which("runsc")
    if found is None:
        raise RouteFailed("there is no runsc on PATH")
    progress(f"path: copying {found}")
    await asyncio.to_thread(_copy_build, Path(found).resolve(), folder)


def _copy_build(runsc: Path, folder: Path) -> None:
    try:
        shutil.copy2(runsc, folder / "runsc")
        if (runsc.parent / SIDECARS).is_dir():
            shutil.copytree(runsc.parent / SIDECARS, folder / SIDECARS)
    except OSError as error:
        raise _failed("copy the build", str(error)) from error


async def _from_go(folder: Path, progress: Progress) -> None:
    """The pinned commit, built and stamped here; about two minutes with nothing cached."""
    go = shutil.which("go")
    if go is None:
        raise RouteFailed("there is no go on PATH")
    # A distribution's go is told to stay as old as it is; who set the variable himself meant it.
    env = {"GOTOOLCHAIN": "auto", **os.environ, "GOBIN": str(folder), "GOTMPDIR": str(folder)}
    env |= {"CGO_ENABLED": "0", "GOFLAGS": ""}
    said = (await process.run((go, "env", "GOVERSION", "GOTOOLCHAIN"), timeout_s=60, env=env)).stdout.split()
    version = go_version_of(said[0] if said else "")
    switches = version >= GO_VERSION_SWITCHING_MIN and said[-1:] != ["local"]
    if version < GO_VERSION_MIN and not switches:
        raise RouteFailed(f"go {'.'.join(map(str, version))} is too old; 1.26 is needed")
    progress("go: building the pinned commit (about two minutes the first time)")
    argv = (
        go,
        "install",
        "-trimpath",
        "-ldflags",
        f"-X gvisor.dev/gvisor/runsc/version.version={PINNED_VERSION}",
        f"gvisor.dev/gvisor/runsc@{PINNED_MODULE_VERSION}",
    )
    built = await process.run(argv, timeout_s=BUILD_TIMEOUT_S, cwd=folder, env=env)
    if built.exit_code != 0:
        raise _failed("build runsc", built.stderr)


def go_version_of(said: str) -> tuple[int, ...]:
    """``go1.26.8`` as numbers; (0,) if it is none."""
    match = re.match(r"go(\d+)\.(\d+)", said)
    return tuple(int(number) for number in match.groups()) if match else (0,)


async def _from_archive(folder: Path, progress: Progress) -> None:
    """The official release archive, checked against its sha512.

    Untested against the real bucket: it was out of reach of the machine this was written on. The unpacking and the
    check of the digest are tested on an archive made by a test.
    """
    arch = {"x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}.get(platform.machine())
    if arch is None:
        raise RouteFailed(f"there is no release for {platform.machine()}")
    address = f"{RELEASE_BUCKET}/{RELEASE}/{arch}/gvisor.tar.bz2"
    archive = folder / "gvisor.tar.bz2"
    progress(f"archive: downloading release {RELEASE}")
    try:
        async with httpx.AsyncClient(timeout=httpx.Timeout(DOWNLOAD_TIMEOUT_S, connect=10), trust_env=True) as client:
            digest = (await client.get(f"{address}.sha512")).raise_for_status().text.split()
            await _download(client, address, archive)
    except httpx.HTTPError as error:
        raise RouteFailed(f"the release archive is out of reach: {type(error).__name__} {error}") from error
    await asyncio.to_thread(unpack_archive, archive, digest[0] if digest else "", folder)


async def _download(client: httpx.AsyncClient, address: str, archive: Path) -> None:
    count_bytes = 0
    async with client.stream("GET", address) as response:
        response.raise_for_status()
        with archive.open("wb") as file:
            async for piece in response.aiter_bytes():
                count_bytes += len(piece)
                if count_bytes > ARCHIVE_BYTES_MAX:
                    raise RouteFailed(f"the release archive is larger than {ARCHIVE_BYTES_MAX} bytes")
                _write_all(file.write, piece)


def _write_all(write: Callable[[bytes], int], piece: bytes) -> None:
    try:
        write(piece)
    except OSError as error:
        raise _failed("store the release archive", str(error)) from error


def unpack_archive(archive: Path, sha512: str, folder: Path) -> None:
    """Check the digest, then unpack ``runsc`` and its sidecars into ``folder``. Blocking. Raises: RouteFailed."""
    with archive.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha512").hexdigest()
    if digest != sha512:
        raise RouteFailed(f"the release archive's sha512 is {digest[:16]}…, not {sha512[:16]}… as published")
    try:
        with tarfile.open(archive) as members:
            members.extractall(folder, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise _failed("unpack the release archive", str(error)) from error
    archive.unlink()
    found = next((path for path in sorted(folder.rglob("runsc")) if path.is_file()), None)
    if found is None:
        raise RouteFailed("the release archive holds no runsc")
    if found.parent != folder:
        for item in found.parent.iterdir():
            item.rename(folder / item.name)
    (folder / "runsc").chmod(0o755)


async def _from_distribution(folder: Path, progress: Progress) -> None:
    """The distribution's package, unpacked here: the system is not changed."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise RouteFailed("this is no Debian or Ubuntu")
    progress("distribution: downloading the runsc package")
    got = await process.run(("apt-get", "download", "runsc"), timeout_s=DOWNLOAD_TIMEOUT_S, cwd=folder)
    package = next(iter(sorted(folder.glob("*.deb"))), None)
    if got.exit_code != 0 or package is None:
        raise _failed("download the package", got.stderr)
    unpacked = await process.run(("dpkg-deb", "-x", str(package), str(folder / "tree")), timeout_s=60)
    binary = folder / "tree" / "usr" / "bin" / "runsc"
    if unpacked.exit_code != 0 or not binary.exists():
        raise _failed("unpack the package", unpacked.stderr)
    await asyncio.to_thread(_copy_build, binary, folder)
    await asyncio.to_thread(shutil.rmtree, folder / "tree")
    package.unlink()


def _failed(doing: str, said: str) -> TorporError:
    """The error of a route's step: StorageFull if the disk is full, which no other route would mend."""
    last = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
    if "no space left on device" in said.lower():
        return StorageFull(f"cannot {doing}: the disk is full; free about 2 GiB and repeat", log_tail=said[-2000:])
    return RouteFailed(f"cannot {doing}: {last}", log_tail=said[-2000:])


ROUTES: dict[str, Callable[[Path, Progress], Awaitable[None]]] = {
    "path": _from_path,
    "go": _from_go,
    "archive": _from_archive,
    "distribution": _from_distribution,
}
