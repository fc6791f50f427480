"""The float kernel's row operations in numpy, in the steps of csrc/rowops_lanes.h: the same bits, but slower.

Called through `kernels.rowops.row_ops` where the C library is not built, and by tests.
"""

from __future__ import annotations

import numpy as np

from kvasir.errors import KernelError
from kvasir.kernels.api import Floats

LANES = 16
PRODUCTS_AT_ONCE = 1 << 22  # bounds the memory of a product's lanes

_F = np.float32
_ROUND_BIAS = _F(12582912.0)  # 1.5 * 2^23
_ROUND_BIAS_BITS = np.int32(0x4B400000)
_LOG2_E, _LN2_HIGH, _LN2_LOW = _F(1.44269504), _F(0.693145751953125), _F(1.4286068e-06)
_EXP_COEFFICIENTS = tuple(_F(c) for c in (0.001381166, 0.008370135, 0.041668527, 0.16666509, 0.49999994))


class NumpyRowOps:
    """Implements RowOps."""

    def matmul(self, x: Floats, w: Floats) -> Floats:
        """Multiply x [n, cols] by each row of w [n_out, cols]: [n, n_out]."""
        if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1] or x.dtype != _F or w.dtype != _F:
            raise KernelError(f"cannot multiply {x.dtype} {list(x.shape)} by {w.dtype} {list(w.shape)} rows")
        out = np.empty((len(x), len(w)), _F)
        rows_at_once = max(1, PRODUCTS_AT_ONCE // (LANES * max(1, len(w))))
        for start in range(0, len(x), rows_at_once):
            out[start : start + rows_at_once] = _lane_products(x[start : start + rows_at_once], w)
        return out

    def silu_mul(self, gate: Floats, up: Floats) -> Floats:
        """Return gate / (1 + exp(-gate)) * up, elementwise."""
        if gate.shape != up.shape or gate.dtype != _F or up.dtype != _F:
            raise KernelError(f"gate is {gate.dtype} {list(gate.shape)}, up is {up.dtype} {list(up.shape)}")
        with np.errstate(over="ignore", under="ignore"):
            return gate / (_F(1) + exp(-gate)) * up


def _lane_products(x: Floats, w: Floats) -> Floats:
    """Compute dot products in 16 lanes, then add lanes that are 8, 4, 2 and 1 apart."""
    n_cols = x.shape[1]
    padding = -n_cols % LANES
    x, w = (np.pad(array, ((0, 0), (0, padding))) if padding else array for array in (x, w))
    sums = np.zeros((len(x), len(w), LANES), _F)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for k in range(0, n_cols, LANES):
            sums += x[:, None, k : k + LANES] * w[None, :, k : k + LANES]
        for half in (8, 4, 2, 1):
            sums = sums[..., :half] + sums[..., half : 2 * half]
    return sums[..., 0]


def exp(x: Floats) -> Floats:
    """Return exp(x) as `lanes_exp` of csrc computes it."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        value = np.where(x > 89, _F(89), np.where(x < -104, _F(-104), x))
        shifted = value * _LOG2_E + _ROUND_BIAS
        n = shifted.view(np.int32) - _ROUND_BIAS_BITS
        n_value = shifted - _ROUND_BIAS
        r = (value - n_value * _LN2_HIGH) - n_value * _LN2_LOW
        q = _EXP_COEFFICIENTS[0] * r + _EXP_COEFFICIENTS[1]
        for coefficient in _EXP_COEFFICIENTS[2:]:
            q = q * r + coefficient
        y = _F(1) + (r + (r * r) * q)
        half = n >> 1
        y = y * _power_of_two(half) * _power_of_two(n - half)
        result: Floats = y
        return result


def _power_of_two(n: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> Floats:
    return ((n + np.int32(127)) << np.int32(23)).view(_F)
