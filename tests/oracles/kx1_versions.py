"""The versions of KX1 in the built library, function by function, and the adversarial inputs that they must agree on.

Called by the tests of the C kernels. A version's table is `kx1_isa` in csrc/kx1.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import c_char_p, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Quant

from kvasir.experts import FloatRows, row_bytes
from kvasir.kernels import native
from kvasir.kernels.selftest_inputs import Bytes, WeightKind, adversarial_rows, made_weights

BLOCK_BYTES = 512  # of a prepared block of 256 activations
QUANT_TYPES = (Quant.Q4_K, Quant.Q5_K, Quant.Q6_K, Quant.Q8_0)
WEIGHT_KINDS: tuple[WeightKind, ...] = ("plain", "wild", "low", "high")


class _Table(ctypes.Structure):
    _fields_: ClassVar = [
        ("name", c_char_p),
        ("quantise", ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_void_p, c_int64)),
        (
            "matmul",
            ctypes.CFUNCTYPE(
                None,
                *(c_int, c_void_p, c_int64, c_int64, c_int64, c_int32),
                *(c_void_p, c_void_p, c_int64, c_void_p, c_int64),
            ),
        ),
        ("silu_mul", ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_int64)),
    ]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRows:
    """Rows as a mat-mul takes them, block-major."""

    blocks: Bytes  # [n_blocks, n, BLOCK_BYTES], 64-byte aligned
    exponents: npt.NDArray[np.int32]  # [n]

    @property
    def n(self) -> int:
        return len(self.exponents)


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Made weights of one type and what step 2 says of them."""

    quant_type: Quant
    n_out: int
    n_in: int
    data: Bytes
    exponent: int


class Version:
    """One version of KX1, such as "avx2"."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._table = _Table.from_address(native.load().isa(name))

    def prepare(self, rows: FloatRows) -> PreparedRows:
        """Step 1 of rows [n, cols]."""
        rows = np.ascontiguousarray(rows)
        n, cols = rows.shape
        blocks = aligned_bytes(cols // 256 * n * BLOCK_BYTES).reshape(cols // 256, n, BLOCK_BYTES)
        exponents = np.zeros(n, np.int32)
        for t in range(n):
            exponents[t] = self._table.quantise(rows[t].ctypes.data, cols, blocks.ctypes.data + t * BLOCK_BYTES, n)
        return PreparedRows(blocks, exponents)

    def matmul(self, matrix: Matrix, x: PreparedRows, start: int = 0, stop: int | None = None) -> FloatRows:
        """Steps 2 to 4 for matrix rows start to stop: [n, n_out], with NaN where nothing was written."""
        out = np.full((x.n, matrix.n_out), np.nan, np.float32)
        self._table.matmul(
            *(matrix.quant_type, matrix.data.ctypes.data, start, matrix.n_out if stop is None else stop, matrix.n_in),
            *(matrix.exponent, x.blocks.ctypes.data, x.exponents.ctypes.data, x.n, out.ctypes.data, matrix.n_out),
        )
        return out

    def silu_mul(self, gate: FloatRows, up: FloatRows) -> FloatRows:
        """Step 5 of flat arrays."""
        gate, up = np.ascontiguousarray(gate), np.ascontiguousarray(up)
        h = np.empty_like(gate)
        self._table.silu_mul(gate.ctypes.data, up.ctypes.data, h.ctypes.data, gate.size)
        return h


def aligned_bytes(n: int) -> Bytes:
    """n zero bytes that start at a cache line."""
    data = np.zeros(n + 64, np.uint8)
    start = -data.ctypes.data % 64
    return data[start : start + n]


def version_names() -> tuple[str, ...]:
    """The versions that this machine can run, best first."""
    return native.load().isa_names


def made_matrix(quant_type: Quant, n_out: int, n_in: int, seed: int, kind: WeightKind) -> Matrix:
    """Weights from a seed, and their exponent as C finds it."""
    data = made_weights(quant_type, n_out, n_in, seed, kind)
    assert data.size == n_out * row_bytes(quant_type, n_in)
    exponent = native.load().lib.kv_kx1_weight_exponent(quant_type, data.ctypes.data, n_out, n_in)
    assert exponent >= 0
    return Matrix(quant_type, n_out, n_in, data, int(exponent))


def all_matrices(n_out: int, n_in: int, seed: int) -> Iterator[Matrix]:
    """A matrix of every type and kind."""
    for number, quant_type in enumerate(QUANT_TYPES):
        for kind in WEIGHT_KINDS:
            yield made_matrix(quant_type, n_out, n_in, seed + number, kind)


def hard_rows(n: int, cols: int, seed: int) -> FloatRows:
    """Adversarial rows, then Gaussian ones of many magnitudes: [n, cols]."""
    rng = np.random.default_rng(seed)
    hard = adversarial_rows(cols, seed)[:n]
    n_gaussian = n - len(hard)
    scales = 10.0 ** rng.integers(-6, 7, (n_gaussian, 1))
    return np.concatenate([hard, (rng.standard_normal((n_gaussian, cols)) * scales).astype(np.float32)])


def silu_inputs(seed: int) -> tuple[FloatRows, FloatRows]:
    """Gate and up values: every exponent of either sign against many, then random finite bits and Gaussian ones."""
    rng = np.random.default_rng(seed)
    mantissas = np.array([0, 1, 0x7FFFFF, 0x400000, 0x2AAAAA], np.uint32)
    fields = np.arange(255, dtype=np.uint32)
    grid = ((fields[:, None] << 23) | mantissas).ravel()
    grid = np.concatenate([grid, grid | np.uint32(0x80000000)])
    others = grid[:: len(grid) // 60]
    gate, up = (a.ravel() for a in np.meshgrid(grid, others))
    random = rng.integers(0, 1 << 32, (2, 1 << 16), dtype=np.uint32)
    random[(random >> 23) & 255 == 255] &= np.uint32(0x807FFFFF)
    gaussian = (rng.standard_normal((2, 1 << 16)) * 8).astype(np.float32).view(np.uint32)
    bits = [np.concatenate(parts) for parts in ((gate, random[0], gaussian[0]), (up, random[1], gaussian[1]))]
    return bits[0].view(np.float32), bits[1].view(np.float32)
