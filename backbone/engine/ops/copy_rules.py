"""From how many rows on a copy of a quantised matrix in a float type beats KX1 in place: measured on this machine.

`fast_ops` asks once for each quantisation type when a model is loaded. Times decide here, so two machines may decide
differently; what was decided is part of the model's fingerprint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as nnf
from torch import Tensor

ROWS_TRIED = (8, 12, 16, 24, 32, 64, 128)
MOST_OUTPUTS = 2048  # of the matrix that is measured: more tell no more
N_REPEATS = 3
LEAST_GAIN = 1.1  # a copy costs memory: it has to be so much faster
TYPES_TRIED = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class CopyRule:
    """A copy in this type is used for so many rows and more."""

    dtype: torch.dtype
    from_rows: int

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} from {self.from_rows} rows"


def crossover(rows: Sequence[int], in_place_s: Sequence[float], copy_s: Sequence[float]) -> int | None:
    """Rows from which the copy was faster, by LEAST_GAIN, in all tried; None when it was not in the most."""
    first = None
    for n_rows, in_place, copy in reversed(list(zip(rows, in_place_s, copy_s, strict=True))):
        if copy * LEAST_GAIN > in_place:
            break
        first = n_rows
    return first


def measured_rule(n_in: int, in_place: Callable[[Tensor], object], weights: Tensor) -> CopyRule | None:
    """The best rule for a matrix: `in_place` multiplies rows f32 [T, n_in] by it, `weights` f32 are its values."""
    inputs = [torch.randn(n_rows, n_in, generator=torch.Generator().manual_seed(n_rows)) for n_rows in ROWS_TRIED]
    in_place_s = [_seconds(in_place, x) for x in inputs]
    rules: list[tuple[float, CopyRule]] = []
    for dtype in TYPES_TRIED:
        copy = weights.to(dtype)
        copy_s = [_seconds(partial(multiply, weights=copy), x) for x in inputs]
        from_rows = crossover(ROWS_TRIED, in_place_s, copy_s)
        if from_rows is not None:
            rules.append((copy_s[-1], CopyRule(dtype, from_rows)))
    return min(rules, key=lambda timed: timed[0])[1] if rules else None


def multiply(x: Tensor, weights: Tensor) -> Tensor:
    """Rows f32 [T, n_in] times weights [n_out, n_in] of any float type: f32 [T, n_out]."""
    return nnf.linear(x.to(weights.dtype), weights).float()


def _seconds(compute: Callable[[Tensor], object], x: Tensor) -> float:
    """The shortest of some calls after one that warms up: other programs only ever make a call longer."""
    compute(x)
    shortest = float("inf")
    for _ in range(N_REPEATS):
        begun = time.perf_counter()
        compute(x)
        shortest = min(shortest, time.perf_counter() - begun)
    return shortest
