"""KX1 step 1 in numpy: rows of f32 to blocks of small integers, and their packed form.

Written from docs/reference/kx1.md alone, so that it can check the C code. Integers only: no value is handled as a
floating-point number. It reads no weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvasir.errors import KernelError
from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows

BLOCK = 256  # activations under one exponent
SUB_BLOCK = 32  # activations under one multiplier
N_SUB_BLOCKS = BLOCK // SUB_BLOCK
PACKED_BLOCK = BLOCK + N_SUB_BLOCKS // 2 + 1  # bytes: codes, multipliers (two a byte), exponent
MAX_COLS = 16384
EXPONENT_BIAS = 13  # a packed exponent is kb - 13, at least 1 for a block that is not zero

MAGNITUDE = 0x7FFFFFFF
MANTISSA = 0x7FFFFF
HIDDEN_BIT = 0x800000
LARGEST_EXPONENT = 254  # the exponent field of the largest finite f32

U32 = npt.NDArray[np.uint32]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedRows:
    """Rows after step 1: value ~ code * multiplier * 2^(exponent - 150)."""

    codes: npt.NDArray[np.int8]  # [n, n_blocks, 256], -127..127
    multipliers: npt.NDArray[np.uint8]  # [n, n_blocks, 8], 1..15
    exponents: I32  # [n, n_blocks], kb: 0, or 14..268

    @property
    def n_rows(self) -> int:
        return int(self.codes.shape[0])

    @property
    def row_exponents(self) -> I32:
        """Return kt, the largest exponent of each row: [n]."""
        return np.asarray(self.exponents.max(axis=1), np.int32)

    @property
    def shifts(self) -> I32:
        """Return sh, the right shift of each block's sum to its row's exponent: [n, n_blocks]."""
        return np.asarray(np.minimum(self.row_exponents[:, None] - self.exponents, 63), np.int32)

    def select(self, rows: slice | npt.NDArray[np.int64]) -> QuantisedRows:
        """Return a selection of the rows."""
        return QuantisedRows(self.codes[rows], self.multipliers[rows], self.exponents[rows])


def _mantissas(magnitudes: U32) -> U32:
    """Return 24-bit mantissas with their hidden bit; 0 for zero and subnormal numbers."""
    return np.where(magnitudes > MANTISSA, (magnitudes & MANTISSA) | HIDDEN_BIT, 0).astype(np.uint32)


def quantise(rows: FloatRows) -> QuantisedRows:
    """Quantise finite f32 rows [n, cols], cols a multiple of 256. The caller checks both."""
    n_blocks = rows.shape[1] // BLOCK
    bits = np.ascontiguousarray(rows).view(np.uint32).reshape(len(rows), n_blocks, N_SUB_BLOCKS, SUB_BLOCK)
    magnitudes = bits & np.uint32(MAGNITUDE)
    sub_largest = magnitudes.max(axis=-1)  # [n, n_blocks, 8]
    largest = sub_largest.max(axis=-1)  # [n, n_blocks]

    exponent = largest >> 23
    # 13, or 14 where 13 would need a multiplier of 16
    scale_shift = 13 + (_mantissas(largest) > 15 * 127 << 13).astype(np.uint32)

    sub_down = np.minimum(exponent[..., None] - (sub_largest >> 23), 31)
    sub_mantissa = _mantissas(sub_largest) >> sub_down
    unit = np.uint32(127) << scale_shift[..., None]  # the largest mantissa of multiplier 1
    multipliers = np.maximum(((sub_mantissa + unit - 1) >> scale_shift[..., None]) // 127, 1)
    inverse = 524288 // multipliers

    down = np.minimum(8 + exponent[..., None, None] - (magnitudes >> 23), 31)
    shift = scale_shift[..., None, None]
    half = np.uint32(1) << (shift + 10)
    codes = ((_mantissas(magnitudes) >> down) * inverse[..., None] + half) >> (shift + 11)
    signed = np.where(bits > MAGNITUDE, -codes.astype(np.int16), codes.astype(np.int16)).astype(np.int8)

    block_exponents = np.where(exponent > 0, exponent + scale_shift, 0).astype(np.int32)
    return QuantisedRows(signed.reshape(-1, n_blocks, BLOCK), multipliers.astype(np.uint8), block_exponents)


def pack(rows: QuantisedRows) -> EncodedRows:
    """Pack quantised rows: uint8 [n, n_blocks * 261]."""
    n, n_blocks = rows.exponents.shape
    packed = np.empty((n, n_blocks, PACKED_BLOCK), np.uint8)
    packed[..., :BLOCK] = rows.codes.view(np.uint8)
    packed[..., BLOCK:-1] = rows.multipliers[..., 0::2] | (rows.multipliers[..., 1::2] << 4)
    packed[..., -1] = np.where(rows.exponents > 0, rows.exponents - EXPONENT_BIAS, 0)
    return packed.reshape(n, n_blocks * PACKED_BLOCK)


def unpack(packed: EncodedRows) -> QuantisedRows:
    """Unpack rows [n, n_blocks * 261].

    Raises KernelError, which names row and block, for a code of -128 or a multiplier of 0: no quantiser writes them,
    and the bit budget does not cover their sums.
    """
    blocks = packed.reshape(len(packed), packed.shape[1] // PACKED_BLOCK, PACKED_BLOCK)
    codes = np.ascontiguousarray(blocks[..., :BLOCK]).view(np.int8)
    pairs = blocks[..., BLOCK:-1]
    multipliers = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*blocks.shape[:2], N_SUB_BLOCKS)
    _refuse_where((codes == -128).any(axis=-1), "a code of -128; codes are -127 to 127")
    _refuse_where((multipliers == 0).any(axis=-1), "a multiplier of 0; multipliers are 1 to 15")
    stored = blocks[..., -1].astype(np.int32)
    return QuantisedRows(codes, multipliers, np.where(stored > 0, stored + EXPONENT_BIAS, 0).astype(np.int32))


def _refuse_where(bad: npt.NDArray[np.bool_], what: str) -> None:
    """Raise KernelError for the first block in `bad` [n, n_blocks]."""
    if bad.any():
        row, block = (int(i) for i in np.argwhere(bad)[0])
        raise KernelError(f"packed KX1 row {row}, block {block} has {what}")
