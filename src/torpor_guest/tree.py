"""Directories and what is in them: list, stat, make, move, remove."""

from __future__ import annotations

import errno
import grp
import heapq
import os
import pwd
import shutil
import stat
from typing import Any

from torpor_guest.bursts import Burst
from torpor_guest.files import absolute, make_folders, owner_of, translated
from torpor_guest.settings import Refused
from torpor_wire import flag, integer, optional_text

PAGE_MAX = 10_000


def list_folder(burst: Burst) -> dict[str, Any]:
    """One page of a directory, by name. Raises: Refused, BadMessage."""
    path, count, after = absolute(burst, "list"), integer(burst.fields, "limit"), optional_text(burst.fields, "after")
    if not 1 <= count <= PAGE_MAX:
        raise Refused("invalid_argument", f"cannot list {count} entries: give 1 to {PAGE_MAX}", field="limit")
    with translated("list", path):
        names = heapq.nsmallest(count + 1, (name for name in os.listdir(path) if after is None or name > after))
    entries = []
    for name in names[:count]:
        try:
            entries.append(entry(os.path.join(path, name)))
        except FileNotFoundError:
            continue  # it has gone meanwhile
    return {"entries": entries, "next_after": names[count - 1] if len(names) > count else None}


def stat_path(burst: Burst) -> dict[str, Any]:
    """One entry. Raises: Refused, BadMessage."""
    path = absolute(burst, "stat")
    with translated("stat", path):
        return entry(path)


def make_folder(burst: Burst) -> dict[str, Any]:
    """A directory with its parents. Raises: Refused, BadMessage."""
    path, mode = absolute(burst, "make"), integer(burst.fields, "mode") & 0o7777
    owner = owner_of(burst)
    with translated("make", path):
        if os.path.isdir(path):
            return {"made": False}
        make_folders(path, owner)
        os.chmod(path, mode)
    return {"made": True}


def move(burst: Burst) -> None:
    """Rename; across file systems copy and remove. Raises: Refused, BadMessage."""
    path, to = absolute(burst, "move"), absolute(burst, "move", "to")
    with translated("move", path):
        os.lstat(path)
    with translated("move to", to):
        make_folders(os.path.dirname(to.rstrip("/")) or "/", None)
        try:
            os.rename(path, to)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.move(path, to)


def remove(burst: Burst) -> None:
    """Remove a file, link or directory. Raises: Refused, BadMessage."""
    path = absolute(burst, "remove")
    if path.rstrip("/") == "":
        raise Refused("invalid_argument", "cannot remove '/': it is the session's root", field="path")
    with translated("remove", path):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
        elif flag(burst.fields, "recursive"):
            shutil.rmtree(path)
        else:
            os.rmdir(path)


def entry(path: str) -> dict[str, Any]:
    """FileInfo's fields. Raises: OSError."""
    found = os.lstat(path)
    kind = "other"
    for name, is_kind in (("file", stat.S_ISREG), ("directory", stat.S_ISDIR), ("symlink", stat.S_ISLNK)):
        kind = name if is_kind(found.st_mode) else kind
    return {
        "path": path,
        "kind": kind,
        "size_bytes": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "owner": user_name(found.st_uid),
        "group": group_name(found.st_gid),
        "modified_at_s": found.st_mtime,
        "target": os.readlink(path) if kind == "symlink" else None,
    }


def user_name(uid: int) -> str:
    """The name, or the number in decimal."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """The name, or the number in decimal."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
