"""Large memory that is used again: what answers and messages are written into, time after time.

The relay, both ends of its sockets and the expert kernel take from one pool a process. Memory that is new each time
must be zeroed and mapped by the system page by page, which for answers of megabytes costs more than writing them.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref

import numpy as np
import numpy.typing as npt

LARGE_BYTES = 512 * 1024  # what is smaller is left to numpy, whose allocator keeps it
ROUND_BYTES = 512 * 1024
MAX_BLOCK_BYTES = 32 * 1024 * 1024  # larger ones are not kept
MAX_FREE_BYTES = 48 * 1024 * 1024  # that are kept while nobody uses them

Shape = tuple[int, ...]


class MemoryPool:
    """Blocks that come back by themselves when no array or view of them is left. Any thread may use it."""

    def __init__(self, max_free_bytes: int = MAX_FREE_BYTES) -> None:
        self._max_free_bytes = max_free_bytes
        self._free: list[mmap.mmap] = []  # changed by single operations only: blocks may come back at any moment

    @property
    def free_bytes(self) -> int:
        """Bytes that are kept and used by nobody."""
        return sum(map(len, self._free.copy()))

    def empty(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """An array [n_bytes] whose values are whatever they are. Pages of new memory are mapped when they are used."""
        if not LARGE_BYTES <= n_bytes <= MAX_BLOCK_BYTES:
            return np.empty(n_bytes, np.uint8)
        block = self._taken(n_bytes)
        if block is None:
            block = mmap.mmap(-1, -(-n_bytes // ROUND_BYTES) * ROUND_BYTES)
        array = np.frombuffer(block, np.uint8, n_bytes)
        weakref.finalize(array, self._take_back, block).atexit = False  # views hold the array, so it goes last
        return array

    def floats(self, shape: Shape) -> npt.NDArray[np.float32]:
        """An array of f32, as `empty`."""
        return self.empty(4 * math.prod(shape)).view(np.float32).reshape(shape)

    def integers(self, shape: Shape) -> npt.NDArray[np.int32]:
        """An array of i32, as `empty`."""
        return self.empty(4 * math.prod(shape)).view(np.int32).reshape(shape)

    def _taken(self, n_bytes: int) -> mmap.mmap | None:
        """The smallest free block that is large enough, which is free no longer."""
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
                del self._free[0]  # the one that nobody has wanted for the longest


POOL = MemoryPool()
