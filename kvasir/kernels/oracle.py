"""The KX1 kernel in numpy: oracle of the C build, and the last resort where no C build can be had.

Called through `registry` and by tests. The same name, fingerprint and bits as the C kernel; integers only. It
keeps no unpacked weights: the memory it needs beside the mapped file is a few megabytes.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kvasir.errors import KernelError
from kvasir.experts import ExpertStack, FloatRows, LayerExperts
from kvasir.kernels.api import EncodedRows, Pairs, RowFormat
from kvasir.kernels.fingerprint import KX1_NAME, KX1_VERSION, kernel_fingerprint
from kvasir.kernels.oracle_rows import BLOCK, MAX_COLS, PACKED_BLOCK, pack, quantise, unpack
from kvasir.kernels.oracle_steps import ExactMatrix, expert
from kvasir.kernels.oracle_weights import BLOCK_BYTES
from kvasir.kernels.selftest import self_test

if TYPE_CHECKING:
    from kvasir.kernels.api import ExpertKernel

ENCODED_AT_ONCE = 256  # rows quantised at a time: bounds memory


class NumpyKX1Kernel:
    """KX1 without native code; implements ExpertKernel."""

    name = KX1_NAME
    row_format = RowFormat.KX1

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits; raises KernelError when this build fails the self-test."""
        kernel: ExpertKernel = self
        return kernel_fingerprint(KX1_NAME, KX1_VERSION, self_test(kernel))

    def refusal(self, experts: LayerExperts) -> str | None:
        """Why KX1 cannot compute these experts, or None. Scales that are not finite are found by `load`."""
        if experts.has_bias:
            return f"layer {experts.layer} has expert biases, which KX1 does not compute"
        for name, stack in _stacks(experts):
            if stack.quant_type not in BLOCK_BYTES:
                known = ", ".join(quant_type.name for quant_type in BLOCK_BYTES)
                return f"layer {experts.layer}: {name} is {stack.quant_type.name}; KX1 computes {known}"
            if not _is_width(stack.n_in):
                return f"layer {experts.layer}: {name} has {stack.n_in} columns; KX1 needs {_WIDTHS}"
        return None

    def load(self, experts: LayerExperts) -> LoadedNumpyExperts:
        """Find each matrix's `ew`. Raises KernelError with the reason for experts that KX1 cannot compute."""
        reason = self.refusal(experts)
        if reason is not None:
            raise KernelError(reason)
        matrices = [
            [_exact_matrix(experts.layer, name, stack, local_id) for name, stack in _stacks(experts)]
            for local_id in range(experts.n_expert)
        ]
        return LoadedNumpyExperts(experts.layer, experts.d_model, matrices)

    def encode_rows(self, rows: FloatRows) -> EncodedRows:
        """Finite f32 rows [n, d_model] in KX1's packed form, uint8 [n, row_bytes]."""
        if rows.ndim != 2 or rows.dtype != np.float32:
            raise KernelError(f"rows are {rows.dtype} of shape {rows.shape}; float32 [n, d_model] is needed")
        encoded = np.empty((len(rows), self.row_bytes(rows.shape[1])), np.uint8)
        for start in range(0, len(rows), ENCODED_AT_ONCE):
            part = rows[start : start + ENCODED_AT_ONCE]
            is_finite = np.isfinite(part)
            if not is_finite.all():
                row, col = (int(i) for i in np.argwhere(~is_finite)[0])
                raise KernelError(f"row {start + row} holds {part[row, col]} at {col}; rows must be finite")
            encoded[start : start + ENCODED_AT_ONCE] = pack(quantise(part))
        return encoded

    def row_bytes(self, d_model: int) -> int:
        """Bytes of one packed row: 261 for each 256 values."""
        if not _is_width(d_model):
            raise KernelError(f"rows have {d_model} values; KX1 needs {_WIDTHS}")
        return d_model // BLOCK * PACKED_BLOCK


class LoadedNumpyExperts:
    """The experts of one layer with their weight exponents; implements LoadedExperts."""

    def __init__(self, layer: int, d_model: int, matrices: list[list[ExactMatrix]]) -> None:
        self._layer = layer
        self._d_model = d_model
        self._matrices = matrices  # [n_expert][gate, up, down]

    @property
    def layer(self) -> int:
        return self._layer

    @property
    def n_expert(self) -> int:
        return len(self._matrices)

    @property
    def d_model(self) -> int:
        return self._d_model

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        """f32 [n_pairs, d_model]; see LoadedExperts. Experts are computed one after another, by id."""
        self._check(rows, pair_rows, pair_ids)
        quantised = unpack(rows)
        out = np.empty((len(pair_rows), self._d_model), np.float32)
        for local_id in np.unique(pair_ids):
            pairs = np.flatnonzero(pair_ids == local_id)
            gate, up, down = self._matrices[local_id]
            out[pairs] = expert(gate, up, down, quantised.select(pair_rows[pairs].astype(np.int64)))
        return out

    def _check(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> None:
        row_bytes = self._d_model // BLOCK * PACKED_BLOCK
        if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != row_bytes:
            raise KernelError(f"rows are {rows.dtype} of shape {rows.shape}; uint8 [n, {row_bytes}] is needed")
        for name, pairs in (("pair_rows", pair_rows), ("pair_ids", pair_ids)):
            if pairs.dtype != np.int32 or pairs.ndim != 1:
                raise KernelError(f"{name} is {pairs.dtype} of shape {pairs.shape}; int32 [n_pairs] is needed")
        if len(pair_rows) != len(pair_ids):
            raise KernelError(f"{len(pair_rows)} pair_rows but {len(pair_ids)} pair_ids; one of each a pair is needed")
        _check_range("row number", pair_rows, len(rows))
        _check_range("local expert id", pair_ids, self.n_expert)


_WIDTHS = f"a multiple of {BLOCK}, {BLOCK} to {MAX_COLS}"


def _is_width(cols: int) -> bool:
    return 0 < cols <= MAX_COLS and cols % BLOCK == 0


def _check_range(what: str, numbers: Pairs, stop: int) -> None:
    bad = (numbers < 0) | (numbers >= stop)
    if bad.any():
        raise KernelError(f"{what} {int(numbers[bad][0])} does not exist; there are {stop}")


def _stacks(experts: LayerExperts) -> tuple[tuple[str, ExpertStack], ...]:
    return (("gate", experts.gate), ("up", experts.up), ("down", experts.down))


def _exact_matrix(layer: int, name: str, stack: ExpertStack, local_id: int) -> ExactMatrix:
    try:
        return ExactMatrix.of(stack.expert(local_id))
    except KernelError as error:
        raise KernelError(f"layer {layer}, local expert {local_id}, {name}: {error}") from error
