"""Turn a distribution's bare tree into a template's: torpor's own files in, the host's traces out.

Blocking file work; nothing here runs a program. Every write replaces what was there without following links, since a
link in the tree may point outside it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from torpor.adapters.templates.spec import GUEST_LIB, WARMUP_FILE, WORKSPACE, TemplateSpec
from torpor.domain.errors import EngineError, InvalidArgument

GUEST_PACKAGES = ("torpor_guest", "torpor_wire")
USER_NAME = "user"
USER_ID = 1000

# 2020-01-01T00:00:00Z: torpor's own files are of one age, so that byte code made from them is the same every time.
FIXED_MTIME_S = 1_577_836_800

_FOLDERS = (
    ("/etc/torpor", 0o755),
    ("/etc/torpor/after-restore.d", 0o755),
    ("/etc/torpor/before-snapshot.d", 0o755),
    ("/opt/torpor", 0o755),
    (GUEST_LIB, 0o755),
    ("/run/torpor", 0o755),
    (WORKSPACE, 0o755),
)
# Logs, lists and caches: not wanted in a template, and different at every build.
_EMPTIED = ("dev", "tmp", "var/cache/apt", "var/cache/debconf", "var/lib/apt/lists", "var/log", "var/tmp")
_REMOVED = (
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
    "var/lib/dpkg/available-old",
    "var/lib/dpkg/status-old",
    "var/cache/ldconfig/aux-cache",
)
# Test suites of libraries: a sixth of the tree, and pandas' alone is most of it.
_UNUSED_PATTERNS = (
    "usr/lib/python3/dist-packages/pandas/tests",
    "usr/lib/python3/dist-packages/numpy/tests",
    "usr/lib/python3/dist-packages/numpy/*/tests",
    "usr/lib/python3/dist-packages/IPython/*/tests",
)
_PTH_FILE = "/usr/lib/python3/dist-packages/torpor.pth"


def clean_layer(root: Path) -> None:
    """Take out of a bare tree what is the host's or the build's own. Idempotent."""
    for relative in _EMPTIED:
        _empty(root / relative)
    for relative in _REMOVED:
        (root / relative).unlink(missing_ok=True)
    for pattern in _UNUSED_PATTERNS:
        for unused in sorted(root.glob(pattern)):
            shutil.rmtree(unused)


def add_torpor(root: Path, spec: TemplateSpec, *, guest_lib: Path, sources: str) -> None:
    """Add the guest's packages, the warm-up, the user, and the slots that the resume contract needs.

    ``guest_lib``: the folder that holds ``torpor_guest`` and ``torpor_wire``. ``sources``: the apt sources the tree is
    to have, without credentials. Raises: InvalidArgument if a guest package is missing; EngineError if the tree
    already has a user of that id.
    """
    for path, mode in _FOLDERS:
        _folder(root, path, mode)
    _copy_guest(root, guest_lib)
    _write(root, WARMUP_FILE, spec.warmup or "pass\n")
    _write(root, _PTH_FILE, f"{GUEST_LIB}\n")
    # These change at every resume: the agent writes them, and an image may not carry a value of them.
    _write(root, "/etc/machine-id", "")
    _write(root, "/etc/hostname", "torpor\n")
    _write(root, "/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 torpor\n")
    _write(root, "/etc/torpor/resolv.conf", "")
    _link(root, "/etc/resolv.conf", "torpor/resolv.conf")
    _link(root, "/var/lib/dbus/machine-id", "/etc/machine-id", only_if_present=True)
    _write_sources(root, sources)
    _add_user(root)
    _settle_times(root, ["/opt/torpor"])


def check_tree(root: Path) -> None:
    """Refuse a tree that would not run: wrong owners, no Python, no byte code. Raises: EngineError."""
    for relative in (".", "etc", "usr", "usr/bin", "opt/torpor/lib"):
        info = os.lstat(root / relative)
        if (info.st_uid, info.st_gid) != (0, 0):
            raise EngineError(
                f"cannot use the tree: /{relative} is owned by {info.st_uid}:{info.st_gid}, not by root; "
                "build as root on a file system that keeps owners"
            )
    if not (root / "usr/bin/python3").exists() and not (root / "usr/bin/python3").is_symlink():
        raise EngineError("cannot use the tree: it has no /usr/bin/python3; add the package python3 to the template")
    missing = [
        folder
        for folder in ("opt/torpor/lib/torpor_guest", "opt/torpor/lib/torpor_wire")
        if not any((root / folder / "__pycache__").glob("*.pyc"))
    ]
    if missing:
        raise EngineError(f"cannot use the tree: /{missing[0]} was not compiled")


def _copy_guest(root: Path, guest_lib: Path) -> None:
    for package in GUEST_PACKAGES:
        source = guest_lib / package
        if not (source / "__init__.py").is_file():
            raise InvalidArgument(f"cannot copy the guest agent: {source} is not a Python package", field="guest_lib")
        target = _inside(root, f"{GUEST_LIB}/{package}")
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        for path in (target, *target.rglob("*")):
            os.chown(path, 0, 0)
            executable = path.is_dir() or bool(path.stat().st_mode & stat.S_IXUSR)
            path.chmod(0o755 if executable else 0o644)


def _write_sources(root: Path, sources: str) -> None:
    _write(root, "/etc/apt/sources.list", "")
    folder = root / "etc/apt/sources.list.d"
    _empty(folder)
    if folder.is_dir():
        _write(root, "/etc/apt/sources.list.d/distribution.sources", sources)


def _add_user(root: Path) -> None:
    passwd = root / "etc/passwd"
    taken = [line for line in passwd.read_text().splitlines() if line.split(":")[2] == str(USER_ID)]
    if taken:
        raise EngineError(f"cannot add the user {USER_NAME}: the id {USER_ID} belongs to {taken[0].split(':')[0]}")
    home = f"/home/{USER_NAME}"
    _append(root / "etc/passwd", f"{USER_NAME}:x:{USER_ID}:{USER_ID}::{home}:/bin/bash\n")
    _append(root / "etc/group", f"{USER_NAME}:x:{USER_ID}:\n")
    _append(root / "etc/shadow", f"{USER_NAME}:!:18262:0:99999:7:::\n")
    _append(root / "etc/gshadow", f"{USER_NAME}:!::\n")
    _folder(root, home, 0o755)
    os.chown(root / home.lstrip("/"), USER_ID, USER_ID)


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line)


def _inside(root: Path, path: str) -> Path:
    """The host path of a path in the tree, with links above its last part resolved inside the tree."""
    here = root
    parts = [part for part in path.split("/") if part]
    for part in parts[:-1]:
        here /= part
        if here.is_symlink():
            target = here.readlink()
            if target.is_absolute() or ".." in target.parts:
                raise EngineError(f"cannot write {path} into the tree: {here.name} is a link to {target}")
            here = here.parent / target
    return here / parts[-1]


def _folder(root: Path, path: str, mode: int) -> None:
    target = _inside(root, path)
    target.mkdir(parents=True, exist_ok=True)
    os.chown(target, 0, 0)
    target.chmod(mode)


def _write(root: Path, path: str, text: str) -> None:
    target = _inside(root, path)
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(0o644)
    os.utime(target, (FIXED_MTIME_S, FIXED_MTIME_S))


def _link(root: Path, path: str, to: str, *, only_if_present: bool = False) -> None:
    target = _inside(root, path)
    if only_if_present and not target.is_symlink() and not target.exists():
        return
    target.unlink(missing_ok=True)
    target.symlink_to(to)


def _empty(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _settle_times(root: Path, folders: Iterable[str]) -> None:
    for folder in folders:
        top = _inside(root, folder)
        for path in (top, *top.rglob("*")):
            os.utime(path, (FIXED_MTIME_S, FIXED_MTIME_S), follow_symlinks=False)
