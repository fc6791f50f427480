"""The KX1 kernel in numpy: the oracle of the C build, and the fallback where the C library is not built.

Called through `registry` and by tests. It has the same name, fingerprint and bits as the C kernel, and computes with
integers only. It keeps no unpacked weights: beside the mapped file it needs a few megabytes of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kvasir.errors import KernelError
from kvasir.experts import ExpertStack, FloatRows, LayerExperts, WeightMatrix
from kvasir.kernels.api import KX1_NAME, KX1_VERSION, EncodedRows, Pairs, RowFormat, kernel_fingerprint
from kvasir.kernels.checks import (
    check_encoded_rows,
    check_finite,
    check_float_rows,
    check_pairs,
    check_range,
    kx1_matrix_refusal,
    kx1_refusal,
    kx1_row_bytes,
)
from kvasir.kernels.oracle.rows import pack, quantise, unpack
from kvasir.kernels.oracle.steps import ExactMatrix, expert, matmul
from kvasir.kernels.selftest import self_test

if TYPE_CHECKING:
    from kvasir.kernels.api import ExpertKernel

ENCODED_AT_ONCE = 256  # rows quantised at a time: bounds memory


class NumpyKX1Kernel:
    """KX1 in numpy; implements ExpertKernel."""

    name = KX1_NAME
    row_format = RowFormat.KX1

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits. Raises KernelError if this build fails the self-test."""
        kernel: ExpertKernel = self
        return kernel_fingerprint(KX1_NAME, KX1_VERSION, self_test(kernel))

    def refusal(self, experts: LayerExperts) -> str | None:
        """Return why KX1 cannot compute these experts, or None."""
        return kx1_refusal(experts)

    def load(self, experts: LayerExperts) -> LoadedNumpyExperts:
        """Load without reading. Raises KernelError with the reason for experts that KX1 cannot compute."""
        reason = self.refusal(experts)
        if reason is not None:
            raise KernelError(reason)
        return LoadedNumpyExperts(experts)

    def encode_rows(self, rows: FloatRows) -> EncodedRows:
        """Encode finite f32 rows [n, d_model] in KX1's packed form, uint8 [n, row_bytes]."""
        check_float_rows(rows)
        encoded = np.empty((len(rows), self.row_bytes(rows.shape[1])), np.uint8)
        for start in range(0, len(rows), ENCODED_AT_ONCE):
            part = rows[start : start + ENCODED_AT_ONCE]
            check_finite(part, start)
            encoded[start : start + ENCODED_AT_ONCE] = pack(quantise(part))
        return encoded

    def row_bytes(self, d_model: int) -> int:
        """Return the bytes of one packed row. Raises KernelError for a width that KX1 does not support."""
        return kx1_row_bytes(d_model)

    def prepare(self, matrix: WeightMatrix) -> ExactMatrix:
        """Compute a dense matrix's `ew`. Raises KernelError for a matrix that KX1 cannot compute."""
        reason = kx1_matrix_refusal(matrix)
        if reason is not None:
            raise KernelError(f"matrix {reason}")
        return ExactMatrix.of(matrix)

    def linear(self, rows: FloatRows, matrices: Sequence[ExactMatrix]) -> list[FloatRows]:
        """Multiply finite f32 rows [n, n_in] by each matrix: f32 [n, n_out] each (steps 1 to 4 of KX1).

        Raises KernelError for rows of another width and for rows that are not finite.
        """
        check_float_rows(rows)
        for matrix in matrices:
            if matrix.weights.n_in != rows.shape[1]:
                raise KernelError(f"rows have {rows.shape[1]} values; the matrix has {matrix.weights.n_in} columns")
        check_finite(rows)
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
        """Compute `ew` of these experts' matrices (None: of all), which reads their weights once.

        `compute` does this for experts that it has not used before. Raises KernelError for a scale that is not finite.
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
        """Compute f32 [n_pairs, d_model], one expert after another; see LoadedExperts."""
        check_encoded_rows(rows, kx1_row_bytes(self.d_model))
        check_pairs(pair_rows, pair_ids)
        check_range("row number", pair_rows, len(rows))
        check_range("local expert id", pair_ids, self.n_expert)
        quantised = unpack(rows)
        out = np.empty((len(pair_rows), self.d_model), np.float32)
        for local_id in np.unique(pair_ids):
            pairs = np.flatnonzero(pair_ids == local_id)
            gate, up, down = self._matrices_of(int(local_id))
            out[pairs] = expert(gate, up, down, quantised.select(pair_rows[pairs].astype(np.int64)))
        return out


def _stacks(experts: LayerExperts) -> tuple[tuple[str, ExpertStack], ...]:
    return (("gate", experts.gate), ("up", experts.up), ("down", experts.down))


def _exact_matrix(layer: int, name: str, stack: ExpertStack, local_id: int) -> ExactMatrix:
    try:
        return ExactMatrix.of(stack.expert(local_id))
    except KernelError as error:
        raise KernelError(f"layer {layer}, local expert {local_id}, {name}: {error}") from error
