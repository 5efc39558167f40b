"""The C library's heap: pieces of a transfer take the place of those before them, and a pause gives that memory back.

By default glibc returns freed pieces of 128 KiB and more to the kernel, and the next one is faulted in anew, page by
page. That was half of the time of a transfer on the host, and a page fault in gVisor costs several of the host's.
"""

from __future__ import annotations

import ctypes
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
KEPT_BYTES_MAX = 16 * 1024 * 1024  # of freed memory
OWN_PAGES_FROM_BYTES = 4 * 1024 * 1024  # above the largest piece, and below a body that is held whole


def _libc(name: str) -> Any:  # noqa: ANN401 - a C function
    return getattr(ctypes.CDLL(None), name, None)


def keep_freed_memory(*, one_arena: bool) -> None:
    """Have freed memory at hand for the next piece. Without glibc it does nothing.

    ``one_arena``: for a process whose pieces are freed by other threads than those that made them.
    """
    mallopt = _libc("mallopt")
    if mallopt is not None:
        if one_arena:
            mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, OWN_PAGES_FROM_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def give_back_freed_memory() -> None:
    """Return freed pages to the kernel: a snapshot need not hold them."""
    malloc_trim = _libc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)
