"""What a runsc build can do on this host: asked of the binary itself, and proved by a run that goes the whole way."""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from torpor.adapters.engines.gvisor import parse, process
from torpor.adapters.engines.gvisor.commands import Features, Runsc
from torpor.adapters.engines.gvisor.control import BUILDS
from torpor.domain.errors import Unsupported
from torpor.ports.engine import EngineCapabilities

ASK_TIMEOUT_S = 20.0
ENGINE = "gvisor"


@dataclass(frozen=True, slots=True)
class Probed:
    """A build as the engine uses it."""

    capabilities: EngineCapabilities
    features: Features


async def ask(runsc: Runsc, *, can_freeze: bool) -> Probed:
    """Ask the binary. Raises: Unsupported if it cannot run here."""
    if os.geteuid() != 0:
        raise Unsupported("cannot run gVisor sandboxes: this needs root; start torpor as root", lacks="root")
    digest, version, tar_help, flags, cpu_features = await asyncio.gather(
        asyncio.to_thread(sha256_of, runsc.binary),
        _output(runsc.version()),
        _output(runsc.help("tar")),
        _output(runsc.global_flags()),
        _output(runsc.cpu_features()),
    )
    name = parse.version_of(version)
    features = Features(
        rootfs_tar="rootfs-upper" in tar_help and "-allow-rootfs-tar-annotation" in flags,
        inner_cgroup="-in-sandbox-cgroup" in flags,
        gofer_netns="-gofer-network-namespace" in flags,
        suid_flag="-allow-suid" in flags,
        overlay_size="size=" in parse.flag_help(flags, "overlay2"),
    )
    cpu_flags = parse.cpu_flags_of(cpu_features) or parse.cpuinfo_flags_of(Path("/proc/cpuinfo").read_text())
    capabilities = EngineCapabilities(
        engine=ENGINE,
        version=name,
        build=build_id(name, digest),
        filesystem_part=features.rootfs_tar,
        freeze=can_freeze,
        cpu_flags=cpu_flags,
        notes=_notes(name, features),
    )
    return Probed(capabilities, features)


def _notes(version: str, features: Features) -> dict[str, str]:
    return {
        "drive": "control socket" if version in BUILDS else "command line",
        "filesystem_part": "tar of the overlay" if features.rootfs_tar else "none: the build has no `tar rootfs-upper`",
        "process_cap": "fork gives EAGAIN"
        if features.inner_cgroup
        else "the host's only: reaching it ends the sandbox",
        "disk_cap": "writes give ENOSPC"
        if features.overlay_size
        else "the memory limit's only: reaching it ends the sandbox",
        "expired_timers": "fire at once after a restore: monotonic time goes on by the gap",
    }


def build_id(version: str, sha256: str) -> str:
    """The name of a build in requirements and folders: engine, version, 12 digits of the digest."""
    return f"{ENGINE}-{version}-{sha256[:12]}"


def sha256_of(file: Path) -> str:
    """The hex digest of a file; blocking. Raises: Unsupported if it cannot be read."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise Unsupported(
            f"cannot read {file}: {error.strerror}; install a build with `torpor engine install gvisor`",
            binary=str(file),
        ) from error


async def _output(argv: tuple[str, ...]) -> str:
    completed = await process.run(argv, timeout_s=ASK_TIMEOUT_S)
    return completed.stdout + completed.stderr
