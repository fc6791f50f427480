"""Measure what sums cost in exactness: against the combine of the same outputs, beside KX1's own error against float64.

`bench_wire` prints it, so that bytes are never shown without their price.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.ops.interface import Routing
from backbone.engine.serving.loaded_model import Arithmetic, Dense, KernelChoice, LoadedModel
from backbone.engine.serving.sum_calibration import calibrate
from backbone.engine.swarm.transport import NoWorkers
from benchmarks.exact.demo import Logits, Window, WindowLogits, cut_windows, our_logits, read, tokenise_stories
from benchmarks.routing.real_routing import DEMO, STORIES
from benchmarks.routing.wire_bytes import LayerRows
from kvasir.experts import ExpertStack, FloatRows, LayerExperts
from kvasir.kernels.sums import sum_outputs, sums_to_float
from kvasir.slicing.slices import model_experts
from tests.oracles.model_runs import forward
from tests.oracles.quantise import dequantise

WINDOW = 256
N_EXACT_ROWS = 2
Float64 = npt.NDArray[np.float64]


@dataclass(slots=True)
class _Error:
    squares: float = 0.0
    of: float = 0.0

    def add(self, found: npt.NDArray[Any], truth: npt.NDArray[Any]) -> None:
        self.squares += float(np.square(found.astype(np.float64) - truth).sum())
        self.of += float(np.square(truth.astype(np.float64)).sum())

    @property
    def relative(self) -> float:
        return float(np.sqrt(self.squares / self.of))


class _Comparison:
    """Combines as production with sums does, and compares each layer's rows with two other ways to get them."""

    def __init__(self, loaded: LoadedModel, truth: dict[int, Float64Layer]) -> None:
        self._sums = _summing(loaded)
        self._pairs = ExpertDispatcher(loaded.store, NoWorkers())
        self._truth = truth
        self.of_sums, self.of_kx1 = _Error(), _Error()

    async def submit(self, layer: int, rows: torch.Tensor, routing: Routing) -> torch.Tensor:
        """See ExpertCaller."""
        summed = await self._sums.submit(layer, rows, routing)
        outputs = (await self._pairs.submit(layer, rows, routing)).numpy()
        weights = routing.weights.numpy().astype(np.float64)[:, :, None]
        combined = (outputs.astype(np.float64) * weights).sum(axis=1)
        self.of_sums.add(summed.numpy(), combined)
        exact = self._truth[layer].compute(rows.numpy(), routing.expert_ids.numpy())
        self.of_kx1.add(combined, (exact * weights).sum(axis=1))
        return summed


class Float64Layer:
    """A layer's experts on their dequantised weights, in float64."""

    def __init__(self, experts: LayerExperts) -> None:
        self._experts = experts

    def compute(self, rows: npt.NDArray[np.float32], expert_ids: npt.NDArray[np.int64]) -> Float64:
        """Outputs [T, n_used, d_model]."""
        outputs = np.empty((*expert_ids.shape, rows.shape[1]), np.float64)
        for expert_id in np.unique(expert_ids).tolist():
            matrices = (self._experts.gate, self._experts.up, self._experts.down)
            gate_matrix, up_matrix, down_matrix = (_dense(stack, expert_id) for stack in matrices)
            at_row, at_place = np.nonzero(expert_ids == expert_id)
            x = rows[at_row].astype(np.float64)
            gate, up = x @ gate_matrix.T, x @ up_matrix.T
            outputs[at_row, at_place] = gate / (1 + np.exp(-gate)) * up @ down_matrix.T
        return outputs


def measure_errors(n_windows: int | None) -> dict[str, float]:
    """Perplexities of the demo model on the stories, and relative errors of its combined rows over one window."""
    with LoadedModel.open(DEMO, n_slot=1, n_ctx=WINDOW, n_threads=1) as loaded:
        windows = cut_windows(tokenise_stories(loaded, STORIES.read_text(encoding="utf-8")))[:n_windows]
        ppl_f32 = read(windows, our_logits(loaded)).perplexity
        ppl_sum = read(windows, _logits(loaded, _summing(loaded))).perplexity
        comparison = _Comparison(loaded, _truth(loaded))
        _logits(loaded, comparison)(windows[0])
    with LoadedModel.open(
        DEMO, n_slot=1, n_ctx=WINDOW, arithmetic=Arithmetic(Dense.FLOAT, kernel=KernelChoice.FLOAT)
    ) as loaded:
        ppl_float = read(windows, our_logits(loaded)).perplexity
    return {
        "ppl_f32": round(ppl_f32, 4),
        "ppl_sum": round(ppl_sum, 4),
        "ppl_float": round(ppl_float, 4),
        "sum_rel_err": round(comparison.of_sums.relative, 5),
        "kx1_rel_err": round(comparison.of_kx1.relative, 5),
    }


def errors_at_shape(loaded: LoadedModel, call: LayerRows, rows: FloatRows) -> dict[str, float]:
    """The same two errors for a call of the real shape's layer 0, KX1's for its first two rows, which are `rows`."""
    n_rows, n_used = call.routed.shape
    pair_rows = np.repeat(np.arange(n_rows, dtype=np.int32), n_used)
    sums = sum_outputs(call.outputs, call.weights.reshape(-1), pair_rows, call.exponents)
    weights = call.weights.astype(np.float64)[:, :, None]
    combined = (call.outputs.reshape(n_rows, n_used, -1).astype(np.float64) * weights).sum(axis=1)
    of_sums, of_kx1 = _Error(), _Error()
    of_sums.add(sums_to_float(sums, call.exponents), combined)
    layer = Float64Layer(model_experts(loaded.index, loaded.card, 0))
    exact = layer.compute(rows[:N_EXACT_ROWS], call.routed[:N_EXACT_ROWS].astype(np.int64))
    of_kx1.add(combined[:N_EXACT_ROWS], (exact * weights[:N_EXACT_ROWS]).sum(axis=1))
    return {"sum_rel_err_shape": round(of_sums.relative, 5), "kx1_rel_err_shape": round(of_kx1.relative, 5)}


def _summing(loaded: LoadedModel) -> ExpertDispatcher:
    return ExpertDispatcher(loaded.store, NoWorkers(), sum_scale=calibrate(loaded))


def _logits(loaded: LoadedModel, experts: Any) -> WindowLogits:
    def logits_of(window: Window) -> Logits:
        slot = loaded.model.cache.allocate()
        logits: Logits = forward(loaded.model, experts, [(slot, window)])[0].numpy()
        loaded.model.cache.free(slot)
        return logits

    return logits_of


def _dense(stack: ExpertStack, expert_id: int) -> Float64:
    blocks = stack.data[expert_id].reshape(stack.n_out, -1)
    return np.asarray(dequantise(blocks, stack.quant_type), np.float64)


def _truth(loaded: LoadedModel) -> dict[int, Float64Layer]:
    return {n: Float64Layer(model_experts(loaded.index, loaded.card, n)) for n in loaded.card.moe_layers}
