"""KX1 steps 3 to 6 in numpy: block values, output rounding, silu(g) * u, and a whole expert.

Called by `kernel` and by the tests that check the C code. Integers only, derived from docs/reference/kx1.md; f32 values
are handled as their bit patterns throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvasir.experts import FloatRows, WeightMatrix
from kvasir.kernels.oracle.rows import (
    BLOCK,
    HIDDEN_BIT,
    LARGEST_EXPONENT,
    MANTISSA,
    N_SUB_BLOCKS,
    SUB_BLOCK,
    QuantisedRows,
    quantise,
)
from kvasir.kernels.oracle.weights import IntegerWeights, integer_weights, weight_exponent

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

SIGN = 0x80000000
LARGEST_FINITE = 0x7F7FFFFF
LOG2_E_Q18 = 378194
EXP2_Q16 = (65535, 45419, 15692, 3489, 449)  # 2^-f ~ c0 - f(c1 - f(c2 - f(c3 - f c4)))
WEIGHTS_AT_ONCE = 1 << 18  # weights unpacked at a time: bounds memory, fits the cache
ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, eq=False)
class ExactMatrix:
    """A weight matrix with its `ew`."""

    weights: WeightMatrix
    weight_exp: int

    @classmethod
    def of(cls, weights: WeightMatrix) -> ExactMatrix:
        """Compute `ew`. Raises KernelError for a scale that is not finite."""
        return cls(weights, weight_exponent(weights))


def matmul(matrix: ExactMatrix, rows: QuantisedRows) -> FloatRows:
    """Compute steps 2 to 4: f32 [n, n_out]."""
    weights = matrix.weights
    out = np.empty((rows.n_rows, weights.n_out), np.uint32)
    tile = max(1, WEIGHTS_AT_ONCE // weights.n_in)
    for start in range(0, weights.n_out, tile):
        stop = min(start + tile, weights.n_out)
        integers = integer_weights(weights, matrix.weight_exp, start, stop)
        for part in _parts(rows.n_rows):
            some = rows.select(part)
            exponents = matrix.weight_exp - 34 + some.row_exponents - 150
            out[part, start:stop] = round_output(_accumulate(integers, some), exponents[:, None])
    return out.view(np.float32)


def _parts(n_rows: int) -> Iterator[slice]:
    for start in range(0, n_rows, ROWS_AT_ONCE):
        yield slice(start, min(start + ROWS_AT_ONCE, n_rows))


def _accumulate(weights: IntegerWeights, rows: QuantisedRows) -> I64:
    """Compute step 3: the sum of the shifted block values, [n, rows of the matrix]."""
    activations = _activations(rows)  # [n, n_blocks, 256]
    values = weights.scale[:, :, None] * _dots(weights.scaled, activations)  # [matrix rows, n_blocks, n]
    if weights.mins is not None:
        sums = activations.reshape(*activations.shape[:2], N_SUB_BLOCKS, SUB_BLOCK).sum(axis=-1)
        values -= weights.min_scale[:, :, None] * _dots(weights.mins, sums)
    # the only loss of bits: each block's complete value is shifted right (floor)
    return np.asarray((values >> rows.shifts.T[None]).sum(axis=1).T, np.int64)


def _activations(rows: QuantisedRows) -> I64:
    """Return codes times their multipliers: [n, n_blocks, 256]."""
    codes = rows.codes.reshape(*rows.multipliers.shape, SUB_BLOCK)
    scaled = np.multiply(codes, rows.multipliers[..., None], dtype=np.int64)
    return scaled.reshape(rows.n_rows, -1, BLOCK)


def _dots(weights: I64, activations: I64) -> I64:
    """Sum over the last axis for each block: [matrix rows, n_blocks, k], [n, n_blocks, k] -> [rows, n_blocks, n]."""
    product: I64 = np.matmul(weights.transpose(1, 0, 2), activations.transpose(1, 2, 0))
    return product.transpose(1, 0, 2)


def round_output(acc: I64, exponent: npt.NDArray[np.integer]) -> U32:
    """Compute step 4: acc * 2^exponent as f32 bit patterns.

    Round to nearest, ties to even, at 24 bits. Then values below 2^-126 become +0, and values above the largest finite
    one become that value, with their sign.
    """
    magnitude = np.abs(acc)  # below 2^60
    length = _bit_length(magnitude)
    drop = np.maximum(length - 24, 0)
    half_less_one = np.where(drop > 0, (np.int64(1) << np.maximum(drop - 1, 0)) - 1, 0)
    is_odd = np.where(drop > 0, (magnitude >> drop) & 1, 0)
    mantissa = ((magnitude + half_less_one + is_odd) >> drop) << np.maximum(24 - length, 0)
    carried = mantissa >> 24  # 1 where rounding reached 2^24
    field = length + carried + 126 + exponent
    bits = (field << 23) | ((mantissa >> carried) & MANTISSA)
    bits = np.where(field > LARGEST_EXPONENT, LARGEST_FINITE, bits) | np.where(acc < 0, SIGN, 0)
    return np.where((field <= 0) | (acc == 0), 0, bits).astype(np.uint32)


def _bit_length(magnitude: I64) -> I64:
    """Return the position of the highest set bit, counted from 1; 0 for 0."""
    length = np.zeros_like(magnitude)
    rest = magnitude
    for step in (32, 16, 8, 4, 2, 1):
        is_high = rest >> step > 0
        length += np.where(is_high, step, 0)
        rest = np.where(is_high, rest >> step, rest)
    return length + (rest > 0)


def _u32(words: npt.NDArray[np.integer]) -> U32:
    """Return the same words as uint32: numpy's stubs lose the type of a sum with a Python integer."""
    return np.asarray(words, np.uint32)


def silu_mul(gate: FloatRows, up: FloatRows) -> FloatRows:
    """Compute step 5: silu(gate) * up, elementwise on f32 bit patterns, in unsigned 32-bit arithmetic."""
    gate_bits, up_bits = (np.ascontiguousarray(part).view(np.uint32) for part in (gate, up))
    gate_field, up_field = _u32((gate_bits >> 23) & 255), _u32((up_bits >> 23) & 255)
    gate_mantissa = _u32((gate_bits & MANTISSA) | HIDDEN_BIT)
    up_mantissa = _u32((up_bits & MANTISSA) | HIDDEN_BIT)
    is_negative = gate_bits >= SIGN
    is_large = gate_field > 131  # |g| >= 32

    sigmoid, halvings = _sigmoid(gate_mantissa, gate_field, is_negative)
    product, lost = _normalise(_u32((gate_mantissa >> 8) * sigmoid), 2)
    product, lost_again = _normalise(_u32((product >> 16) * (up_mantissa >> 8)), 1)

    spent = (halvings + lost + lost_again).astype(np.int32)
    field = gate_field.astype(np.int32) + up_field.astype(np.int32) - 126 - spent
    bits = (np.clip(field, 0, 255).astype(np.uint32) << 23) | ((product >> 8) & MANTISSA)
    bits = np.where(field > LARGEST_EXPONENT, LARGEST_FINITE, bits) | ((gate_bits ^ up_bits) & SIGN)
    is_zero = (gate_field == 0) | (up_field == 0) | (field <= 0) | (is_negative & is_large)
    return np.where(is_zero, 0, bits).astype(np.uint32).view(np.float32)


def _sigmoid(mantissa: U32, field: U32, is_negative: npt.NDArray[np.bool_]) -> tuple[U32, U32]:
    """Return the sigmoid of g as a Q16 number, and how often it still has to be halved: [..], [..]."""
    fixed = np.where(field > 131, 0xFFFFFF, mantissa >> np.clip(131 - field.astype(np.int32), 0, 31))
    fixed = fixed.astype(np.uint32)  # |g| in Q5.19
    exponent = (fixed >> 12) * LOG2_E_Q18 + (((fixed & 4095) * LOG2_E_Q18) >> 12)  # |g| log2(e) in Q6.25
    whole, fraction = exponent >> 25, (exponent >> 9) & 0xFFFF
    power = np.full_like(fraction, EXP2_Q16[4])
    for coefficient in reversed(EXP2_Q16[:4]):
        power = coefficient - ((fraction * power) >> 16)  # 2^-fraction in Q16
    positive = 0xFFFFFFFF // (65536 + (power >> np.minimum(whole, 31)))  # 1 / (1 + 2^-(whole.fraction))
    negative = (power * positive) >> 16
    return np.where(is_negative, negative, positive), np.where(is_negative, whole, 0).astype(np.uint32)


def _normalise(product: U32, times: int) -> tuple[U32, U32]:
    """Shift left until bit 31 is set, `times` bits at most; return the results and the shifts."""
    shifted = np.zeros_like(product)
    for _ in range(times):
        is_low = (product < SIGN).astype(np.uint32)
        product, shifted = product << is_low, shifted + is_low
    return product, shifted


def expert(gate: ExactMatrix, up: ExactMatrix, down: ExactMatrix, rows: QuantisedRows) -> FloatRows:
    """Compute step 6: the whole expert for quantised rows, f32 [n, d_model]."""
    hidden = silu_mul(matmul(gate, rows), matmul(up, rows))
    return matmul(down, quantise(hidden))
