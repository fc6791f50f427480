"""The dense path with fixed bits: KX1 on quantised matrices in place, and C row operations for the rest.

Production runs this; the loader and the layers use it through `interface.Ops`. A row's result is computed from its own
inputs in a fixed order, so it does not depend on its batch, on how a prompt is cut, on the CPU or on the threads.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from backbone.engine.ops.devices import CPU
from backbone.engine.ops.interface import HeadForm, KVLayer, Linear, RopeTable, Routing, Segment
from backbone.engine.ops.model_config import RouterConfig, ScoreFunction
from kvasir.errors import KernelError
from kvasir.experts import WeightMatrix
from kvasir.kernels import native
from kvasir.kernels.checks import check_finite
from kvasir.kernels.float_kernel import dequantised
from kvasir.kernels.kx1 import KX1Kernel, KX1Matrix, matrix_refusal
from kvasir.kernels.native import address
from kvasir.kernels.rowops import NativeRowOps, checked_segments

FloatArray = npt.NDArray[np.float32]


class StableOps:
    """Implement `Ops` in float32. `isa` None is the best build, `n_threads` None is every usable core.

    Raises KernelError, which says how to build it, when the C library is not built.
    """

    dtype = torch.float32
    device = CPU

    def __init__(self, isa: str | None = None, n_threads: int | None = None) -> None:
        if not native.available():
            raise KernelError(
                "the quantised dense path needs Kvasir's C library: run `python -m kvasir.kernels.build` (it needs a C "
                "compiler, or `pip install ziglang`), or run with `--dense float`, which is slower"
            )
        self._kx1 = KX1Kernel(isa, n_threads)
        self._rows = NativeRowOps(isa, n_threads)
        library = native.load()
        self._lib, self._isa, self._n_threads = library.lib, library.isa(self._kx1.isa_name), self._kx1.n_threads

    @property
    def name(self) -> str:
        """Return the same name on every machine, as the bits are the same."""
        return "kx1"

    @property
    def is_batch_stable(self) -> bool:
        """Return True."""
        return True

    def make_linear(self, matrix: WeightMatrix, bias: Tensor | None = None) -> Linear:
        """Use KX1 in place where it supports the type and the width, else dequantise once to f32.

        Q8_0 takes two terms: its weights are so precise that KX1's rounding of the rows would be most of the error.
        """
        if matrix_refusal(matrix) is not None:
            return Linear(matrix.n_in, matrix.n_out, _weights(matrix), bias)
        n_terms = 2 if matrix.quant_type is GGMLQuantizationType.Q8_0 else 1
        return Linear(matrix.n_in, matrix.n_out, self._kx1.prepare(matrix, n_terms), bias)

    def linear(self, x: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        """Multiply x [T, n_in]: one [T, n_out] a linear. x is quantised once for those that KX1 computes."""
        x = _float_rows(x)
        n_rows, n_in = x.shape
        results = [torch.empty((n_rows, linear.n_out)) for linear in linears]
        matrices, outputs = [], []
        for linear, result in zip(linears, results, strict=True):
            if isinstance(linear.weight, KX1Matrix):
                matrices.append(linear.weight)
                outputs.append(result.data_ptr())
            else:
                self._float_linear(x, linear, result)
        if matrices and not self._kx1.multiply(x.data_ptr(), n_rows, n_in, matrices, outputs):
            check_finite(x.numpy())
        return tuple(
            result if linear.bias is None else result.add_(linear.bias)
            for linear, result in zip(linears, results, strict=True)
        )

    def _float_linear(self, x: Tensor, linear: Linear, result: Tensor) -> None:
        n_rows, n_in = x.shape
        if linear.n_in != n_in:
            raise KernelError(f"rows have {n_in} values; the matrix has {linear.n_in} columns")
        weight, n_out = linear.weight.data_ptr(), linear.n_out
        self._lib.kv_matmul(self._isa, x.data_ptr(), n_rows, n_in, weight, n_out, result.data_ptr(), self._n_threads)

    def embed(self, matrix: WeightMatrix, token_ids: Tensor) -> Tensor:
        """Dequantise the rows of these tokens: int64 [T] -> [T, n_in]."""
        ids = token_ids.numpy()
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < matrix.n_out:
            raise KernelError(f"token ids {int(ids.min())} to {int(ids.max())} are not all below {matrix.n_out}")
        if not len(ids):
            return torch.empty(0, matrix.n_in)
        rows = np.ascontiguousarray(matrix.data.reshape(matrix.n_out, -1)[ids])  # a copy: the result may be its view
        return torch.from_numpy(dequantised(WeightMatrix(matrix.quant_type, len(ids), matrix.n_in, rows.reshape(-1))))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last dimension."""
        x, d = _float_rows(x), weight.numel()
        if x.shape[-1] != d:
            raise KernelError(f"rows of {x.shape[-1]} values cannot be normalised by {d} weights")
        out = torch.empty_like(x)
        self._lib.kv_norm(
            self._isa, x.data_ptr(), x.numel() // d, d, 1.0 / d, eps, weight.data_ptr(), out.data_ptr(), self._n_threads
        )
        return out

    def l2_norm(self, x: Tensor, eps: float) -> Tensor:
        """Over the last dimension."""
        return torch.from_numpy(self._rows.l2_norm(_array(x), eps))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        form: HeadForm,
        rope: RopeTable,
        cache: KVLayer,
        segments: Sequence[Segment],
    ) -> Tensor:
        """Normalise, rotate and cache projected rows and attend with them, in one call."""
        query, key, value = _float_rows(query), _float_rows(key), _float_rows(value)
        n_rows, shape = query.shape[0], _heads_shape(query, key, value, form, rope, cache)
        numbers = checked_segments(segments, n_rows, cache.keys.shape[0], shape[0])
        out = torch.empty((n_rows, shape[1], shape[4]))
        error = self._lib.kv_attend(
            self._isa,
            (ctypes.c_int64 * len(shape))(*shape),
            _heads_input(query, key, value, form, rope),
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
            address(numbers),
            len(numbers),
            out.data_ptr(),
            self._n_threads,
        )
        if error:
            raise KernelError("out of memory for attention's scores")
        return out

    def route(self, logits: Tensor, config: RouterConfig, selection_bias: Tensor | None) -> Routing:
        """Choose as `TorchOps.route` does for the same scores."""
        logits, n_rows = _float_rows(logits), logits.shape[0]
        if logits.shape[1] != config.n_expert:
            raise KernelError(f"there are logits for {logits.shape[1]} experts of {config.n_expert}")
        if selection_bias is not None and selection_bias.shape != (config.n_expert,):
            raise KernelError(f"the selection bias is {list(selection_bias.shape)}; [{config.n_expert}] is needed")
        form = native.RouterForm(
            config.n_expert,
            config.n_used,
            config.n_group,
            config.n_group_used,
            config.score_function is ScoreFunction.SIGMOID,
            config.is_normalised,
            None if selection_bias is None else selection_bias.data_ptr(),
            config.weights_scale,
        )
        ids, weights = torch.empty((n_rows, config.n_used), dtype=torch.int64), torch.empty((n_rows, config.n_used))
        error = self._lib.kv_route(
            self._isa, form, logits.data_ptr(), n_rows, ids.data_ptr(), weights.data_ptr(), self._n_threads
        )
        if error:
            raise KernelError(f"experts cannot be chosen by {config}, or memory is out")
        return Routing(ids, weights)

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

    def causal_conv(self, x: Tensor, weight: Tensor, state: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Convolve x [T, c] depthwise with weight [c, width]; the state changes in place."""
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
        """Apply the gated delta rule token by token; the state changes in place."""
        out = self._rows.delta_rule(
            _array(q), _array(k), _array(v), _array(log_decay), _array(beta), _in_place("state", state), segments
        )
        return torch.from_numpy(out)

    def combine(self, partials: Tensor, weights: Tensor) -> Tensor:
        """Σ_j weights[t, j] * partials[t, j], j ascending."""
        partials, weights = _float_rows(partials), _float_rows(weights)
        n_rows, n_used, d = partials.shape
        if n_used < 1 or weights.shape != (n_rows, n_used):
            raise KernelError(f"weights {list(weights.shape)} do not fit to partials {list(partials.shape)}")
        out = torch.empty((n_rows, d))
        self._lib.kv_combine(
            partials.data_ptr(), weights.data_ptr(), n_rows, n_used, d, out.data_ptr(), self._n_threads
        )
        return out


def _heads_input(query: Tensor, key: Tensor, value: Tensor, form: HeadForm, rope: RopeTable) -> native.HeadsInput:
    """Return the addresses of attention's inputs; they are valid while the tensors live."""
    return native.HeadsInput(
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        None if form.query_norm is None else form.query_norm.data_ptr(),
        None if form.key_norm is None else form.key_norm.data_ptr(),
        rope.cos.data_ptr(),
        rope.sin.data_ptr(),
        form.norm_eps,
        form.scale,
    )


def _heads_shape(
    query: Tensor, key: Tensor, value: Tensor, form: HeadForm, rope: RopeTable, cache: KVLayer
) -> tuple[int, ...]:
    """Return heads_shape of csrc/rowops.h. Raises KernelError for shapes that do not fit together."""
    n_slot, n_kv_head, n_ctx, d_head = cache.keys.shape
    d_value, (n_rows, d_query) = cache.values.shape[3], query.shape
    norms = [0 if norm is None else norm.numel() for norm in (form.query_norm, form.key_norm)]
    wanted = (
        ("keys", key.shape, (n_rows, n_kv_head * d_head)),
        ("values", value.shape, (n_rows, n_kv_head * d_value)),
        ("cached values", cache.values.shape, (n_slot, n_kv_head, n_ctx, d_value)),
        ("cosines", rope.cos.shape, (n_ctx, rope.cos.shape[1])),
    )
    for name, found, fitting in wanted:
        if found != fitting:
            raise KernelError(f"{name} {list(found)} do not fit; {list(fitting)} are needed")
    if d_query % (n_kv_head * d_head) or 2 * rope.cos.shape[1] > d_head:
        raise KernelError(f"queries of {d_query} and {rope.cos.shape[1]} rotated pairs do not fit heads of {d_head}")
    if norms[0] not in (0, d_head, d_query) or norms[1] not in (0, d_head, n_kv_head * d_head):
        raise KernelError(f"head norms of {norms} weights do not fit heads of {d_head}")
    for tensor in (cache.keys, cache.values, rope.cos, rope.sin):
        if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
            raise KernelError("cache and rotations are read in place: they must be float32 and contiguous")
    return (n_ctx, d_query // d_head, n_kv_head, d_head, d_value, *norms, rope.cos.shape[1], form.has_adjacent_pairs)


def _weights(matrix: WeightMatrix) -> Tensor:
    """Return a matrix as f32: a view of the file's bytes, which are never written, where they are f32 already."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return torch.from_numpy(dequantised(matrix))


def _float_rows(x: Tensor) -> Tensor:
    """Return the tensor, contiguous. Raises KernelError unless it is f32."""
    if x.dtype is not torch.float32:
        raise KernelError(f"rows are {x.dtype}; torch.float32 is needed")
    return x if x.is_contiguous() else x.contiguous()


def _array(tensor: Tensor) -> FloatArray:
    """Return the tensor's memory as a numpy array, or a copy of a tensor that is not contiguous."""
    array: FloatArray = tensor.contiguous().numpy()
    return array


def _in_place(name: str, tensor: Tensor) -> FloatArray:
    """Return memory that the C library writes to, hence no copy. Raises KernelError unless it is contiguous."""
    if not tensor.is_contiguous():
        raise KernelError(f"{name} is not contiguous; it is read and written in place")
    return _array(tensor)
