"""Turn a distribution's bare tree into a template's: torpor's own files in, the host's traces out.

Blocking file work; nothing here runs a program. Every write replaces what was there without following links, and no
path is written to, emptied or removed but through ``_inside``: a link in the tree may point outside it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from torpor.adapters.templates.spec import GUEST_LIB, SETTINGS_FILE, WARMUP_FILE, WORKSPACE, TemplateSpec, base_env
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
_SITE_PATTERNS = ("usr/lib/python3/dist-packages", "usr/local/lib/python3.*/site-packages")


def clean_layer(root: Path) -> None:
    """Take out of a bare tree what is the host's or the build's own. Idempotent."""
    for relative in _EMPTIED:
        _empty(_inside(root, relative))
    for relative in _REMOVED:
        _inside(root, relative).unlink(missing_ok=True)
    drop_unused(root)


def drop_unused(root: Path) -> None:
    """Take out what nobody runs in a sandbox; of a layer too, what it added alone."""
    for pattern in _UNUSED_PATTERNS:
        for unused in _found(root, pattern):
            shutil.rmtree(unused)


def add_torpor(root: Path, spec: TemplateSpec, *, guest_lib: Path, sources: str | None) -> None:
    """Add the guest's packages, the warm-up, the user, and the slots that the resume contract needs.

    ``guest_lib``: the folder that holds ``torpor_guest`` and ``torpor_wire``. ``sources``: the apt sources the tree is
    to have, without credentials; None: it keeps its own. Idempotent. Raises: InvalidArgument if a guest package is
    missing.
    """
    for path, mode in _FOLDERS:
        _folder(root, path, mode)
    _copy_guest(root, guest_lib)
    _write(root, WARMUP_FILE, spec.warmup or "pass\n")
    _write(root, SETTINGS_FILE, _settings(spec))
    for folder in _site_folders(root):
        _write(root, f"{folder}/torpor.pth", f"{GUEST_LIB}\n")
    # These change at every resume: the agent writes them, and an image may not carry a value of them.
    _write(root, "/etc/machine-id", "")
    _write(root, "/etc/hostname", "torpor\n")
    _write(root, "/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 torpor\n")
    _write(root, "/etc/torpor/resolv.conf", "")
    _write(root, "/etc/torpor/ca-bundle.pem", "")  # mounted over: else the engine makes it, and changes the tree
    _link(root, "/etc/resolv.conf", "torpor/resolv.conf")
    _link(root, "/var/lib/dbus/machine-id", "/etc/machine-id", only_if_present=True)
    if sources is not None:
        _write_sources(root, sources)
    _add_user(root)
    for key in _found(root, "etc/ssh/ssh_host_*"):
        key.unlink()  # an identity, which clones may not share
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
        if target.is_dir():
            shutil.rmtree(target)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        for path in (target, *target.rglob("*")):
            os.chown(path, 0, 0)
            executable = path.is_dir() or bool(path.stat().st_mode & stat.S_IXUSR)
            path.chmod(0o755 if executable else 0o644)


def _write_sources(root: Path, sources: str) -> None:
    _write(root, "/etc/apt/sources.list", "")
    folder = _inside(root, "etc/apt/sources.list.d")
    _empty(folder)
    if folder.is_dir():
        _write(root, "/etc/apt/sources.list.d/distribution.sources", sources)


def _settings(spec: TemplateSpec) -> str:
    """What the guest agent lays over its own defaults for all that it starts."""
    known = base_env()
    env = {name: value for name, value in sorted(spec.env.items()) if known.get(name) != value}
    return json.dumps({"env": env, "user": spec.user, "workdir": spec.workdir}, sort_keys=True) + "\n"


def _site_folders(root: Path) -> list[str]:
    found = [
        "/" + str(folder.relative_to(root))
        for pattern in _SITE_PATTERNS
        for folder in sorted(root.glob(pattern))
        if folder.is_dir()
    ]
    return found or ["/usr/lib/python3/dist-packages"]


def _add_user(root: Path) -> None:
    """The user ``user``, who may do as root without a password where the tree has sudo. Another of that id stays."""
    rows = [line.split(":") for line in _lines(root / "etc/passwd")]
    home = f"/home/{USER_NAME}"
    if not any(row[0] == USER_NAME or row[2:3] == [str(USER_ID)] for row in rows):
        _append(root, "etc/passwd", f"{USER_NAME}:x:{USER_ID}:{USER_ID}::{home}:/bin/bash")
        _append(root, "etc/group", f"{USER_NAME}:x:{USER_ID}:")
        _append(root, "etc/shadow", f"{USER_NAME}:!:18262:0:99999:7:::")
        _append(root, "etc/gshadow", f"{USER_NAME}:!::")
        _folder(root, home, 0o755)
        os.chown(root / home.lstrip("/"), USER_ID, USER_ID)
        os.chown(_inside(root, WORKSPACE), USER_ID, USER_ID)
    if (root / "etc/sudoers.d").is_dir():
        _write(root, "/etc/sudoers.d/torpor", f"{USER_NAME} ALL=(ALL:ALL) NOPASSWD: ALL\n")
        _inside(root, "etc/sudoers.d/torpor").chmod(0o440)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []


def _append(root: Path, relative: str, line: str) -> None:
    path = _inside(root, relative)
    lines = _lines(path)
    mode = stat.S_IMODE(path.stat().st_mode) if path.is_file() else 0o644
    owner = (path.stat().st_uid, path.stat().st_gid) if path.is_file() else (0, 0)
    path.unlink(missing_ok=True)  # not through a link
    path.write_text("\n".join([*lines, line]) + "\n")
    path.chmod(mode)
    os.chown(path, *owner)


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


def _found(root: Path, pattern: str) -> list[Path]:
    """What the pattern finds in the tree. Raises: EngineError if a link leads it out."""
    return [_inside(root, str(path.relative_to(root))) for path in sorted(root.glob(pattern))]


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
