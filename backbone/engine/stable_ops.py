"""The dense path with fixed bits: KX1 on quantised matrices in place, and C row operations for the rest.

What production runs; the loader and the layers use it through `ops.Ops`. A row's result is computed from its own
inputs in one order, so that it does not depend on its batch, on how a prompt is cut, on the CPU or on the threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from backbone.engine.ops import KVLayer, Linear, Segment
from kvasir.errors import KernelError
from kvasir.experts import WeightMatrix
from kvasir.kernels import native
from kvasir.kernels.float_kernel import dequantised
from kvasir.kernels.kx1 import KX1Kernel, KX1Matrix, matrix_refusal
from kvasir.kernels.rowops import NativeRowOps

FloatArray = npt.NDArray[np.float32]


class StableOps:
    """Implements `Ops`, in float32. `isa` None is the best build, `n_threads` None is every usable core.

    Raises KernelError with the next step when the C library is not built.
    """

    dtype = torch.float32

    def __init__(self, isa: str | None = None, n_threads: int | None = None) -> None:
        if not native.available():
            raise KernelError(
                "the quantised dense path needs Kvasir's C library: run `python -m kvasir.kernels.build` (it needs a C "
                "compiler, or `pip install ziglang`), or run with `--dense float`, which is slower"
            )
        self._kx1 = KX1Kernel(isa, n_threads)
        self._rows = NativeRowOps(isa, n_threads)

    def make_linear(self, matrix: WeightMatrix, bias: Tensor | None = None) -> Linear:
        """KX1 in place where it has the type and the width, else dequantised once to f32.

        In a Q8_0 matrix the weights are so near that KX1's rounding of the rows would be most of the error.
        """
        if matrix_refusal(matrix) is not None:
            return Linear(matrix.n_in, matrix.n_out, dequantised(matrix), bias)
        n_terms = 2 if matrix.quant_type is GGMLQuantizationType.Q8_0 else 1
        return Linear(matrix.n_in, matrix.n_out, self._kx1.prepare(matrix, n_terms), bias)

    def linear(self, x: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        """x [T, n_in] -> one [T, n_out] a linear; x is quantised once for those that KX1 computes."""
        rows = _array(x)
        exact = [linear.weight for linear in linears if isinstance(linear.weight, KX1Matrix)]
        outputs = iter(self._kx1.linear(rows, exact)) if exact else iter(())
        results = []
        for linear in linears:
            is_exact = isinstance(linear.weight, KX1Matrix)
            result = torch.from_numpy(next(outputs) if is_exact else self._rows.matmul(rows, linear.weight))
            results.append(result if linear.bias is None else result + linear.bias)
        return tuple(results)

    def embed(self, matrix: WeightMatrix, token_ids: Tensor) -> Tensor:
        """Dequantise the rows that are asked for: int64 [T] -> [T, n_in]."""
        ids = token_ids.numpy()
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < matrix.n_out:
            raise KernelError(f"token ids {int(ids.min())} to {int(ids.max())} are not all below {matrix.n_out}")
        if not len(ids):
            return torch.empty(0, matrix.n_in)
        rows = np.ascontiguousarray(
            matrix.data.reshape(matrix.n_out, -1)[ids]
        )  # a copy: the result may be a view of it
        return torch.from_numpy(dequantised(WeightMatrix(matrix.quant_type, len(ids), matrix.n_in, rows.reshape(-1))))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last dimension."""
        return torch.from_numpy(self._rows.rms_norm(_array(x), _array(weight), eps))

    def l2_norm(self, x: Tensor, eps: float) -> Tensor:
        """Over the last dimension."""
        return torch.from_numpy(self._rows.l2_norm(_array(x), eps))

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, *, adjacent_pairs: bool) -> Tensor:
        """Rotate x [T, h, d] by cos and sin [T, d_rot]."""
        rotated = self._rows.rope(_array(x), _array(cos), _array(sin), adjacent_pairs=adjacent_pairs)
        return torch.from_numpy(rotated)

    def attention(self, q: Tensor, cache: KVLayer, segments: Sequence[Segment], scale: float) -> Tensor:
        """Causal attention of q [T, n_head, d_head] -> [T, n_head, d_head_v]."""
        keys, values = _in_place("keys", cache.keys), _in_place("values", cache.values)
        return torch.from_numpy(self._rows.attention(_array(q), keys, values, segments, scale))

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up."""
        return torch.from_numpy(self._rows.silu_mul(_array(gate), _array(up)))

    def silu(self, x: Tensor) -> Tensor:
        """x * sigmoid(x)."""
        return torch.from_numpy(self._rows.silu(_array(x)))

    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))."""
        return torch.from_numpy(self._rows.sigmoid(_array(x)))

    def softplus(self, x: Tensor) -> Tensor:
        """log(1 + exp(x))."""
        return torch.from_numpy(self._rows.softplus(_array(x)))

    def softmax(self, x: Tensor) -> Tensor:
        """Over the last dimension."""
        return torch.from_numpy(self._rows.softmax(_array(x)))

    def causal_conv(self, x: Tensor, weight: Tensor, state: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Depthwise convolution of x [T, c] with weight [c, width]; state in place."""
        out = self._rows.causal_conv(_array(x), _array(weight), _in_place("state", state), segments)
        return torch.from_numpy(out)

    def delta_rule(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        state: Tensor,
        segments: Sequence[Segment],
    ) -> Tensor:
        """Gated delta rule, token after token; state in place."""
        out = self._rows.delta_rule(
            _array(q), _array(k), _array(v), _array(log_decay), _array(beta), _in_place("state", state), segments
        )
        return torch.from_numpy(out)

    def combine(self, partials: Tensor, weights: Tensor) -> Tensor:
        """Σ_j weights[t, j] * partials[t, j], j ascending."""
        return torch.from_numpy(self._rows.combine(_array(partials), _array(weights)))


def _array(tensor: Tensor) -> FloatArray:
    """The tensor's memory as numpy sees it, or a copy of one that is not contiguous."""
    array: FloatArray = tensor.contiguous().numpy()
    return array


def _in_place(name: str, tensor: Tensor) -> FloatArray:
    """Memory that the C library writes to or must not copy."""
    if not tensor.is_contiguous():
        raise KernelError(f"{name} is not contiguous; it is read and written where it lies")
    return _array(tensor)
