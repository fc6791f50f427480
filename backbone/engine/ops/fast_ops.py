"""The dense path for throughput, not for fixed bits: copies of quantised matrices in bf16 or f32 for many rows.

Used through `ops.Ops` where KVASIR_DENSE is `fast`. Below a number of rows, and for matrices whose copy would not be
faster on this machine, it computes as `stable_ops` does. So a row's bits depend on the rows beside it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from backbone.engine.ops.copy_rules import MOST_OUTPUTS, CopyRule, measured_rule, multiply
from backbone.engine.ops.interface import Linear
from backbone.engine.ops.stable_ops import StableOps
from kvasir.experts import WeightMatrix
from kvasir.kernels.float_kernel import dequantised
from kvasir.kernels.kx1 import KX1Matrix

logger = logging.getLogger(__name__)

LEAST_WEIGHTS = 1 << 20  # a smaller matrix costs next to nothing
ROWS_AT_ONCE = 4096  # of a matrix that is copied: the head's f32 values would take gigabytes


@dataclass(frozen=True, slots=True, eq=False)
class CopiedMatrix:
    """A matrix as KX1 has it in place, and its copy for many rows."""

    in_place: Linear
    copy: Tensor  # [n_out, n_in]
    from_rows: int


class FastOps(StableOps):
    """Implements `Ops`. With `rule` every large quantised matrix is copied by it, else by what is measured here."""

    def __init__(self, n_threads: int | None = None, rule: CopyRule | None = None) -> None:
        super().__init__(n_threads=n_threads)
        self._fixed = rule
        self._rules: dict[GGMLQuantizationType, CopyRule | None] = {}
        self.copy_bytes = 0  # memory of all copies

    @property
    def name(self) -> str:
        """With every rule that changes bits."""
        rules = sorted((kind.name, rule) for kind, rule in self._rules.items() if rule is not None)
        return "fast: " + (", ".join(f"{kind} in {rule}" for kind, rule in rules) or "no copies")

    @property
    def is_batch_stable(self) -> bool:
        """Whether no copy is used, so that all is as in `StableOps`."""
        return not any(self._rules.values())

    def make_linear(self, matrix: WeightMatrix, bias: Tensor | None = None) -> Linear:
        """In place, with a copy beside it where that is faster for many rows."""
        in_place = super().make_linear(matrix, bias)
        if not isinstance(in_place.weight, KX1Matrix) or matrix.n_out * matrix.n_in < LEAST_WEIGHTS:
            return in_place
        rule = self._rule(matrix)
        if rule is None:
            return in_place
        copy = _copy(matrix, rule.dtype)
        self.copy_bytes += copy.nbytes
        return Linear(matrix.n_in, matrix.n_out, CopiedMatrix(in_place, copy, rule.from_rows), bias)

    def linear(self, x: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        """x [T, n_in] -> one [T, n_out] a linear."""
        n_rows = x.shape[0]
        copied = {
            place: linear.weight.copy
            for place, linear in enumerate(linears)
            if isinstance(linear.weight, CopiedMatrix) and n_rows >= linear.weight.from_rows
        }
        others = [_in_place(linear) for place, linear in enumerate(linears) if place not in copied]
        in_place = iter(super().linear(x, *others) if others else ())
        return tuple(
            _biased(multiply(x, copied[place]), linear.bias) if place in copied else next(in_place)
            for place, linear in enumerate(linears)
        )

    def _rule(self, matrix: WeightMatrix) -> CopyRule | None:
        """The first large matrix of a type decides for all of the type."""
        kind = matrix.quant_type
        if kind not in self._rules:
            self._rules[kind] = self._fixed or self._measured(matrix)
            logger.info("dense matrices of %s: %s", kind.name, self._rules[kind] or "in place, which is faster here")
        return self._rules[kind]

    def _measured(self, matrix: WeightMatrix) -> CopyRule | None:
        part = _rows_of(matrix, 0, MOST_OUTPUTS)
        linear = super().make_linear(part)
        return measured_rule(part.n_in, lambda x: StableOps.linear(self, x, linear), _copy(part, torch.float32))


def _in_place(linear: Linear) -> Linear:
    return linear.weight.in_place if isinstance(linear.weight, CopiedMatrix) else linear


def _biased(result: Tensor, bias: Tensor | None) -> Tensor:
    return result if bias is None else result.add_(bias)


def _rows_of(matrix: WeightMatrix, first: int, n: int) -> WeightMatrix:
    """Some of a matrix's outputs, a view."""
    data = matrix.data.reshape(matrix.n_out, -1)[first : first + n]
    return WeightMatrix(matrix.quant_type, len(data), matrix.n_in, data.reshape(-1))


def _copy(matrix: WeightMatrix, dtype: torch.dtype) -> Tensor:
    """A matrix's values in a float type, a part at a time."""
    copy = torch.empty((matrix.n_out, matrix.n_in), dtype=dtype)
    for first in range(0, matrix.n_out, ROWS_AT_ONCE):
        part = np.ascontiguousarray(dequantised(_rows_of(matrix, first, ROWS_AT_ONCE)))
        copy[first : first + len(part)] = torch.from_numpy(part)
    return copy
