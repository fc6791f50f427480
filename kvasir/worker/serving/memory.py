"""Keeps the C heap of a worker small on glibc: large buffers go back to the system as soon as they are free.

`__main__` calls it before anything else. Elsewhere than on glibc it does nothing.
"""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
LARGE_BYTES = 1024 * 1024


def keep_heap_small() -> None:
    """Two arenas at most, and every buffer of 1 MiB or more in a mapping of its own.

    Left to itself glibc raises that threshold to 32 MiB once large buffers are freed, and frames of megabytes then
    leave holes in the heap.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_ARENA_MAX, 2)
    mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
    mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
