"""Copying one file into or out of a session, streamed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from torpor.apps.cli import screen, streams
from torpor.apps.cli.options import AsJson, connected, examples
from torpor.domain.errors import InvalidArgument, NotFound, StorageFull

PIECE_BYTES = 256 * 1024
DEFAULT_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Place:
    """A path in a session, or here if ``ref`` is None."""

    ref: str | None
    path: str


def add_to(app: typer.Typer) -> None:
    """The commands of this module."""
    app.command(
        "cp",
        epilog=examples(
            "torpor cp flights.csv analysis:/data/flights.csv",
            "torpor cp analysis:/data/report.html .",
            "torpor cp analysis:/data/big.parquet - | sha256sum",
        ),
    )(copy)


def copy(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A file, ID:path, or - for stdin.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="DST", help="A file, ID:path, or - for stdout.", show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """Copy one file into a session or out of it. An existing file is replaced at once or not at all.

    A target that ends in / takes the source's name; so does a folder on this machine. To copy a folder, pipe a tar:
    `tar c FOLDER | torpor exec ID -- tar x -C /data`.
    """
    here, there = place(source), place(target)
    if (here.ref is None) == (there.ref is None):
        raise InvalidArgument("cannot copy: exactly one side is ID:path, the other a file here or -", field="DST")
    if there.ref is not None:
        _upload(context, here.path, there, as_json=as_json)
    else:
        _download(context, here, there.path, as_json=as_json)


def place(text: str) -> Place:
    """``ID:path`` where a colon comes before any slash, as with scp; otherwise a file here."""
    head, colon, path = text.partition(":")
    if not colon or "/" in head or head in {"", ".", ".."}:
        return Place(None, text)
    if not path:
        raise InvalidArgument(
            f"cannot copy {text!r}: a path follows the colon, for instance {head}:/data/x", field="SRC"
        )
    return Place(head, path)


def _upload(context: typer.Context, source: str, target: Place, *, as_json: bool) -> None:
    assert target.ref is not None
    path = target.path
    if path.endswith("/"):
        if source == "-":
            raise InvalidArgument(f"cannot write stdin to {path}: name the file, for instance {path}x", field="DST")
        path += Path(source).name
    pieces, mode = local_pieces(
        source,
        absent="write ID:path for one in a session",
        folder=f"pipe a tar: `tar c {source} | torpor exec ID -- tar x -C /data`",
    )
    with connected(context) as client, screen.counting(f"copying to {target.ref}", quiet=as_json) as counted:
        written = client.write_file(target.ref, path, counted(pieces), mode=mode)
    if as_json:
        screen.emit(written)
        return
    if written["woken"]:
        screen.note(f"{target.ref} was paused; it was resumed for the copy")
    screen.say(f"{target.ref}:{path}  {screen.size(written['size_bytes'])}")


def _download(context: typer.Context, source: Place, target: str, *, as_json: bool) -> None:
    assert source.ref is not None
    into = Path(target)
    if target != "-" and (into.is_dir() or target.endswith("/")):
        into /= PurePosixPath(source.path).name
    with (
        connected(context) as client,
        screen.counting(f"copying from {source.ref}", quiet=as_json) as counted,
        client.reading(source.ref, source.path) as (pieces, woken),
    ):
        size_bytes = write_stdout(counted(pieces)) if target == "-" else write_local(into, counted(pieces))
    if woken and not as_json:
        screen.note(f"{source.ref} was paused; it was resumed for the copy")
    if target == "-":
        return
    if as_json:
        screen.emit({"path": str(into), "size_bytes": size_bytes, "woken": woken})
    else:
        screen.say(f"{into}  {screen.size(size_bytes)}")


def local_pieces(source: str, *, absent: str, folder: str) -> tuple[Iterator[bytes], int]:
    """A file here, or stdin for ``-``: its pieces and its mode. Raises: NotFound, InvalidArgument.

    ``absent``, ``folder``: what to do if there is no such file, or it is a folder.
    """
    if source == "-":
        try:
            status = os.fstat(sys.stdin.fileno())
            os.read(sys.stdin.fileno(), 0)  # fails now if it is closed, before anything is asked of the server
        except OSError as error:
            raise streams.stdin_failure(error) from error
        return _pieces(sys.stdin.fileno(), "stdin"), DEFAULT_MODE
    try:
        handle = os.open(source, os.O_RDONLY)
        status = os.fstat(handle)
    except FileNotFoundError:
        raise NotFound(f"cannot read {source!r}: there is no such file here; {absent}") from None
    except OSError as error:
        raise InvalidArgument(f"cannot read {source!r}: {error.strerror}", field="SRC") from error
    if stat.S_ISDIR(status.st_mode):
        os.close(handle)
        raise InvalidArgument(f"cannot read {source!r}: it is a folder; {folder}", field="SRC")
    return _closing(handle, source), stat.S_IMODE(status.st_mode) & 0o777


def _closing(handle: int, name: str) -> Iterator[bytes]:
    try:
        yield from _pieces(handle, name)
    finally:
        os.close(handle)


def _pieces(handle: int, name: str) -> Iterator[bytes]:
    try:
        while piece := os.read(handle, PIECE_BYTES):
            yield piece
    except OSError as error:
        raise InvalidArgument(f"cannot read {name!r} to its end: {error.strerror}", field="SRC") from error


def write_stdout(pieces: Iterable[bytes]) -> int:
    """All of it; the number of bytes."""
    size_bytes = 0
    for piece in pieces:
        streams.put(piece)
        size_bytes += len(piece)
    streams.finish()
    return size_bytes


def write_local(target: Path, pieces: Iterable[bytes]) -> int:
    """Beside the target, then over it: a copy that breaks off leaves what was there. Devices are written directly."""
    with _writing(target):
        if target.exists() and not target.is_file():
            with target.open("wb") as device:
                return sum(device.write(piece) for piece in pieces)
        handle, scratch = tempfile.mkstemp(prefix=".torpor-", dir=target.parent)  # a long name has no room for more
        try:
            with os.fdopen(handle, "wb") as file:
                size_bytes = sum(file.write(piece) for piece in pieces)
                umask = os.umask(0)
                os.umask(umask)
                os.fchmod(file.fileno(), target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~umask)
            Path(scratch).replace(target)
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
    return size_bytes


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Failures of writing here, as ours. What comes from the server has its own errors, none of which is an OSError."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(
            f"cannot write {str(target)!r}: the folder {str(target.parent)!r} does not exist here"
        ) from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageFull(
                f"cannot write {str(target)!r}: no room left there; free some space, or choose another folder. "
                "What was there before still is",
                path=str(target),
            ) from error
        raise InvalidArgument(
            f"cannot write {str(target)!r}: {error.strerror}; choose another place", field="DST"
        ) from error
