"""KX1 step 2 in numpy: GGUF weight bytes of Q4_K, Q5_K, Q6_K and Q8_0 as integers.

Called by `steps` (a few matrix rows at a time) and for the scales of a whole matrix. Written from
docs/reference/kx1.md. It never dequantises: codes, sub-scales and fixed-point scales stay separate integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from kvasir.errors import KernelError
from kvasir.experts import WeightMatrix
from kvasir.kernels.oracle.rows import BLOCK, N_SUB_BLOCKS

Bytes = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

BLOCK_BYTES = {  # bytes of 256 weights
    GGMLQuantizationType.Q4_K: 144,
    GGMLQuantizationType.Q5_K: 176,
    GGMLQuantizationType.Q6_K: 210,
    GGMLQuantizationType.Q8_0: 8 * 34,
}


@dataclass(frozen=True, slots=True, eq=False)
class IntegerWeights:
    """Some matrix rows as integers. A block's value is `scale * sum(scaled * x) - min_scale * sum(mins * x)`."""

    scaled: I64  # [rows, n_blocks, 256]: code times sub-scale; Q8_0: code times fixed-point scale
    scale: I64  # [rows, n_blocks]: fixed-point scale of the block; Q8_0: 1
    mins: I64 | None  # [rows, n_blocks, 8]: one for each sub-block; Q6_K and Q8_0: none
    min_scale: I64  # [rows, n_blocks]


def _blocks(matrix: WeightMatrix, start: int, stop: int) -> Bytes:
    """Return the bytes of matrix rows start..stop by block: [rows, n_blocks, bytes]."""
    n_blocks = matrix.n_in // BLOCK
    block_bytes = BLOCK_BYTES[matrix.quant_type]
    row_bytes = n_blocks * block_bytes
    return matrix.data[start * row_bytes : stop * row_bytes].reshape(stop - start, n_blocks, block_bytes)


def _scale_bits(quant_type: GGMLQuantizationType, blocks: Bytes) -> npt.NDArray[np.uint16]:
    """Return the f16 scales of each block, [rows, n_blocks, n]: d and dmin, or d, or eight d."""
    if quant_type in (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q5_K):
        field = blocks[..., 0:4]
    elif quant_type is GGMLQuantizationType.Q6_K:
        field = blocks[..., 208:210]
    else:
        field = blocks.reshape(*blocks.shape[:2], N_SUB_BLOCKS, 34)[..., 0:2]
    low, high = field[..., 0::2].astype(np.uint16), field[..., 1::2].astype(np.uint16)
    return np.asarray(low | (high << 8), np.uint16).reshape(*blocks.shape[:2], -1)


def weight_exponent(matrix: WeightMatrix, rows_at_once: int = 1024) -> int:
    """Return `ew`: the largest exponent of the matrix's scales, 0..29, as defined in docs/reference/kx1.md.

    Raises KernelError, which names row and block, if a scale is infinite or NaN.
    """
    largest = 1
    for start in range(0, matrix.n_out, rows_at_once):
        stop = min(start + rows_at_once, matrix.n_out)
        fields = (_scale_bits(matrix.quant_type, _blocks(matrix, start, stop)) >> 10) & 31
        if (fields == 31).any():
            row, block = (int(i) for i in np.argwhere(fields == 31)[0][:2])
            raise KernelError(
                f"a {matrix.quant_type.name} scale in matrix row {start + row}, block {block} is infinite or NaN; "
                "scales must be finite"
            )
        largest = max(largest, int(fields.max(initial=0)))
    return largest - 1


def fixed_point(scale_bits: npt.NDArray[np.uint16], weight_exp: int) -> I64:
    """Return `w(h)`: f16 scales as signed fixed-point integers of at most 21 bits, relative to `ew`."""
    field = (scale_bits.astype(np.int64) >> 10) & 31
    mantissa = (scale_bits.astype(np.int64) & 1023) | np.where(field > 0, 1024, 0)
    exponent = np.maximum(field, 1) - 1
    magnitude = (mantissa << 10) >> np.minimum(weight_exp - exponent, 31)
    return np.asarray(np.where(scale_bits & 0x8000, -magnitude, magnitude), np.int64)


def integer_weights(matrix: WeightMatrix, weight_exp: int, start: int, stop: int) -> IntegerWeights:
    """Return matrix rows start..stop as integers."""
    blocks = _blocks(matrix, start, stop)
    scales = fixed_point(_scale_bits(matrix.quant_type, blocks), weight_exp)
    if matrix.quant_type is GGMLQuantizationType.Q6_K:
        return IntegerWeights(_q6_k(blocks), scales[..., 0], None, scales[..., 0])
    if matrix.quant_type is GGMLQuantizationType.Q8_0:
        ones = np.ones(blocks.shape[:2], np.int64)
        return IntegerWeights(_q8_0(blocks, scales), ones, None, ones)
    sub_scales, mins = _sub_scales_and_mins(blocks[..., 4:16])
    has_fifth_bit = matrix.quant_type is GGMLQuantizationType.Q5_K
    codes = _q5_k(blocks) if has_fifth_bit else _nibbles(blocks[..., 16:])
    return IntegerWeights(_scaled(codes, sub_scales), scales[..., 0], mins.astype(np.int64), scales[..., 1])


def _scaled(codes: npt.NDArray[np.integer], factors: npt.NDArray[np.integer]) -> I64:
    """Multiply codes [rows, n_blocks, 256] by one factor for each of n equal groups [rows, n_blocks, n]."""
    groups = codes.reshape(*factors.shape, -1)
    scaled: I64 = np.multiply(groups, factors[..., None], dtype=np.int64)
    return scaled.reshape(*codes.shape)


def _sub_scales_and_mins(field: Bytes) -> tuple[Bytes, Bytes]:
    """Return the eight 6-bit sub-scales and eight 6-bit minima that Q4_K and Q5_K store in 12 bytes."""
    first, second, third = field[..., 0:4], field[..., 4:8], field[..., 8:12]
    sub_scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=-1)
    mins = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=-1)
    return sub_scales, mins


def _nibbles(field: Bytes) -> Bytes:
    """Return 128 bytes as 256 four-bit codes: of each 32 bytes first all low nibbles, then all high ones."""
    groups = field.reshape(*field.shape[:2], 4, 1, 32)
    return np.concatenate([groups & 15, groups >> 4], axis=-2).reshape(*field.shape[:2], BLOCK)


def _q5_k(blocks: Bytes) -> Bytes:
    """Return codes 0..31: bit j of the high byte l is the fifth bit of code l of sub-block j."""
    sub_block = np.arange(N_SUB_BLOCKS, dtype=np.uint8)[:, None]
    fifth = (blocks[..., None, 16:48] >> sub_block) & 1  # [rows, n_blocks, 8, 32]
    return np.asarray(_nibbles(blocks[..., 48:]) | (fifth.reshape(*blocks.shape[:2], BLOCK) << 4), np.uint8)


def _q6_k(blocks: Bytes) -> I64:
    """Return codes -32..31 times the signed sub-scale of their group of 16."""
    low = blocks[..., 0:128].reshape(*blocks.shape[:2], 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-2).reshape(*blocks.shape[:2], 2, 4, 32)
    pair = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32) >> pair) & 3
    codes = (low | (high << 4)).view(np.int8) - np.int8(32)
    sub_scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    return _scaled(codes.reshape(*blocks.shape[:2], BLOCK), sub_scales)


def _q8_0(blocks: Bytes, scales: I64) -> I64:
    """Return codes -128..127 times the fixed-point scale of their group of 32."""
    codes = np.ascontiguousarray(blocks.reshape(*scales.shape, 34)[..., 2:]).view(np.int8)
    return _scaled(codes.reshape(*blocks.shape[:2], BLOCK), scales)
