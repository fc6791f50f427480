"""A pool of large memory blocks that answers and messages are written into.

The relay, both ends of its sockets and the expert kernel share one pool per process. The system zeroes and maps new
memory page by page, which for answers of megabytes costs more than writing them.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref

import numpy as np
import numpy.typing as npt

LARGE_BYTES = 512 * 1024  # smaller blocks are left to numpy, whose allocator reuses them
ROUND_BYTES = 512 * 1024
MAX_BLOCK_BYTES = 32 * 1024 * 1024  # larger ones are not kept
MAX_FREE_BYTES = 48 * 1024 * 1024  # unused bytes that are kept

Shape = tuple[int, ...]


class MemoryPool:
    """Blocks that return to the pool when the last array or view of them is gone. Any thread may use it."""

    def __init__(self, max_free_bytes: int = MAX_FREE_BYTES) -> None:
        self._max_free_bytes = max_free_bytes
        self._free: list[mmap.mmap] = []  # changed by single operations only: blocks may return at any moment

    @property
    def free_bytes(self) -> int:
        """Return the unused bytes in the pool."""
        return sum(map(len, self._free.copy()))

    def empty(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Return an uninitialised array [n_bytes]. Pages of new memory are mapped on first use."""
        if not LARGE_BYTES <= n_bytes <= MAX_BLOCK_BYTES:
            return np.empty(n_bytes, np.uint8)
        block = self._taken(n_bytes)
        if block is None:
            block = mmap.mmap(-1, -(-n_bytes // ROUND_BYTES) * ROUND_BYTES)
        array = np.frombuffer(block, np.uint8, n_bytes)
        weakref.finalize(array, self._take_back, block).atexit = False  # views hold the array, so it is freed last
        return array

    def floats(self, shape: Shape) -> npt.NDArray[np.float32]:
        """Return an uninitialised array of f32."""
        return self.empty(4 * math.prod(shape)).view(np.float32).reshape(shape)

    def integers(self, shape: Shape) -> npt.NDArray[np.int32]:
        """Return an uninitialised array of i32."""
        return self.empty(4 * math.prod(shape)).view(np.int32).reshape(shape)

    def _taken(self, n_bytes: int) -> mmap.mmap | None:
        """Take the smallest free block that is large enough."""
        for block in sorted(self._free.copy(), key=len):
            if len(block) >= n_bytes:
                try:
                    self._free.remove(block)
                except ValueError:  # another thread was faster
                    continue
                return block
        return None

    def _take_back(self, block: mmap.mmap) -> None:
        self._free.append(block)
        while self.free_bytes > self._max_free_bytes:
            with contextlib.suppress(IndexError):  # another thread was faster
                del self._free[0]  # the least recently used


POOL = MemoryPool()
