"""Float row operations over numpy arrays, in C: a row has the same bits in any batch, build and thread count.

Called by `float_kernel` and the backbone's `stable_ops`. `oracle.rowops` implements in numpy what the float kernel
needs. Every method returns new arrays and raises KernelError for arrays of the wrong type or shape, without conversion.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvasir.errors import KernelError
from kvasir.kernels import native
from kvasir.kernels.api import Floats
from kvasir.kernels.isa import NUMPY, wanted_isa
from kvasir.kernels.native import address as _at

# One sequence's slot, first row, number of rows, and position of the first row; as in csrc/rowops.h.
SegmentNumbers = tuple[int, int, int, int]
MAX_CONV_WIDTH = 16


class RowOps(Protocol):
    """The operations of the float kernel. All implementations give the same bits."""

    def matmul(self, x: Floats, w: Floats) -> Floats:
        """Multiply x [n, cols] by each row of w [n_out, cols]: [n, n_out], summed in 16 lanes."""
        ...

    def silu_mul(self, gate: Floats, up: Floats) -> Floats:
        """Return gate / (1 + exp(-gate)) * up, elementwise."""
        ...


class _Elementwise(IntEnum):
    """csrc/rowops.h."""

    EXP = 0
    SIGMOID = 1
    SILU = 2
    SOFTPLUS = 3
    SILU_MUL = 4


class NativeRowOps:
    """The C library's row operations. `isa` None: the build that KVASIR_ISA names, else the best one."""

    def __init__(self, isa: str | None = None, n_threads: int | None = None) -> None:
        library = native.load()
        forced = wanted_isa() if isa is None else isa
        self._lib = library.lib
        self._isa = library.isa(None if forced == NUMPY else forced)
        self.n_threads = native.usable_cores() if n_threads is None else n_threads
        if self.n_threads < 1:
            raise KernelError(f"n_threads is {n_threads}; it must be 1 or more")

    def matmul(self, x: Floats, w: Floats) -> Floats:
        """Multiply x [n, cols] by each row of w [n_out, cols]: [n, n_out]."""
        _check("x", x, None, None)
        _check("w", w, None, x.shape[1])
        out = np.empty((len(x), len(w)), np.float32)
        self._lib.kv_matmul(self._isa, _at(x), *x.shape, _at(w), len(w), _at(out), self.n_threads)
        return out

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        """Return x / sqrt(mean(x²) + eps) * weight over the last dimension."""
        _check("weight", weight, x.shape[-1])
        return self._norm(x, 1.0 / x.shape[-1], eps, weight)

    def l2_norm(self, x: Floats, eps: float) -> Floats:
        """Return x / sqrt(sum(x²) + eps) over the last dimension."""
        return self._norm(x, 1.0, eps, None)

    def exp(self, x: Floats) -> Floats:
        """Return exp(x) within about one unit in the last place."""
        return self._elementwise(_Elementwise.EXP, x)

    def sigmoid(self, x: Floats) -> Floats:
        """Return 1 / (1 + exp(-x))."""
        return self._elementwise(_Elementwise.SIGMOID, x)

    def silu(self, x: Floats) -> Floats:
        """Return x / (1 + exp(-x))."""
        return self._elementwise(_Elementwise.SILU, x)

    def softplus(self, x: Floats) -> Floats:
        """Return max(x, 0) + log(1 + exp(-|x|))."""
        return self._elementwise(_Elementwise.SOFTPLUS, x)

    def silu_mul(self, gate: Floats, up: Floats) -> Floats:
        """Return silu(gate) * up."""
        _check("up", up, *gate.shape)
        return self._elementwise(_Elementwise.SILU_MUL, gate, up)

    def combine(self, partials: Floats, weights: Floats) -> Floats:
        """Return Σ_j weights[t, j] * partials[t, j], j ascending: [T, n_used, d] and [T, n_used] -> [T, d]."""
        _check("partials", partials, None, None, None)
        _check("weights", weights, *partials.shape[:2])
        n, n_used, d = partials.shape
        if n_used < 1:
            raise KernelError("there are no partials to combine")
        out = np.empty((n, d), np.float32)
        self._lib.kv_combine(_at(partials), _at(weights), n, n_used, d, _at(out), self.n_threads)
        return out

    def attention(
        self, q: Floats, keys: Floats, values: Floats, segments: Sequence[SegmentNumbers], scale: float
    ) -> Floats:
        """Attend causally: q [T, n_head, d], keys and values [n_slot, n_kv_head, n_ctx, d] -> [T, n_head, d_v]."""
        _check("q", q, None, None, None)
        n_rows, n_head, d_head = q.shape
        _check("keys", keys, None, None, None, d_head)
        n_slot, n_kv_head, n_ctx, _ = keys.shape
        _check("values", values, n_slot, n_kv_head, n_ctx, None)
        if n_kv_head < 1 or n_head % n_kv_head:
            raise KernelError(f"{n_head} heads cannot share {n_kv_head} key heads evenly")
        numbers = checked_segments(segments, n_rows, n_slot, n_ctx)
        out = np.empty((n_rows, n_head, values.shape[3]), np.float32)
        shape = (ctypes.c_int64 * 5)(n_ctx, n_head, n_kv_head, d_head, values.shape[3])
        error = self._lib.kv_attention(
            self._isa,
            shape,
            _at(q),
            _at(keys),
            _at(values),
            _at(numbers),
            len(numbers),
            scale,
            _at(out),
            self.n_threads,
        )
        if error:
            raise KernelError("out of memory for attention's scores")
        return out

    def causal_conv(self, x: Floats, weight: Floats, state: Floats, segments: Sequence[SegmentNumbers]) -> Floats:
        """Convolve depthwise: x [T, c], weight [c, width], state [n_slot, width - 1, c], updated in place."""
        _check("x", x, None, None)
        _check("weight", weight, x.shape[1], None)
        width = weight.shape[1]
        if not 1 <= width <= MAX_CONV_WIDTH:
            raise KernelError(f"a convolution of width {width} is not supported; 1 to {MAX_CONV_WIDTH} are")
        _check("state", state, None, width - 1, x.shape[1])
        numbers = checked_segments(segments, len(x), len(state), None)
        out = np.empty_like(x)
        self._lib.kv_conv(
            _at(x), x.shape[1], _at(weight), width, _at(state), _at(numbers), len(numbers), _at(out), self.n_threads
        )
        return out

    def delta_rule(
        self,
        q: Floats,
        k: Floats,
        v: Floats,
        log_decay: Floats,
        beta: Floats,
        state: Floats,
        segments: Sequence[SegmentNumbers],
    ) -> Floats:
        """Apply the gated delta rule; shapes as in backbone.engine.ops.interface, `state` is updated in place."""
        _check("q", q, None, None, None)
        _check("k", k, *q.shape)
        _check("v", v, len(q), None, None)
        n_rows, n_v_head, d_v = v.shape
        _check("log_decay", log_decay, n_rows, n_v_head)
        _check("beta", beta, n_rows, n_v_head)
        _check("state", state, None, n_v_head, d_v, q.shape[2])
        numbers = checked_segments(segments, n_rows, len(state), None)
        decay, out = self.exp(log_decay), np.empty_like(v)
        shape = (ctypes.c_int64 * 4)(q.shape[1], n_v_head, q.shape[2], d_v)
        arrays = (_at(array) for array in (q, k, v, decay, beta, state, numbers))
        self._lib.kv_delta_rule(self._isa, shape, *arrays, len(numbers), _at(out), self.n_threads)
        return out

    def _norm(self, x: Floats, factor: float, eps: float, weight: Floats | None) -> Floats:
        out = _like(x)
        if x.size:
            d, at = x.shape[-1], None if weight is None else _at(weight)
            self._lib.kv_norm(self._isa, _at(x), x.size // d, d, factor, eps, at, _at(out), self.n_threads)
        return out

    def _elementwise(self, operation: _Elementwise, x: Floats, y: Floats | None = None) -> Floats:
        out = _like(x)
        second = None if y is None else _at(y)
        self._lib.kv_elementwise(self._isa, operation, _at(x), second, x.size, _at(out), self.n_threads)
        return out


def row_ops(n_threads: int | None = None) -> RowOps:
    """Return the float kernel's row operations: in C if the library is built and KVASIR_ISA is not "numpy"."""
    if wanted_isa() == NUMPY or not native.available():
        from kvasir.kernels.oracle.rowops import NumpyRowOps

        return NumpyRowOps()
    return NativeRowOps(n_threads=n_threads)


def _like(x: Floats) -> Floats:
    _check("x", x, *x.shape)
    return np.empty_like(x)


def _check(name: str, array: Floats, *shape: int | None) -> None:
    """Raise KernelError unless `array` is contiguous f32 of this shape; None is any size."""
    if array.dtype == np.float32 and array.flags.c_contiguous and array.ndim == len(shape):
        for wanted_size, size in zip(shape, array.shape, strict=True):
            if wanted_size != size and wanted_size is not None:
                break
        else:
            return
    wanted = ", ".join("*" if size is None else str(size) for size in shape)
    order = "" if array.flags.c_contiguous else " that is not contiguous"
    raise KernelError(f"{name} is {array.dtype} {list(array.shape)}{order}; contiguous float32 [{wanted}] is needed")


def checked_segments(
    segments: Sequence[SegmentNumbers], n_rows: int, n_slot: int, n_ctx: int | None
) -> npt.NDArray[np.int64]:
    """Return segments as C reads them. Raises KernelError unless they cover each row once, in distinct slots."""
    return _checked_segments(tuple(segments), n_rows, n_slot, n_ctx)


@lru_cache(maxsize=8)  # every layer of a step uses the same
def _checked_segments(
    segments: tuple[SegmentNumbers, ...], n_rows: int, n_slot: int, n_ctx: int | None
) -> npt.NDArray[np.int64]:
    next_row = 0
    for slot, first_row, n, position in sorted(segments, key=lambda segment: segment[1]):
        if first_row != next_row or n < 1 or not 0 <= slot < n_slot or position < 0:
            raise KernelError(
                f"segment (slot {slot}, rows {first_row} + {n}, position {position}) is not valid: "
                f"row {next_row} comes next, and there are {n_slot} slots"
            )
        if n_ctx is not None and position + n > n_ctx:
            raise KernelError(f"a segment ends at position {position + n}, the cache holds {n_ctx}")
        next_row += n
    if next_row != n_rows:
        raise KernelError(f"the segments cover {next_row} rows of {n_rows}")
    if len({segment[0] for segment in segments}) != len(segments):
        raise KernelError(f"two segments have the same slot: {[segment[0] for segment in segments]}")
    return np.array(segments, np.int64).reshape(-1, 4)
