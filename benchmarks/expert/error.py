"""Measure how far an expert's output is from float64 on the dequantised weights, ours and ggml's, for
`bench_expert`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.expert.model import ExpertShape
from benchmarks.expert.speed import ExpertIds, compute, draw_ids
from kvasir.experts import ExpertStack, FloatRows, LayerExperts
from kvasir.kernels.api import ExpertKernel, LoadedExperts
from tests.oracles.ggml_experts import GgmlExperts
from tests.oracles.quantise import dequantise

N_REFERENCE_EXPERTS = 4  # experts 0 and up that have a float64 reference
MOST_ROWS = 64  # of a call that are compared

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Distance:
    """Relative error of all outputs together, and the smallest cosine of one."""

    rel_err: float
    min_cosine: float


class Float64Experts:
    """The first few experts in float64."""

    def __init__(self, experts: LayerExperts) -> None:
        stacks = (experts.gate, experts.up, experts.down)
        self._matrices = [[_dense(stack, i) for stack in stacks] for i in range(N_REFERENCE_EXPERTS)]

    def compute(self, rows: FloatRows, expert_id: int) -> Float64:
        """Outputs [n, d_model]."""
        gate_matrix, up_matrix, down_matrix = self._matrices[expert_id]
        x = rows.astype(np.float64)
        gate, up = x @ gate_matrix.T, x @ up_matrix.T
        return np.asarray(gate / (1 + np.exp(-gate)) * up @ down_matrix.T, np.float64)


def measure_error(
    kernel: ExpertKernel,
    loaded: LoadedExperts,
    ggml: GgmlExperts,
    reference: Float64Experts,
    shape: ExpertShape,
    n: int,
) -> tuple[Distance, Distance]:
    """Ours and ggml's, on Gaussian rows of a call of n tokens."""
    rng = np.random.default_rng(1000 + n)
    rows = rng.standard_normal((n, shape.d_model), dtype=np.float32)
    ids = draw_ids(rng, n, shape)
    ids[0] = np.arange(shape.n_used)  # so that every call meets the experts that have a reference
    ours, theirs = compute(kernel, loaded, rows, ids), ggml.compute(rows, ids)
    truth, picked = _truth(reference, rows, ids)
    return _distance(ours[picked], truth), _distance(theirs[picked], truth)


def _truth(
    reference: Float64Experts, rows: FloatRows, ids: ExpertIds
) -> tuple[Float64, tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """Float64 outputs of all (row, place) with a reference, and where these are."""
    at_row, at_place = np.nonzero(ids[:MOST_ROWS] < N_REFERENCE_EXPERTS)
    chosen = ids[at_row, at_place]
    truth = np.empty((len(chosen), rows.shape[1]), np.float64)
    for expert_id in range(N_REFERENCE_EXPERTS):
        mine = chosen == expert_id
        truth[mine] = reference.compute(rows[at_row[mine]], expert_id)
    return truth, (at_row, at_place)


def _distance(outputs: FloatRows, truth: Float64) -> Distance:
    found = outputs.astype(np.float64)
    cosines = (found * truth).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(truth, axis=1)
    return Distance(float(np.linalg.norm(found - truth) / np.linalg.norm(truth)), float(cosines.min()))


def _dense(stack: ExpertStack, expert_id: int) -> Float64:
    blocks = stack.data[expert_id].reshape(stack.n_out, -1)
    return dequantise(blocks, stack.quant_type).astype(np.float64)
