"""KX1 step 7 in numpy: sums of weighted outputs as integers, and their packed form.

Called by `kernels.sums` where the C library is not built, and by the tests that check the C code. Integers only,
written from docs/reference/kx1.md alone; f32 values are handled as their bit patterns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvasir.errors import KernelError
from kvasir.experts import FloatRows
from kvasir.kernels.oracle.rows import BLOCK, HIDDEN_BIT, MANTISSA
from kvasir.kernels.oracle.steps import round_output

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

LIMIT = 1 << 26  # of one pair's integer
WIDTHS = (0, 8, 12, 16, 24, 32)  # bits of a packed value


def pair_integers(outputs: FloatRows, weights: npt.NDArray[np.float32], exponents: I32) -> I64:
    """Return outputs [n_pairs, d] times their pairs' weights [n_pairs], in units of 2^exponents [n_pairs]."""
    field_w, mantissa_w, sign_w = (part[:, None] for part in _parts(weights))
    field_o, mantissa_o, sign_o = _parts(outputs)
    shift = exponents.astype(np.int64)[:, None] + 300 - field_w - field_o
    product = mantissa_w * mantissa_o
    shifted = np.clip(shift, 1, 62)
    size = np.minimum((product + (np.int64(1) << (shifted - 1))) >> shifted, LIMIT)
    size = np.where(shift > 62, 0, np.where(shift < 1, LIMIT, size))
    size = np.where(product == 0, 0, size)
    return np.asarray(np.where(sign_w != sign_o, -size, size), np.int64)


def add(outputs: FloatRows, weights: npt.NDArray[np.float32], pair_rows: I32, exponents: I32, n_rows: int) -> I32:
    """Return integer sums [n_rows, d] over each row's pairs."""
    sums = np.zeros((n_rows, outputs.shape[1]), np.int64)
    np.add.at(sums, pair_rows, pair_integers(outputs, weights, exponents[pair_rows]))
    return sums.astype(np.int32)


def to_float(sums: I32, exponents: I32) -> FloatRows:
    """Return sums [n, d] times 2^exponents [n], rounded as in step 4."""
    # the exponent of step 4 is that of the integer's lowest bit
    return round_output(sums.astype(np.int64), exponents.astype(np.int64)[:, None]).view(np.float32)


def pack(sums: I32) -> bytes:
    """Pack rows in order, blocks of 256 in order: a byte for the width, then the values."""
    return b"".join(_packed_block(block) for block in sums.reshape(-1, BLOCK))


def unpack(packed: bytes, n_rows: int, d: int) -> I32:
    """Reverse `pack`. Raises KernelError for bytes that `pack` does not write."""
    blocks, position = [], 0
    for number in range(n_rows * d // BLOCK):
        width = packed[position] if position < len(packed) else -1
        values = packed[position + 1 : position + 1 + BLOCK // 8 * max(width, 0)]
        if width < 0 or len(values) < BLOCK // 8 * width:
            raise KernelError(f"packed sums end in block {number}")
        if width not in WIDTHS:
            raise KernelError(f"block {number} of packed sums has {width} bits; it must be one of {WIDTHS}")
        block = _unpacked_block(values, width)
        if _width_of(block) != width:
            raise KernelError(f"block {number} of packed sums has {width} bits; {_width_of(block)} are enough")
        blocks.append(block)
        position += 1 + len(values)
    if position != len(packed):
        raise KernelError(f"packed sums have {len(packed) - position} bytes too many")
    return np.concatenate(blocks).reshape(n_rows, d) if blocks else np.zeros((n_rows, d), np.int32)


def _parts(values: FloatRows) -> tuple[I64, I64, I64]:
    """Return exponent field, mantissa (0 for subnormal numbers) and sign of f32 values."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.int64)
    field = (bits >> 23) & 255
    return field, np.where(field == 0, 0, (bits & MANTISSA) | HIDDEN_BIT), bits >> 31


def _width_of(block: I32) -> int:
    """Return the smallest width that holds all values of a block."""
    if not block.any():
        return 0
    low, high = int(block.min()), int(block.max())
    return next(width for width in WIDTHS[1:] if -(1 << (width - 1)) <= low and high < 1 << (width - 1))


def _packed_block(block: I32) -> bytes:
    width = _width_of(block)
    bits = (block.astype(np.int64)[:, None] >> np.arange(width)) & 1  # [256, width], low bit first
    return bytes([width]) + np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little").tobytes()


def _unpacked_block(values: bytes, width: int) -> I32:
    if width == 0:
        return np.zeros(BLOCK, np.int32)
    bits = np.unpackbits(np.frombuffer(values, np.uint8), bitorder="little").reshape(BLOCK, width).astype(np.int64)
    unsigned = (bits << np.arange(width)).sum(axis=1)
    return np.asarray(unsigned - (bits[:, -1] << width), np.int32)
