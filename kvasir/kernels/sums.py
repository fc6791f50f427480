"""Sums of weighted outputs as integers (docs/reference/kx1.md, step 7): a worker's answer if a backbone asks for sums.

Called by the worker, the dispatcher and the audits. Computed in C if the library is built, else in numpy with the same
bits. Integer addition is associative, so a row's total does not depend on which worker summed which of its pairs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvasir.errors import KernelError
from kvasir.experts import FloatRows
from kvasir.kernels import native
from kvasir.kernels.api import Pairs
from kvasir.kernels.memory_pool import POOL
from kvasir.kernels.native import address
from kvasir.kernels.oracle import sums as sums_oracle

BLOCK = 256
LIMIT = 1 << 26  # of one pair's integer
MAX_PAIRS_OF_ROW = 31  # 31 * 2^26 < 2^31
MIN_EXPONENT, MAX_EXPONENT = -180, 127

RowSums = npt.NDArray[np.int32]  # [n_rows, d]
Exponents = npt.NDArray[np.int32]  # [n_rows]
Weights = npt.NDArray[np.float32]  # [n_pairs]


def sum_outputs(
    outputs: FloatRows, weights: Weights, pair_rows: Pairs, exponents: Exponents, *, n_threads: int = 1
) -> RowSums:
    """Return Σ over each row's pairs of round(weight · output / 2^exponent): i32 [n_rows, d] from f32 [n_pairs, d].

    `pair_rows` [n_pairs] is the row of each pair, `exponents` [n_rows] has one for each row. Raises KernelError for
    weights that are not finite, exponents out of range, more than 31 pairs of a row, and shapes that disagree.
    """
    check_sum_request(weights, pair_rows, exponents, len(exponents))
    if outputs.shape[:1] != pair_rows.shape:
        raise KernelError(f"there are {len(outputs)} outputs and {len(pair_rows)} pairs")
    if not native.available():
        return sums_oracle.add(outputs, weights, pair_rows, exponents, len(exponents))
    outputs = np.ascontiguousarray(outputs, np.float32)
    weights, pair_rows = np.ascontiguousarray(weights), np.ascontiguousarray(pair_rows, np.int32)
    exponents = np.ascontiguousarray(exponents, np.int32)
    sums = POOL.integers((len(exponents), outputs.shape[1]))
    sums.fill(0)
    native.load().lib.kv_sums_add(
        address(outputs),
        address(weights),
        address(pair_rows),
        len(pair_rows),
        address(exponents),
        outputs.shape[1],
        address(sums),
        n_threads,
    )
    return sums


def check_sum_request(weights: Weights, pair_rows: Pairs, exponents: Exponents, n_rows: int) -> None:
    """Raise KernelError that names the value for an invalid request for sums."""
    if weights.shape != pair_rows.shape or weights.dtype != np.float32:
        raise KernelError(f"weights are {weights.dtype} {weights.shape}; f32 {pair_rows.shape} is needed")
    if not np.isfinite(weights).all():
        raise KernelError(f"weight {int(np.flatnonzero(~np.isfinite(weights))[0])} is not finite")
    if exponents.shape != (n_rows,):
        raise KernelError(f"there are {len(exponents)} exponents for {n_rows} rows")
    if n_rows and not (exponents.min() >= MIN_EXPONENT and exponents.max() <= MAX_EXPONENT):
        raise KernelError(
            f"exponents are {exponents.min()} to {exponents.max()}; they must be from {MIN_EXPONENT} to {MAX_EXPONENT}"
        )
    if not len(pair_rows):
        return
    if pair_rows.min() < 0 or pair_rows.max() >= n_rows:
        raise KernelError(f"pairs belong to rows {pair_rows.min()} to {pair_rows.max()}; there are {n_rows} rows")
    most = int(np.bincount(pair_rows, minlength=1).max())
    if most > MAX_PAIRS_OF_ROW:
        raise KernelError(f"a row has {most} pairs; sums hold at most {MAX_PAIRS_OF_ROW}")


def sums_to_float(sums: RowSums, exponents: Exponents, *, n_threads: int = 1) -> FloatRows:
    """Return sums · 2^exponents as f32 [n_rows, d], rounded once, to nearest even."""
    if not native.available():
        return sums_oracle.to_float(sums, exponents)
    sums, exponents = np.ascontiguousarray(sums, np.int32), np.ascontiguousarray(exponents, np.int32)
    out = np.empty(sums.shape, np.float32)
    lib = native.load().lib
    lib.kv_sums_to_float(address(sums), address(exponents), *sums.shape, address(out), n_threads)
    return out


def pack_sums(sums: RowSums) -> npt.NDArray[np.uint8]:
    """Pack sums for the wire: for each 256 values a width in bits, then each value with that width."""
    sums = np.ascontiguousarray(sums, np.int32)
    _check_width(sums.shape[1])
    if not native.available():
        return np.frombuffer(sums_oracle.pack(sums), np.uint8)
    packed = POOL.empty(packed_bound(*sums.shape))
    n_bytes = native.load().lib.kv_sums_pack(address(sums), *sums.shape, address(packed))
    return packed[:n_bytes]


def unpack_sums(packed: npt.NDArray[np.uint8], n_rows: int, d: int) -> RowSums:
    """Unpack sums i32 [n_rows, d]. Raises KernelError for bytes that `pack_sums` does not write."""
    _check_width(d)
    packed = np.ascontiguousarray(packed, np.uint8)
    if not native.available():
        return sums_oracle.unpack(packed.tobytes(), n_rows, d)
    sums = POOL.integers((n_rows, d))
    error = native.load().lib.kv_sums_unpack(address(packed), len(packed), n_rows, d, address(sums))
    if error == native.BAD_WIDTH:
        raise KernelError("a block of packed sums has a width that is not the smallest one of 0, 8, 12, 16, 24 and 32")
    if error:
        raise KernelError(f"{len(packed)} bytes of packed sums are not {n_rows} rows of {d} values")
    return sums


def packed_bound(n_rows: int, d: int) -> int:
    """Return the most bytes that packed sums can have."""
    return n_rows * (d // BLOCK) * (1 + 4 * BLOCK)


def _check_width(d: int) -> None:
    if d % BLOCK:
        raise KernelError(f"rows of sums have {d} values; a multiple of {BLOCK} is needed")
