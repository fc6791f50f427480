"""Memory that is used again: never while anything still looks at it, and never without bounds."""

from __future__ import annotations

import gc
import threading

import numpy as np

from kvasir.kernels.memory_pool import LARGE_BYTES, MAX_BLOCK_BYTES, MemoryPool


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_memory_is_used_again_when_the_last_view_is_gone() -> None:
    pool = MemoryPool()
    array = pool.empty(LARGE_BYTES + 5)
    assert (len(array), str(array.dtype), array.flags.writeable) == (LARGE_BYTES + 5, "uint8", True)
    where = address(array)
    row = array[8 : 8 + 4096].view(np.float32).reshape(2, -1)[1]
    del array
    assert pool.free_bytes == 0
    other = pool.empty(LARGE_BYTES)
    assert address(other) != where
    view = memoryview(row)
    del row
    assert pool.free_bytes == 0
    values = np.frombuffer(view, np.uint8)
    del view
    assert pool.free_bytes == 0
    del values
    gc.collect()
    assert pool.free_bytes == 2 * LARGE_BYTES  # in whole steps
    assert address(pool.empty(LARGE_BYTES + 1)) == where


def test_the_smallest_block_that_fits_is_taken() -> None:
    pool = MemoryPool()
    small, large = pool.empty(LARGE_BYTES), pool.empty(4 * LARGE_BYTES)
    where_small, where_large = address(small), address(large)
    del large, small
    again = [pool.empty(LARGE_BYTES), pool.empty(LARGE_BYTES)]
    assert [address(array) for array in again] == [where_small, where_large]


def test_what_is_kept_is_bounded_and_what_was_wanted_last_stays() -> None:
    pool = MemoryPool(max_free_bytes=7 * LARGE_BYTES)
    first, second, third = (pool.empty(n * LARGE_BYTES) for n in (3, 4, 1))
    wheres = {address(second), address(third)}
    del first, second
    assert pool.free_bytes == 7 * LARGE_BYTES
    del third
    assert pool.free_bytes == 5 * LARGE_BYTES
    again = [pool.empty(LARGE_BYTES), pool.empty(LARGE_BYTES)]
    assert {address(array) for array in again} == wheres


def test_arrays_have_the_shape_and_type_that_is_asked_for() -> None:
    pool = MemoryPool()
    for n_rows in (0, 1, 64):
        floats, integers = pool.floats((n_rows, 3072)), pool.integers((n_rows, 3072))
        assert (floats.shape, str(floats.dtype)) == ((n_rows, 3072), "float32")
        assert (integers.shape, str(integers.dtype)) == ((n_rows, 3072), "int32")
    where = address(integers)
    del integers
    assert address(pool.floats((64, 3072))) == where


def test_small_and_huge_arrays_are_not_kept() -> None:
    pool = MemoryPool()
    for n_bytes in (0, 1, LARGE_BYTES - 1, MAX_BLOCK_BYTES + 1):
        assert len(pool.empty(n_bytes)) == n_bytes
    assert pool.free_bytes == 0
    assert len(pool.empty(MAX_BLOCK_BYTES)) == MAX_BLOCK_BYTES
    assert pool.free_bytes == MAX_BLOCK_BYTES


def test_threads_never_share_a_block() -> None:
    pool = MemoryPool()
    spoiled: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            array = pool.empty(LARGE_BYTES)
            array[::65_536] = number
            if not (array[::65_536] == number).all():
                spoiled.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not spoiled
    assert 0 < pool.free_bytes <= 4 * LARGE_BYTES
