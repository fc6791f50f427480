"""KX1 in C: the expert kernel of production, and the dense linears of the backbone.

Called through `registry` by the worker and the backbone's replica, and by `stable_ops`. Weights stay in the mapped
file; rows, ids and shapes are checked before anything is computed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvasir.errors import KernelError
from kvasir.experts import FloatRows, LayerExperts, WeightMatrix
from kvasir.kernels import native
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
from kvasir.kernels.isa import NUMPY, wanted_isa
from kvasir.kernels.memory_pool import POOL
from kvasir.kernels.native import address
from kvasir.kernels.selftest import self_test

if TYPE_CHECKING:
    from kvasir.kernels.api import ExpertKernel

NOT_YET_KNOWN = -2  # in an array of weight exponents; C takes every negative number as unknown


@dataclass(frozen=True, slots=True, eq=False)
class KX1Matrix:
    """A matrix that `KX1Kernel.linear` accepts."""

    matrix: WeightMatrix
    call: native.LinearCall  # with its weight exponent


class KX1Kernel:
    """KX1 in native code; implements ExpertKernel. `isa` None: the build that KVASIR_ISA names, else the best one."""

    name = KX1_NAME
    row_format = RowFormat.KX1

    def __init__(self, isa: str | None = None, n_threads: int | None = None) -> None:
        self._library = native.load()
        forced = wanted_isa() if isa is None else isa
        self._isa = self._library.isa(None if forced == NUMPY else forced)
        self.n_threads = native.usable_cores() if n_threads is None else n_threads
        if self.n_threads < 1:
            raise KernelError(f"n_threads is {n_threads}; it must be 1 or more")

    @property
    def isa_name(self) -> str:
        """The build in use: "scalar", "avx2", "avx512", "neon" or "dotprod"."""
        return str(self._library.lib.kv_isa_name(self._isa).decode())

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits. Raises KernelError if this build fails the self-test."""
        kernel: ExpertKernel = self
        return kernel_fingerprint(KX1_NAME, KX1_VERSION, self_test(kernel))

    def refusal(self, experts: LayerExperts) -> str | None:
        """Return why KX1 cannot compute these experts, or None."""
        return kx1_refusal(experts)

    def load(self, experts: LayerExperts) -> LoadedKX1Experts:
        """Load without reading: an expert's weights are read when it is first computed.

        Raises KernelError with the reason for experts that KX1 cannot compute.
        """
        reason = self.refusal(experts)
        if reason is not None:
            raise KernelError(reason)
        return LoadedKX1Experts(self._library, self._isa, self.n_threads, experts)

    def encode_rows(self, rows: FloatRows) -> EncodedRows:
        """Encode finite f32 rows [n, d_model] in KX1's packed form, uint8 [n, row_bytes]."""
        check_float_rows(rows)
        encoded = np.empty((len(rows), self.row_bytes(rows.shape[1])), np.uint8)
        rows = np.ascontiguousarray(rows)
        error = self._library.lib.kv_kx1_pack_rows(
            address(rows), *rows.shape, address(encoded), ctypes.byref(ctypes.c_int64()), self.n_threads
        )
        if error:
            check_finite(rows)
            raise _native_error(error)
        return encoded

    def row_bytes(self, d_model: int) -> int:
        """Return the bytes of one packed row. Raises KernelError for a width that KX1 does not support."""
        return kx1_row_bytes(d_model)

    def prepare(self, matrix: WeightMatrix, n_terms: int = 1) -> KX1Matrix:
        """Read a dense matrix's scales once. Raises KernelError for a matrix that KX1 cannot compute.

        With `n_terms` 2 a row's quantisation error is quantised and multiplied too, and the two outputs are added in
        f32 (at most the largest finite value): the rows' error nearly vanishes, at twice the work.
        """
        if n_terms not in (1, 2):
            raise KernelError(f"n_terms is {n_terms}; it must be 1 or 2")
        reason = kx1_matrix_refusal(matrix)
        if reason is not None:
            raise KernelError(f"matrix {reason}")
        exponent = _weight_exponent(self._library, matrix)
        call = native.LinearCall(matrix.quant_type, exponent, n_terms, address(matrix.data), matrix.n_out)
        return KX1Matrix(matrix, call)

    def linear(self, rows: FloatRows, matrices: Sequence[KX1Matrix]) -> list[FloatRows]:
        """Multiply finite f32 rows [n, n_in] by each matrix: f32 [n, n_out] each. The rows are quantised once.

        Raises KernelError for rows of another width and for rows that are not finite.
        """
        check_float_rows(rows)
        rows = np.ascontiguousarray(rows)
        outputs = [np.empty((len(rows), m.matrix.n_out), np.float32) for m in matrices]
        n_rows, cols = rows.shape
        if not self.multiply(address(rows), n_rows, cols, matrices, [address(out) for out in outputs]):
            check_finite(rows)
        return outputs

    def multiply(
        self, rows: int, n_rows: int, cols: int, matrices: Sequence[KX1Matrix], outputs: Sequence[int]
    ) -> bool:
        """Compute `linear` between addresses of contiguous f32; return False for rows that are not finite.

        Raises KernelError if a matrix has another width.
        """
        n = len(matrices)
        for matrix in matrices:
            if matrix.matrix.n_in != cols:
                raise KernelError(f"rows have {cols} values; the matrix has {matrix.matrix.n_in} columns")
        calls = (native.LinearCall * n)(*[matrix.call for matrix in matrices])
        error = self._library.lib.kv_kx1_linears(
            self._isa, rows, n_rows, cols, calls, n, (ctypes.c_void_p * n)(*outputs), self.n_threads
        )
        if error and error != native.NOT_FINITE:
            raise _native_error(error)
        return not error


class LoadedKX1Experts:
    """The experts of one layer, mapped in place; implements LoadedExperts. Safe to call from several threads."""

    def __init__(self, library: native.NativeLibrary, isa: int, n_threads: int, experts: LayerExperts) -> None:
        self._library, self._isa, self._n_threads, self._experts = library, isa, n_threads, experts
        self._row_bytes = kx1_row_bytes(experts.d_model)
        self._stacks = (experts.gate, experts.up, experts.down)
        self._exponents = np.full((3, experts.n_expert), NOT_YET_KNOWN, np.int32)  # [gate, up, down]
        native_stacks = [
            native.Stack(stack.quant_type, stack.data.ctypes.data, stack.data.strides[0], row.ctypes.data)
            for stack, row in zip(self._stacks, self._exponents, strict=True)
        ]
        self._layer = native.Layer(*native_stacks, experts.n_expert, experts.d_model, experts.d_ff)

    @property
    def layer(self) -> int:
        return self._experts.layer

    @property
    def n_expert(self) -> int:
        return self._experts.n_expert

    @property
    def d_model(self) -> int:
        return self._experts.d_model

    def read_scales(self, local_ids: Sequence[int] | Pairs | None = None) -> None:
        """Compute the weight exponents of these experts (None: of all), which reads their weights once.

        `compute` does this for experts that it has not used before. Raises KernelError for a scale that is not finite.
        """
        for local_id in range(self.n_expert) if local_ids is None else sorted({int(i) for i in local_ids}):
            for name, stack, exponents in zip(("gate", "up", "down"), self._stacks, self._exponents, strict=True):
                if exponents[local_id] < 0:
                    try:
                        exponents[local_id] = _weight_exponent(self._library, stack.expert(local_id))
                    except KernelError as error:
                        raise KernelError(f"layer {self.layer}, local expert {local_id}, {name}: {error}") from error

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        """Compute f32 [n_pairs, d_model]; see LoadedExperts. For working memory see csrc/experts.h."""
        check_encoded_rows(rows, self._row_bytes)
        check_pairs(pair_rows, pair_ids)
        rows = np.ascontiguousarray(rows)
        pair_rows, pair_ids = np.ascontiguousarray(pair_rows), np.ascontiguousarray(pair_ids)
        out = POOL.floats((len(pair_ids), self.d_model))
        error = self._call(rows, pair_rows, pair_ids, out)
        if error == native.UNKNOWN_EXPONENT:
            self.read_scales(pair_ids)
            error = self._call(rows, pair_rows, pair_ids, out)
        if error:
            check_range("row number", pair_rows, len(rows))
            check_range("local expert id", pair_ids, self.n_expert)
            self._check_codes(rows)
            raise _native_error(error)
        return out

    def _call(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs, out: FloatRows) -> int:
        return int(
            self._library.lib.kv_kx1_experts(
                self._isa,
                ctypes.byref(self._layer),
                address(rows),
                len(rows),
                address(pair_rows),
                address(pair_ids),
                len(pair_ids),
                address(out),
                self._n_threads,
            )
        )

    def _check_codes(self, rows: EncodedRows) -> None:
        bad_row = ctypes.c_int64()
        error = self._library.lib.kv_kx1_check_packed(rows.ctypes.data, len(rows), self.d_model, ctypes.byref(bad_row))
        if error:
            what = "code -128" if error == native.BAD_CODE else "multiplier 0"
            raise KernelError(f"row {bad_row.value} holds {what}; codes are -127 to 127 and multipliers 1 to 15")


def _native_error(error: int) -> KernelError:
    return KernelError({-1: "out of memory for the call"}.get(error, f"the C library refused the call ({error})"))


def _weight_exponent(library: native.NativeLibrary, matrix: WeightMatrix) -> int:
    data: npt.NDArray[np.uint8] = matrix.data
    exponent = int(library.lib.kv_kx1_weight_exponent(matrix.quant_type, data.ctypes.data, matrix.n_out, matrix.n_in))
    if exponent < 0:
        raise KernelError("a scale is infinite or NaN; the file is damaged")
    return exponent
