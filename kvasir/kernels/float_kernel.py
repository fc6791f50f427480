"""The float kernel: experts dequantised to f32. A slow oracle, and the only kernel for types that KX1 does not support.

Called through `registry` by the worker and the backbone's replica. It computes with the exact weights in one fixed
order of f32 operations, so its bits do not depend on the batch, the machine or the thread count. It does not imitate
llama.cpp's integer path. At 3072 x 1024 it is about 10 times slower than KX1 in C, and in numpy 1000 times.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from kvasir.errors import KernelError
from kvasir.experts import FloatRows, LayerExperts, WeightMatrix
from kvasir.kernels.api import FLOAT_NAME, FLOAT_VERSION, EncodedRows, Floats, Pairs, RowFormat, kernel_fingerprint
from kvasir.kernels.checks import check_encoded_rows, check_finite, check_float_rows, check_pairs, check_range
from kvasir.kernels.rowops import RowOps, row_ops
from kvasir.kernels.selftest import self_test

if TYPE_CHECKING:
    from kvasir.kernels.api import ExpertKernel

DEFAULT_CACHE_BYTES = 512 << 20
PAIRS_AT_ONCE = 1024  # of one expert: bounds the memory of a call


@cache
def is_dequantisable(quant_type: GGMLQuantizationType) -> bool:
    """Return whether gguf can dequantise this type."""
    if quant_type in {GGMLQuantizationType.F32, GGMLQuantizationType.F16}:
        return True
    try:
        gguf.dequantize(np.zeros(GGML_QUANT_SIZES[quant_type][1], np.uint8), quant_type)
    except NotImplementedError:
        return False
    return True


def dequantised(matrix: WeightMatrix) -> Floats:
    """Return a matrix as f32 [n_out, n_in]; a view of the file's bytes if they are f32 already.

    Raises KernelError for a type that gguf cannot dequantise.
    """
    if not is_dequantisable(matrix.quant_type):
        raise KernelError(f"weights of type {matrix.quant_type.name} cannot be dequantised")
    if matrix.quant_type is GGMLQuantizationType.F32:
        plain: Floats = matrix.data.view("<f4").reshape(matrix.n_out, matrix.n_in)
        return np.require(plain, np.float32, ["C", "A"])
    blocks: npt.NDArray[np.uint8] = matrix.data.reshape(matrix.n_out, -1)
    if matrix.quant_type is GGMLQuantizationType.F16:
        return blocks.view("<f2").astype(np.float32)
    return np.ascontiguousarray(gguf.dequantize(blocks, matrix.quant_type), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class FloatExpert:
    """One expert's weights as f32."""

    gate: Floats  # [d_ff, d_model]
    up: Floats  # [d_ff, d_model]
    down: Floats  # [d_model, d_ff]

    @property
    def n_bytes(self) -> int:
        """Return the bytes of the matrices, in a mapped file or in memory."""
        return self.gate.nbytes + self.up.nbytes + self.down.nbytes


class FloatExpertCache:
    """The most recently used experts, within a byte budget. Safe to use from several threads."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._held: OrderedDict[tuple[int, int], FloatExpert] = OrderedDict()
        self._lock = threading.Lock()
        self.n_bytes = 0

    def expert(self, load_number: int, experts: LayerExperts, local_id: int) -> FloatExpert:
        """Return an expert of the layer that was loaded as number `load_number`, dequantised now or earlier."""
        key = (load_number, local_id)
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found
        stacks = (experts.gate, experts.up, experts.down)
        made = FloatExpert(*(dequantised(stack.expert(local_id)) for stack in stacks))
        with self._lock:
            if key not in self._held and made.n_bytes <= self._budget_bytes:
                self._held[key] = made
                self.n_bytes += made.n_bytes
                while self.n_bytes > self._budget_bytes:
                    self.n_bytes -= self._held.popitem(last=False)[1].n_bytes
        return made


class FloatKernel:
    """Experts in f32; implements ExpertKernel. `cache_bytes` bounds the dequantised experts that are kept."""

    name = FLOAT_NAME
    row_format = RowFormat.F32

    def __init__(
        self, n_threads: int | None = None, *, cache_bytes: int = DEFAULT_CACHE_BYTES, ops: RowOps | None = None
    ) -> None:
        self._ops = row_ops(n_threads) if ops is None else ops
        self._cache = FloatExpertCache(cache_bytes)
        self._load_numbers = itertools.count()

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits. Raises KernelError if this build fails the self-test."""
        kernel: ExpertKernel = self
        return kernel_fingerprint(FLOAT_NAME, FLOAT_VERSION, self_test(kernel))

    def refusal(self, experts: LayerExperts) -> str | None:
        """Return why these experts cannot be computed, or None: only types without dequantisation are refused."""
        for name, stack in (("gate", experts.gate), ("up", experts.up), ("down", experts.down)):
            if not is_dequantisable(stack.quant_type):
                return f"layer {experts.layer}: {name} is {stack.quant_type.name}, which cannot be dequantised"
        return None

    def load(self, experts: LayerExperts) -> LoadedFloatExperts:
        """Load without reading: an expert is dequantised on its first use. Raises KernelError with the reason."""
        reason = self.refusal(experts)
        if reason is not None:
            raise KernelError(reason)
        return LoadedFloatExperts(self._ops, self._cache, next(self._load_numbers), experts)

    def encode_rows(self, rows: FloatRows) -> EncodedRows:
        """Encode finite f32 rows [n, d_model] as their bytes, uint8 [n, 4 * d_model]."""
        check_float_rows(rows)
        check_finite(rows)
        encoded: EncodedRows = np.ascontiguousarray(rows, "<f4").view(np.uint8)
        return encoded

    def row_bytes(self, d_model: int) -> int:
        """Return the bytes of one row: 4 per value."""
        return 4 * d_model


class LoadedFloatExperts:
    """The experts of one layer; implements LoadedExperts. Safe to call from several threads."""

    def __init__(self, ops: RowOps, expert_cache: FloatExpertCache, load_number: int, experts: LayerExperts) -> None:
        self._ops, self._cache, self._load_number, self._experts = ops, expert_cache, load_number, experts

    @property
    def layer(self) -> int:
        return self._experts.layer

    @property
    def n_expert(self) -> int:
        return self._experts.n_expert

    @property
    def d_model(self) -> int:
        return self._experts.d_model

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        """Compute f32 [n_pairs, d_model], one expert after another; see LoadedExperts."""
        check_encoded_rows(rows, 4 * self.d_model)
        check_pairs(pair_rows, pair_ids)
        check_range("row number", pair_rows, len(rows))
        check_range("local expert id", pair_ids, self.n_expert)
        values = np.ascontiguousarray(rows).view("<f4").astype(np.float32, copy=False)
        check_finite(values)
        out = np.empty((len(pair_ids), self.d_model), np.float32)
        for local_id in np.unique(pair_ids):
            pairs = np.flatnonzero(pair_ids == local_id)
            for start in range(0, len(pairs), PAIRS_AT_ONCE):
                some = pairs[start : start + PAIRS_AT_ONCE]
                out[some] = self._compute_expert(int(local_id), values[pair_rows[some]])
        return out

    def _compute_expert(self, local_id: int, x: Floats) -> Floats:
        weights, experts = self._cache.expert(self._load_number, self._experts, local_id), self._experts
        gate = _with_bias(self._ops.matmul(x, weights.gate), experts.gate_bias, local_id)
        up = _with_bias(self._ops.matmul(x, weights.up), experts.up_bias, local_id)
        down = self._ops.matmul(self._ops.silu_mul(gate, up), weights.down)
        return _with_bias(down, experts.down_bias, local_id)


def _with_bias(rows: Floats, bias: Floats | None, local_id: int) -> Floats:
    return rows if bias is None else rows + bias[local_id]
