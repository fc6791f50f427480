"""The KX1 kernel in numpy: oracle of the C build, and the last resort where no C build can be had.

Called through `registry` and by tests. The same name, fingerprint and bits as the C kernel; integers only. It
keeps no unpacked weights: the memory it needs beside the mapped file is a few megabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kvasir.errors import KernelError
from kvasir.experts import ExpertStack, FloatRows, LayerExperts, WeightMatrix
from kvasir.kernels.api import EncodedRows, Pairs, RowFormat
from kvasir.kernels.fingerprint import KX1_NAME, KX1_VERSION, kernel_fingerprint
from kvasir.kernels.oracle_rows import BLOCK, MAX_COLS, PACKED_BLOCK, pack, quantise, unpack
from kvasir.kernels.oracle_steps import ExactMatrix, expert, matmul
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
        """Why KX1 cannot compute these experts, or None. Scales that are not finite are found when they are read."""
        if experts.has_bias:
            return f"layer {experts.layer} has expert biases, which KX1 does not compute"
        for name, stack in _stacks(experts):
            reason = matrix_refusal(stack)
            if reason is not None:
                return f"layer {experts.layer}: {name} {reason}"
        return None

    def load(self, experts: LayerExperts) -> LoadedNumpyExperts:
        """Ready at once. Raises KernelError with the reason for experts that KX1 cannot compute."""
        reason = self.refusal(experts)
        if reason is not None:
            raise KernelError(reason)
        return LoadedNumpyExperts(experts)

    def encode_rows(self, rows: FloatRows) -> EncodedRows:
        """Finite f32 rows [n, d_model] in KX1's packed form, uint8 [n, row_bytes]."""
        _check_float_rows(rows)
        encoded = np.empty((len(rows), self.row_bytes(rows.shape[1])), np.uint8)
        for start in range(0, len(rows), ENCODED_AT_ONCE):
            part = rows[start : start + ENCODED_AT_ONCE]
            _check_finite(part, start)
            encoded[start : start + ENCODED_AT_ONCE] = pack(quantise(part))
        return encoded

    def row_bytes(self, d_model: int) -> int:
        """Bytes of one packed row: 261 for each 256 values. Raises KernelError for a width that KX1 lacks."""
        if not _is_width(d_model):
            raise KernelError(f"rows have {d_model} values; KX1 needs {_WIDTHS}")
        return d_model // BLOCK * PACKED_BLOCK

    def prepare(self, matrix: WeightMatrix) -> ExactMatrix:
        """A dense matrix with its `ew`. Raises KernelError for a matrix that KX1 cannot compute."""
        reason = matrix_refusal(matrix)
        if reason is not None:
            raise KernelError(f"matrix {reason}")
        return ExactMatrix.of(matrix)

    def linear(self, rows: FloatRows, matrices: Sequence[ExactMatrix]) -> list[FloatRows]:
        """Finite f32 rows [n, n_in] times each matrix: f32 [n, n_out] each. Steps 1 to 4 of the specification.

        Raises KernelError for rows of another width and for rows that are not finite.
        """
        _check_float_rows(rows)
        for matrix in matrices:
            if matrix.weights.n_in != rows.shape[1]:
                raise KernelError(f"rows have {rows.shape[1]} values; the matrix has {matrix.weights.n_in} columns")
        _check_finite(rows, 0)
        quantised = quantise(rows)
        return [matmul(matrix, quantised) for matrix in matrices]


class LoadedNumpyExperts:
    """The experts of one layer, mapped in place; implements LoadedExperts."""

    def __init__(self, experts: LayerExperts) -> None:
        self._experts = experts
        self._matrices: dict[int, tuple[ExactMatrix, ...]] = {}  # by local id: gate, up, down

    @property
    def layer(self) -> int:
        return self._experts.layer

    @property
    def n_expert(self) -> int:
        return self._experts.n_expert

    @property
    def d_model(self) -> int:
        return self._experts.d_model

    def read_scales(self, local_ids: Iterable[int] | None = None) -> None:
        """Find `ew` of these experts' matrices (None: of all), which reads their weights once.

        `compute` does it for the experts that it meets first. Raises KernelError for a scale that is not finite.
        """
        for local_id in range(self.n_expert) if local_ids is None else local_ids:
            self._matrices_of(int(local_id))

    def _matrices_of(self, local_id: int) -> tuple[ExactMatrix, ...]:
        found = self._matrices.get(local_id)
        if found is None:
            found = tuple(_exact_matrix(self.layer, name, stack, local_id) for name, stack in _stacks(self._experts))
            self._matrices[local_id] = found
        return found

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        """f32 [n_pairs, d_model]; see LoadedExperts. Experts are computed one after another, by id."""
        self._check(rows, pair_rows, pair_ids)
        quantised = unpack(rows)
        out = np.empty((len(pair_rows), self.d_model), np.float32)
        for local_id in np.unique(pair_ids):
            pairs = np.flatnonzero(pair_ids == local_id)
            gate, up, down = self._matrices_of(int(local_id))
            out[pairs] = expert(gate, up, down, quantised.select(pair_rows[pairs].astype(np.int64)))
        return out

    def _check(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> None:
        row_bytes = self.d_model // BLOCK * PACKED_BLOCK
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


def matrix_refusal(matrix: WeightMatrix | ExpertStack) -> str | None:
    """Why KX1 cannot compute a matrix of this type and shape, or None."""
    if matrix.quant_type not in BLOCK_BYTES:
        return f"is {matrix.quant_type.name}; KX1 computes {', '.join(known.name for known in BLOCK_BYTES)}"
    if not _is_width(matrix.n_in):
        return f"has {matrix.n_in} columns; KX1 needs {_WIDTHS}"
    if matrix.n_out < 1:
        return f"has {matrix.n_out} rows; KX1 needs 1 or more"
    return None


def _check_float_rows(rows: FloatRows) -> None:
    if rows.ndim != 2 or rows.dtype != np.float32:
        raise KernelError(f"rows are {rows.dtype} of shape {rows.shape}; float32 [n, d_model] is needed")


def _check_finite(rows: FloatRows, first: int) -> None:
    """Raise KernelError for the first value that is not finite; rows[0] is called row `first`."""
    is_finite = np.isfinite(rows)
    if not is_finite.all():
        row, col = (int(i) for i in np.argwhere(~is_finite)[0])
        raise KernelError(f"row {first + row} holds {rows[row, col]} at {col}; rows must be finite")


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
