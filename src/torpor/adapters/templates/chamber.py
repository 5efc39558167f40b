"""PURE: how a command is run in a tree: namespaces that die with their builder, an overlay, few capabilities.

A builder that is killed leaves nothing: the mounts are a namespace's own, and what was started ends with it. This
protects the host from mistakes of a build, not from malice: build only from files that you would run as root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

# Where a step finds what is lent to it for its time: below /run, of which nothing stays.
LENT = "/run/torpor-build"

# What container builders give, without MKNOD: a block device in the tree would be the host's disk.
_CAPABILITIES = (
    "audit_write",
    "chown",
    "dac_override",
    "fowner",
    "fsetid",
    "kill",
    "net_bind_service",
    "setfcap",
    "setgid",
    "setpcap",
    "setuid",
    "sys_chroot",
)

# A fixed text; all that differs comes as arguments: root, overlay options or "", (source, name)*, "--", argv.
_FURNISH = """
set -e
root=$1; options=$2; shift 2
[ -z "$options" ] || mount -t overlay overlay -o "$options" "$root"
for name in proc dev run tmp etc; do  # a link would lead to the host's own
    [ ! -L "$root/$name" ] || { echo "cannot use the tree: /$name is a link" >&2; exit 1; }
done
mkdir -p "$root/proc" "$root/dev" "$root/run" "$root/tmp" "$root/etc"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm" "$root/dev/pts"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=755,nosuid tmpfs "$root/run"
mkdir "$root/run/lock" "$root/run/torpor-build"
for name in resolv.conf hosts; do
    rm -f "$root/etc/$name"
    [ ! -e "/etc/$name" ] || cp -L "/etc/$name" "$root/etc/$name"
done
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir "$root/run/torpor-build/$2"; else : >"$root/run/torpor-build/$2"; fi
    mount --bind "$1" "$root/run/torpor-build/$2"
    mount -o remount,bind,ro "$root/run/torpor-build/$2"
    shift 2
done
shift
exec "$@"
"""

_MOUNT = """
set -e
root=$1; options=$2; shift 2
[ -z "$options" ] || mount -t overlay overlay -o "$options" "$root"
exec "$@"
"""


def overlay_options(lowers: Sequence[str], *, upper: Path | None = None, work: Path | None = None) -> str:
    """Mount options; ``lowers`` from the lowest up. Without ``upper`` it is read-only (and needs two lowers).

    Redirects and metadata copies are off, so that an upper folder alone means the same on any kernel.
    """
    stack = f"lowerdir={':'.join(reversed(lowers))}"
    if upper is None:
        return stack
    return f"{stack},upperdir={upper},workdir={work},redirect_dir=off,metacopy=off,index=off"


def apart_argv(script: str, *arguments: str | Path) -> tuple[str, ...]:
    """Run a fixed script in namespaces of its own, which end when the builder does."""
    return (
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--propagation", "private"),
        *("/bin/sh", "-c", script, "sh"),
        *(str(argument) for argument in arguments),
    )


def outside_argv(root: Path, options: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Run a program of the host that works on the furnished tree."""
    return apart_argv(_FURNISH, root, options, "--", *argv)


def inside_argv(
    root: Path, options: str, argv: Sequence[str], lent: Mapping[str, Path] = MappingProxyType({})
) -> tuple[str, ...]:
    """Run a program of the tree in the tree. ``lent``: files and folders of the host, by their names below LENT."""
    bounds = "-all," + ",".join(f"+{name}" for name in _CAPABILITIES)
    pairs = [word for name, source in sorted(lent.items()) for word in (str(source), name)]
    confined = ("setpriv", f"--bounding-set={bounds}", "--inh-caps=-all", "chroot", str(root), *argv)
    return apart_argv(_FURNISH, root, options, *pairs, "--", *confined)


def mounted_argv(root: Path, options: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Run a program of the host that looks at the stacked tree, with nothing else mounted in it."""
    return apart_argv(_MOUNT, root, options, *argv)
