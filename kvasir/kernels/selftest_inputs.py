"""Generated test inputs: words from a counter, and weights and rows from words.

Called by `selftest` and by the script that makes the golden vectors. Only integers and no files, so that C, JavaScript
and WGSL make the same bytes; docs/reference/kx1.md ("Inputs without files") specifies them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Quant

from kvasir.experts import FloatRows, row_bytes

Bytes = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
WeightKind = Literal["plain", "wild", "low", "high"]

SCALES_SEED = 0x5CA1E000  # added to a matrix's seed for the stream of its scales
SCALE_FIELDS = {  # bytes of a quant block, offsets of its f16 scales
    Quant.Q4_K: (144, (0, 2)),
    Quant.Q5_K: (176, (0, 2)),
    Quant.Q6_K: (210, (208,)),
    Quant.Q8_0: (34, (0,)),
}
EXTREME_FIELDS = {  # (offset, length, byte of "low", byte of "high")
    Quant.Q4_K: ((4, 12, 0xFF, 0xFF), (16, 128, 0x00, 0xFF)),
    Quant.Q5_K: ((4, 12, 0xFF, 0xFF), (16, 160, 0x00, 0xFF)),
    Quant.Q6_K: ((0, 192, 0x00, 0xFF), (192, 16, 0x80, 0x7F)),
    Quant.Q8_0: ((2, 32, 0x80, 0x7F),),
}
FLOAT_WIDTHS = {Quant.F32: (4, 23), Quant.F16: (2, 10), Quant.BF16: (2, 7)}  # bytes, mantissa bits
FLOAT_BIASES = {Quant.F32: 127, Quant.F16: 15, Quant.BF16: 127}


def words(seed: int, n: int) -> U32:
    """Return words 0 to n-1 of stream `seed`: a Weyl sequence through a 32-bit mixer."""
    with np.errstate(over="ignore"):
        x = np.uint32(seed & 0xFFFFFFFF) + np.arange(1, n + 1, dtype=np.uint32) * np.uint32(0x9E3779B9)
        x = np.asarray((x ^ (x >> 16)) * np.uint32(0x85EBCA6B), np.uint32)
        x = np.asarray((x ^ (x >> 13)) * np.uint32(0xC2B2AE35), np.uint32)
        return np.asarray(x ^ (x >> 16), np.uint32)


def stream_bytes(seed: int, n: int) -> Bytes:
    """Return the first n bytes of stream `seed`: its words, low byte first."""
    return words(seed, -(-n // 4)).astype("<u4").view(np.uint8)[:n]


def made_weights(quant_type: Quant, n_out: int, n_in: int, seed: int, kind: WeightKind = "plain") -> Bytes:
    """Return the bytes of a matrix of n_out rows of n_in weights: [n_out * row_bytes].

    Codes are the stream's bytes, or for "low" and "high" the codes and sub-scales with the largest sums. Scales are
    finite: tiny and positive for "plain", else any finite bits. F32, F16 and BF16 have "plain" only.
    """
    n_bytes = n_out * row_bytes(quant_type, n_in)
    if quant_type in FLOAT_WIDTHS:
        return _float_weights(quant_type, n_bytes, seed)
    data = stream_bytes(seed, n_bytes).copy()
    block_bytes, scale_offsets = SCALE_FIELDS[quant_type]
    blocks = data.reshape(-1, block_bytes)
    if kind in ("low", "high"):
        for offset, length, low, high in EXTREME_FIELDS[quant_type]:
            blocks[:, offset : offset + length] = low if kind == "low" else high
    scales = _scales(words(seed + SCALES_SEED, len(blocks) * len(scale_offsets)), kind)
    as_bytes = scales.astype("<u2").view(np.uint8).reshape(len(blocks), len(scale_offsets), 2)
    for number, offset in enumerate(scale_offsets):
        blocks[:, offset : offset + 2] = as_bytes[:, number]
    return data


def _scales(drawn: U32, kind: WeightKind) -> U16:
    """Return finite f16 bits from words: exponent fields 0 to 3 for "plain", else 0 to 30."""
    if kind == "plain":
        return ((((drawn >> 16) & 3) << 10) | (drawn & 1023)).astype(np.uint16)
    bits = drawn & 0xFFFF
    return np.where((bits >> 10) & 31 == 31, bits & 0xBFFF, bits).astype(np.uint16)


def _float_weights(quant_type: Quant, n_bytes: int, seed: int) -> Bytes:
    """Return numbers of either sign from 1/256 up to 1, with any mantissa."""
    width, mantissa_bits = FLOAT_WIDTHS[quant_type]
    drawn = words(seed, n_bytes // width)
    field = FLOAT_BIASES[quant_type] - 8 + ((drawn >> 23) & 7)
    bits = (drawn >> 31 << (8 * width - 1)) | (field << mantissa_bits) | (drawn & ((1 << mantissa_bits) - 1))
    return bits.astype(f"<u{width}").view(np.uint8)


def plain_rows(n: int, cols: int, seed: int) -> FloatRows:
    """Return rows [n, cols] of either sign from 1/256 up to 1, with any mantissa: word i of the stream is value i."""
    drawn = words(seed, n * cols)
    bits = (drawn & 0x80000000) | ((119 + ((drawn >> 23) & 7)) << 23) | (drawn & 0x7FFFFF)
    return bits.astype(np.uint32).view(np.float32).reshape(n, cols)


def adversarial_rows(cols: int, seed: int) -> FloatRows:
    """Return rows [17, cols] at the limits of the format, in the order of docs/reference/kx1.md."""
    at = np.arange(cols, dtype=np.uint32)
    drawn = words(seed, cols)
    sign, mantissa = drawn & 0x80000000, drawn & 0x7FFFFF
    field = (drawn >> 23) & 255
    block = at // 256

    def constant(bits: int) -> U32:
        return np.full(cols, bits, np.uint32)

    rows = [
        constant(0),
        sign | mantissa,  # subnormals and zeros of both signs
        constant(0x80800000),  # -2^-126
        constant(0x7F7FFFFF),  # the largest finite value
        0x7F7FFFFF | (at % 2 << 31),  # alternating with its negative
        np.where(at == cols // 3, 0x3F800000, 0),  # a single 1
        0x3F333333 | (at % 2 << 31),  # 0.7 and -0.7
        sign | (np.where(field == 255, 127, field) << 23) | mantissa,  # any finite bits
        sign | ((1 + (drawn >> 8) % 254) << 23),  # powers of two
        sign | (np.where(at % 256 == 0, 127, 119) << 23) | np.where(at % 256 == 0, 0x6E2000, mantissa),  # s = 13 just
        sign | (np.where(at % 256 == 0, 127, 119) << 23) | np.where(at % 256 == 0, 0x6E2001, mantissa),  # s = 14 just
        sign | ((130 - (at // 32) % 8) << 23) | mantissa,  # sub-blocks that halve: every multiplier
        sign | (np.maximum(1, 200 - 9 * (block.astype(np.int32) % 21)) << 23) | mantissa,  # blocks that fall: shifts
        sign | ((127 + np.where(at < 256, 66, 0)) << 23) | mantissa,  # one block far above the rest
        _ties(drawn, at),  # halves between codes
        sign | ((60 + (drawn >> 23) % 8) << 23) | mantissa,  # so small that silu(g) * u ends near 2^-126
        sign | ((119 + (drawn >> 23) % 8) << 23) | mantissa,  # a plain row
    ]
    return np.stack([row.astype(np.uint32) for row in rows]).view(np.float32)


def _ties(drawn: U32, at: npt.NDArray[np.uint32]) -> U32:
    """Return f32 bits of 127 first in each sub-block, then of c + 1/2 with c from -127 to 126."""
    twice = np.where(at % 32 == 0, 254, 2 * ((drawn >> 8) % 254).astype(np.int32) - 253)  # twice the value
    magnitude = np.abs(twice).astype(np.uint32)
    length = sum((magnitude >= (1 << bit)).astype(np.uint32) for bit in range(8))  # highest set bit, from 1
    field = 126 + length - 1
    sign = np.where(twice < 0, 0x80000000, 0).astype(np.uint32)
    return np.asarray(sign | (field << 23) | ((magnitude << (24 - length)) & 0x7FFFFF), np.uint32)


def legal_packed_rows(cols: int, seed: int) -> Bytes:
    """Return packed KX1 rows [3, cols / 256 * 261] that no quantiser makes and every kernel must accept.

    The first has arbitrary codes, multipliers and exponents, the others the largest positive and negative sums.
    """
    n_blocks = cols // 256
    rows = stream_bytes(seed, 3 * n_blocks * 261).reshape(3, n_blocks, 261).copy()
    codes, multipliers = rows[..., :256], rows[..., 256:260]
    codes[codes == 0x80] = 0x81
    multipliers[multipliers & 0x0F == 0] |= 0x01
    multipliers[multipliers & 0xF0 == 0] |= 0x10
    rows[1, :, :256], rows[2, :, :256] = 0x7F, 0x81
    rows[1:, :, 256:] = 0xFF
    return rows.reshape(3, n_blocks * 261)
