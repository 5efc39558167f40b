"""Everything that is ever said to runsc: argv and the OCI spec, as pure functions of values.

Spec version 1 (docs/design/003-frozen-spec-v1.md) is frozen: an image restores only into an instance whose spec says
the same. A change of anything below but sources and paths is a new spec version beside this one, never an edit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.adapters.engines.gvisor.config import MEMORY_OVERHEAD_BYTES
from torpor.adapters.engines.gvisor.layout import FILESYSTEM_TAR
from torpor.domain.errors import InvalidArgument
from torpor.domain.ids import InstanceId
from torpor.ports.engine import InstanceShape

OVERLAY_MODE = "root:memory"
NETWORK_KIND = "sandbox"
ROOTFS_TAR_ANNOTATION = "dev.gvisor.tar.rootfs.upper"
CPU_PERIOD_US = 100_000
OPEN_FILES_MAX = 65_536
SPEC_VERSIONS = (1,)

# What PID 1 holds. It drops what its children must not have (above all SYS_ADMIN, hence SETPCAP). NET_RAW is absent:
# runsc would strip it anyway without --net-raw.
CAPABILITIES = (
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
)

# gVisor enforces no RLIMIT_NPROC, and at the host's cap its sentry panics (both measured). So PID 1 starts as a line of
# shell that sets the in-sandbox cap, at which fork gives EAGAIN, and becomes the program. The host cannot set it: the
# call for that ends in a nil dereference in the pinned build (docs/design/003-frozen-spec-v1.md).
_CAPPED = (
    "/bin/sh",
    "-c",
    'read -r own </proc/self/cgroup && echo "$0" >"/sys/fs/cgroup${own#0::}/pids.max" && exec "$@"',
)


@dataclass(frozen=True, slots=True)
class Features:
    """What a build knows: probed, see probe.py. The first two shape the spec.

    ``rootfs_tar``: the filesystem part. ``inner_cgroup``: an in-sandbox cgroup hierarchy of version 2, for the cap on
    processes. ``suid_flag``: it must be told that set-uid programs work; builds without the flag let them.
    ``overlay_size``: the overlay's size can be limited; without it the memory limit is the only one on the disk.
    ``gofer_netns``: it must be told to give each gofer a namespace that dies with it, rather than to pin
    one for all by a mount that nobody removes (no slower, measured).
    """

    rootfs_tar: bool = False
    inner_cgroup: bool = False
    gofer_netns: bool = False
    suid_flag: bool = False
    overlay_size: bool = False


@dataclass(frozen=True, slots=True)
class SpecPlaces:
    """What of a spec may differ between saving and restoring: paths on this host."""

    bundle: Path
    netns: Path
    cgroup: str


def memory_limit_bytes(shape: InstanceShape) -> int:
    """The cgroup's limit: guest memory, the overlay (which lives in memory) and gVisor's own."""
    return shape.memory_bytes + shape.disk_bytes + MEMORY_OVERHEAD_BYTES


def host_pids_max(shape: InstanceShape) -> int:
    """The backstop on host tasks. Reaching it kills the sandbox, so the cap that guests meet is inside (pids.max).

    Measured: a guest process costs 2 host tasks at rest and up to 4 at work, gVisor itself 25 to 60.
    """
    return 4 * shape.pids_max + 256


def oci_spec(shape: InstanceShape, places: SpecPlaces, features: Features) -> dict[str, Any]:
    """The bundle's config.json. Raises: InvalidArgument for a spec version that this release does not generate."""
    if shape.spec_version not in SPEC_VERSIONS:
        raise InvalidArgument(
            f"cannot make a spec of version {shape.spec_version}: this release makes {SPEC_VERSIONS}",
            field="spec_version",
        )
    capabilities = list(CAPABILITIES)
    spec: dict[str, Any] = {
        "ociVersion": "1.2.0",
        "hostname": "torpor",
        "root": {"path": str(shape.rootfs), "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": _argv(shape, features),
            "env": list(shape.env),
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": OPEN_FILES_MAX, "soft": OPEN_FILES_MAX}],
        },
        "mounts": _mounts_v1(shape, places.bundle, features),
        "linux": {
            "cgroupsPath": places.cgroup,
            "resources": _resources(shape),
            "namespaces": [
                {"type": "pid"},
                {"type": "ipc"},
                {"type": "uts"},
                {"type": "mount"},
                {"type": "network", "path": str(places.netns)},
            ],
        },
    }
    if features.rootfs_tar:
        # Relative on purpose: annotations are part of the frozen spec, and runsc create runs in the bundle.
        spec["annotations"] = {ROOTFS_TAR_ANNOTATION: FILESYSTEM_TAR}
    return spec


def _argv(shape: InstanceShape, features: Features) -> list[str]:
    return [*_CAPPED, str(shape.pids_max), *shape.argv] if features.inner_cgroup else list(shape.argv)


def _mounts_v1(shape: InstanceShape, bundle: Path, features: Features) -> list[dict[str, Any]]:
    plain = ["nosuid", "noexec", "nodev"]
    cgroup = {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": plain}
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*plain, "ro"]},
        *([cgroup] if features.inner_cgroup else []),
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts"},
        _tmpfs("/dev/shm", mode="1777", size_bytes=shape.shm_bytes, options=["nosuid", "nodev"]),  # noqa: S108 - in the guest
        # gVisor hides an empty /tmp under a tmpfs, which the filesystem part would lack. A mount point inside it,
        # and a customary one, keeps /tmp on the overlay.
        _tmpfs("/tmp/.X11-unix", mode="1777", size_bytes=1 << 20, options=["nosuid", "nodev"]),  # noqa: S108 - in the guest
        _tmpfs("/run/torpor", mode="755", size_bytes=16 << 20, options=["nosuid", "nodev"]),
        _tmpfs("/mnt/torpor", mode="755", size_bytes=1 << 20, options=["nosuid", "nodev"]),
        _read_only_file("/etc/torpor/resolv.conf", bundle / "resolv.conf"),
        _read_only_file("/etc/torpor/ca-bundle.pem", bundle / "ca-bundle.pem"),
    ]


def _tmpfs(destination: str, *, mode: str, size_bytes: int, options: list[str]) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": [*options, f"mode={mode}", f"size={size_bytes}"],
    }


def _read_only_file(destination: str, source: Path) -> dict[str, Any]:
    return {"destination": destination, "type": "bind", "source": str(source), "options": ["bind", "ro"]}


def _resources(shape: InstanceShape) -> dict[str, Any]:
    return {
        "memory": {"limit": memory_limit_bytes(shape)},
        "cpu": {"quota": max(1000, int(shape.cpus * CPU_PERIOD_US)), "period": CPU_PERIOD_US},
        "pids": {"limit": host_pids_max(shape)},
    }


def frozen_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """``spec`` without all that may differ between saving and restoring: what requirements keep and compare.

    Dropped: root path, mount sources, hostname, env, cgroup path, resources and namespace paths.
    """
    process = {key: value for key, value in spec["process"].items() if key != "env"}
    mounts = [{key: value for key, value in mount.items() if key != "source"} for mount in spec["mounts"]]
    return {
        "ociVersion": spec["ociVersion"],
        "root": {"readonly": spec["root"]["readonly"]},
        "process": process,
        "mounts": mounts,
        "namespaces": sorted(namespace["type"] for namespace in spec["linux"]["namespaces"]),
        "annotations": dict(spec.get("annotations", {})),
    }


@dataclass(frozen=True, slots=True)
class Runsc:
    """argv of one build under one root, as tuples; no shell of the host ever sees them."""

    binary: Path
    root: Path
    features: Features = Features()

    def create(self, instance: InstanceId, bundle: Path, *, disk_bytes: int) -> tuple[str, ...]:
        """To be run in ``bundle`` with the channel's FIFOs as stdin and stdout. Writes ``bundle/pid``."""
        flags = self._sandbox_flags(bundle, disk_bytes=disk_bytes)
        return (*flags, "create", "--bundle", str(bundle), "--pid-file", str(bundle / "pid"), instance)

    def start(self, instance: InstanceId, bundle: Path, *, disk_bytes: int) -> tuple[str, ...]:
        """Run PID 1 of a created instance."""
        flags = self._sandbox_flags(bundle, disk_bytes=disk_bytes)
        return (*flags, "start", instance)

    def restore(
        self, instance: InstanceId, bundle: Path, image: Path, *, disk_bytes: int, background: bool
    ) -> tuple[str, ...]:
        """Bring ``image`` to life in a created instance."""
        flags = self._sandbox_flags(bundle, disk_bytes=disk_bytes)
        loading = ("--background",) if background else ()
        place = ("--bundle", str(bundle), "--image-path", str(image))
        return (*flags, "restore", "--detach", *loading, *place, instance)

    def checkpoint(self, instance: InstanceId, image: Path) -> tuple[str, ...]:
        """Always with --leave-running: without it a failed checkpoint kills the sandbox."""
        options = ("--compression", "none", "--leave-running", "--image-path", str(image))
        return (*self._plain_flags(), "checkpoint", *options, instance)

    def tar(self, instance: InstanceId, file: Path) -> tuple[str, ...]:
        """Write the overlay's upper layer as a tar."""
        return (*self._plain_flags(), "tar", "rootfs-upper", "--file", str(file), instance)

    def pause(self, instance: InstanceId) -> tuple[str, ...]:
        """Stop all tasks in the sandbox."""
        return (*self._plain_flags(), "pause", instance)

    def resume(self, instance: InstanceId) -> tuple[str, ...]:
        """Undo ``pause``."""
        return (*self._plain_flags(), "resume", instance)

    def state(self, instance: InstanceId) -> tuple[str, ...]:
        """Print the state as JSON."""
        return (*self._plain_flags(), "state", instance)

    def wait_restore(self, instance: InstanceId) -> tuple[str, ...]:
        """Return once all pages of a background restore are read."""
        return (*self._plain_flags(), "wait", "--restore", instance)

    def delete(self, instance: InstanceId) -> tuple[str, ...]:
        """Remove what runsc knows of an instance, killing what is left of it."""
        return (*self._plain_flags(), "delete", "--force", instance)

    def version(self) -> tuple[str, ...]:
        """Print the version."""
        return (str(self.binary), "--version")

    def cpu_features(self) -> tuple[str, ...]:
        """Print the CPU features that a restore compares, separated by commas."""
        return (str(self.binary), "cpu-features")

    def help(self, *subcommand: str) -> tuple[str, ...]:
        """Print the usage of a subcommand, or with ``flags`` all global flags."""
        return (str(self.binary), "help", *subcommand)

    def global_flags(self) -> tuple[str, ...]:
        """Print all global flags."""
        return (str(self.binary), "flags")

    def _plain_flags(self) -> tuple[str, ...]:
        return (str(self.binary), "--root", str(self.root))

    def _sandbox_flags(self, bundle: Path, *, disk_bytes: int) -> tuple[str, ...]:
        """The flags that make the sandbox what it is: one place, the same for create, start and restore."""
        return (
            *self._plain_flags(),
            "--log",
            str(bundle / "runsc.log"),
            "--log-format",
            "json",
            "--panic-log",
            str(bundle / "panic.log"),
            "--platform",
            "systrap",
            "--network",
            NETWORK_KIND,
            f"--overlay2={OVERLAY_MODE}{f',size={disk_bytes}' if self.features.overlay_size else ''}",
            "--file-access=exclusive",
            "--host-uds=none",
            "--host-fifo=none",
            "--net-raw=false",
            *(("--allow-suid",) if self.features.suid_flag else ()),
            *(("--gofer-network-namespace=new",) if self.features.gofer_netns else ()),
            *(("--in-sandbox-cgroup=v2",) if self.features.inner_cgroup else ()),
            *(("--allow-rootfs-tar-annotation",) if self.features.rootfs_tar else ()),
        )
