"""Lay a tar over a tree: a program of its own, which locks itself into the tree before it reads the first name.

``python unpack.py ROOT TAR``: the tar may be plain or compressed by gzip, bzip2, xz or zstd.
Removals are understood in both spellings: container layers' ``.wh.NAME`` and ``.wh..wh..opq``, and overlays' character
devices 0/0 and attribute ``trusted.overlay.opaque``. Device nodes are refused: none belongs into a sandbox.

# SAFETY: names and links of the tar are hostile. After chroot(2) none of them leads out of the tree.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import sys
import tarfile
from typing import IO, Any

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_OPAQUE_ATTRIBUTES = ("SCHILY.xattr.trusted.overlay.opaque", "SCHILY.xattr.user.overlay.opaque")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPED_TOPS = frozenset({"dev", "proc", "sys"})


def lay_over(archive: tarfile.TarFile, root: str = "/") -> None:
    """Lay the members over ``root``, in order. Raises: OSError, tarfile.TarError."""
    made: list[tarfile.TarInfo] = []
    gone: set[str] = set()
    for member in archive:
        parts = _parts(member.name)
        if not parts or parts[0] in _SKIPPED_TOPS:
            continue
        member.name = "/".join(parts)
        if _is_removal(member) or (member.islnk() and "/".join(_parts(member.linkname)) in gone):
            # gVisor's whiteouts share an inode, and so all but the first are written as links to it.
            gone.add(member.name)
            _remove(os.path.join(root, member.name))
            continue
        _lay_one(archive, member, root)
        if member.isdir():
            made.append(member)
    for folder in reversed(made):  # filling a folder has changed its time
        with contextlib.suppress(OSError):
            os.utime(os.path.join(root, folder.name), (folder.mtime, folder.mtime))


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise tarfile.TarError(f"the name {name!r} leads upwards")
    return parts


def _is_removal(member: tarfile.TarInfo) -> bool:
    return member.ischr() and (member.devmajor, member.devminor) == (0, 0)


def _lay_one(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    path = os.path.join(root, member.name)
    above, name = os.path.split(path)
    if name == _OPAQUE:
        _empty(above)
    elif name.startswith(_WHITEOUT):
        _remove(os.path.join(above, name[len(_WHITEOUT) :]))
    elif member.isdev() and not member.isfifo():
        return
    else:
        os.makedirs(above, exist_ok=True)
        _make(archive, member, path, root)


def _make(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, root: str) -> None:
    if member.isdir():
        if any(member.pax_headers.get(name) == "y" for name in _OPAQUE_ATTRIBUTES):
            _remove(path)
        if not os.path.isdir(path) or os.path.islink(path):
            _remove(path)
            os.mkdir(path)
    else:
        _remove(path)
        _fill(archive, member, path, root)
    os.chown(path, member.uid, member.gid, follow_symlinks=False)
    if not member.issym():
        os.chmod(path, stat.S_IMODE(member.mode))
        os.utime(path, (member.mtime, member.mtime))


def _fill(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, root: str) -> None:
    if member.issym():
        os.symlink(member.linkname, path)
    elif member.islnk():
        os.link(os.path.join(root, member.linkname.lstrip("/")), path, follow_symlinks=False)
    elif member.isfifo():
        os.mkfifo(path)
    else:
        source = archive.extractfile(member)
        assert source is not None, member.name
        with open(path, "xb") as file:
            shutil.copyfileobj(source, file, 1 << 20)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)


def _empty(folder: str) -> None:
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            _remove(os.path.join(folder, name))


def opened(file: IO[bytes]) -> tarfile.TarFile:
    """A stream over the tar in ``file``, whatever compresses it."""
    magic = file.read(4)
    file.seek(0)
    stream: Any = file
    if magic == _ZSTD_MAGIC:
        import zstandard  # noqa: PLC0415 - before the chroot, and only where it is wanted

        stream = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file))
        return tarfile.open(fileobj=stream, mode="r|")
    return tarfile.open(fileobj=stream, mode="r|*")


def main(arguments: list[str]) -> int:
    """0, or 1 with the reason on stderr."""
    root, tar = arguments
    with open(tar, "rb") as file:
        try:
            archive = opened(file)
            str(b"", "utf-8"), "".encode("idna")
            os.chroot(root)
            os.chdir("/")
            lay_over(archive)
        except (OSError, tarfile.TarError, EOFError) as error:
            print(f"cannot unpack {tar}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
