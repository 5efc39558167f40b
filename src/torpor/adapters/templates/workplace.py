"""Where trees are built: one builder per folder, and nothing left behind by one that died.

Work happens in ``.building-*`` beside the result, under a lock that dies with its holder; who takes the lock next
removes what the last one left.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from torpor.domain.errors import EngineError, StorageFull

Progress = Callable[[str], None]

_LOCK_POLL_S = 0.2
_PREFIX = ".building-"


@asynccontextmanager
async def workplace(folder: Path, name: str, progress: Progress) -> AsyncIterator[Path]:
    """A path inside ``folder`` to build at, which does not exist yet; removed at the end unless it was renamed.

    Waits for another builder in ``folder``. Raises: StorageFull.
    """
    with full_disk_named(folder):
        # Closed to others: trees of a distribution hold set-user-id programs.
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await _take(lock, folder, progress)
        for left in folder.glob(f"{_PREFIX}*"):
            await asyncio.to_thread(remove_tree, left)
        here = folder / f"{_PREFIX}{name}"
        try:
            with full_disk_named(folder):
                yield here
        finally:
            # Cancellation arrives here too: the removal is short, and must not be cut off in its turn.
            remove_tree(here)
    finally:
        os.close(lock)


def remove_tree(path: Path) -> None:
    """Remove a tree, first taking off what is mounted below it. Idempotent. Raises: EngineError if a mount stays.

    # SAFETY: a mount left by an aborted package installation may be the host's own /dev or /proc; removing files
    # through it would be removing the host's, so nothing is removed while one is there.
    """
    for mounted in sorted(mounts_below(path), reverse=True):
        _unmount(mounted)
    left = mounts_below(path)
    if left:
        raise EngineError(f"cannot remove {path}: {left[0]} is still mounted; unmount it and repeat")
    if path.is_symlink() or path.is_file():
        path.unlink()
    while path.exists():
        with suppress(FileNotFoundError):  # another remover is at it too
            shutil.rmtree(path)


def mounts_below(path: Path) -> list[str]:
    """Mount points at or below ``path``, as this process sees them."""
    top = str(path.resolve())
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if point == top or point.startswith(top + "/"):
            points.append(point)
    return points


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Turn "no space" and "quota" of any file call inside into StorageFull."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageFull(f"cannot build in {folder}: no space left; free about 1 GB and repeat") from error
        raise


async def _take(lock: int, folder: Path, progress: Progress) -> None:
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                progress(f"waiting for another build in {folder}")
                told = True
            await asyncio.sleep(_LOCK_POLL_S)
        else:
            return


def _unmount(point: str) -> None:
    pid = os.posix_spawnp("umount", ["umount", "--lazy", point], dict(os.environ))
    os.waitpid(pid, 0)
