"""One submitted MoE layer: its rows and pairs, and how answers become the layer's result.

`dispatch.dispatcher` makes one for each call. Outputs come back one a pair, or as sums: integers of weighted outputs,
one row for each row, which are added up (docs/reference/kx1.md, step 7). The two differ in what a batch asks for, in
the shape of its answer and in where the answer goes; placement is the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from backbone.engine.model.expert_caller import StepRows
from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import DispatchBatch, IntArray
from backbone.engine.trust.audit import Reply
from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows, RowFormat
from kvasir.kernels.sums import LIMIT, Exponents, RowSums, sum_outputs, sums_to_float
from kvasir.wire.frames import SumOrder
from kvasir.wire.split import Answer, ExpertCall


class CallFacts(NamedTuple):
    """The fields that every `LayerCall` begins with, in its order."""

    layer: int
    rows: EncodedRows
    row_format: RowFormat
    expert_ids: IntArray
    d_model: int
    step: StepRows
    measured: Mapping[str, Measured]


@dataclass(frozen=True, slots=True, eq=False)
class LayerCall(ABC):
    """A layer's encoded rows, its routed pairs, the requests that they belong to, and the workers' measurements."""

    layer: int
    rows: EncodedRows  # [T, row_bytes]
    row_format: RowFormat
    expert_ids: IntArray  # [T, n_used]
    d_model: int
    step: StepRows
    measured: Mapping[str, Measured]

    def rows_of(self, slots: IntArray) -> IntArray:
        """Return the row of each of some flat slots."""
        return np.asarray(slots // self.expert_ids.shape[1], np.int32)

    def ids_of(self, slots: IntArray) -> IntArray:
        """Return the expert of each of some flat slots."""
        return np.asarray(self.expert_ids.reshape(-1)[slots])

    def question(self, batch: DispatchBatch) -> ExpertCall:
        """Return what a batch's worker is asked."""
        rows = self.rows[batch.rows]
        return ExpertCall(self.layer, rows, self.row_format, batch.pair_rows, batch.pair_ids, self.order(batch))

    def order(self, batch: DispatchBatch) -> SumOrder | None:
        """Return the weights and exponents of a batch, if its answer is sums."""
        return None

    @abstractmethod
    def answer_shape(self, batch: DispatchBatch) -> tuple[int, int]:
        """Return the shape that the answer to a batch must have."""

    def impossible(self, batch: DispatchBatch, answer: Answer) -> str | None:
        """Return why no honest worker gives this answer, which has the right shape; None if one may."""
        return None

    @abstractmethod
    def reply(self, batch: DispatchBatch, answer: Answer) -> Reply:
        """Return an answer as the guard checks it."""

    @abstractmethod
    def use(self, batch: DispatchBatch, answer: Answer) -> None:
        """Take a worker's answer into the result."""

    @abstractmethod
    def use_own(self, slots: IntArray, computed: FloatRows) -> None:
        """Take the backbone's own outputs of some slots, f32 [n_slots, d_model], into the result."""

    @abstractmethod
    def result(self) -> torch.Tensor:
        """Return what the model gets, when every slot is there."""


@dataclass(frozen=True, slots=True, eq=False)
class PairCall(LayerCall):
    """Answers with one output a pair: the result is [T, n_used, d_model]."""

    outputs: FloatRows = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", np.empty((self.expert_ids.size, self.d_model), np.float32))

    def answer_shape(self, batch: DispatchBatch) -> tuple[int, int]:
        return len(batch.pair_slots), self.d_model

    def reply(self, batch: DispatchBatch, answer: Answer) -> Reply:
        slots = batch.pair_slots
        return Reply(batch.worker_id, self.layer, self.rows, self.rows_of(slots), self.ids_of(slots), answer)

    def use(self, batch: DispatchBatch, answer: Answer) -> None:
        self.outputs[batch.pair_slots] = answer

    def use_own(self, slots: IntArray, computed: FloatRows) -> None:
        self.outputs[slots] = computed

    def result(self) -> torch.Tensor:
        return torch.from_numpy(self.outputs.reshape(*self.expert_ids.shape, -1))


@dataclass(frozen=True, slots=True, eq=False)
class SumCall(LayerCall):
    """Answers with sums: the result is the combined rows [T, d_model]. No order of arrival changes a bit of it."""

    weights: FloatRows  # [T, n_used]
    exponents: Exponents  # [T]
    sums: RowSums = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", np.zeros((len(self.rows), self.d_model), np.int32))

    def order(self, batch: DispatchBatch) -> SumOrder:
        return SumOrder(self.weights.reshape(-1)[batch.pair_slots], self.exponents[batch.rows])

    def answer_shape(self, batch: DispatchBatch) -> tuple[int, int]:
        return len(batch.rows), self.d_model

    def impossible(self, batch: DispatchBatch, answer: Answer) -> str | None:
        """Return an error for a sum beyond what its row's pairs can give: adding such sums could overflow."""
        most = np.bincount(batch.pair_rows, minlength=len(batch.rows)).astype(np.int64) * LIMIT
        if (answer.max(axis=1) > most).any() or (answer.min(axis=1) < -most).any():
            return f"the answer holds a sum beyond {LIMIT} for each of its row's pairs"
        return None

    def reply(self, batch: DispatchBatch, answer: Answer) -> Reply:
        rows, ids = self.rows[batch.rows], self.ids_of(batch.pair_slots)
        return Reply(batch.worker_id, self.layer, rows, batch.pair_rows, ids, answer, self.order(batch))

    def use(self, batch: DispatchBatch, answer: Answer) -> None:
        self.sums[batch.rows] += np.asarray(answer, np.int32)  # a batch names each of its rows once

    def use_own(self, slots: IntArray, computed: FloatRows) -> None:
        rows, pair_rows = np.unique(self.rows_of(slots), return_inverse=True)
        weights = self.weights.reshape(-1)[slots]
        self.sums[rows] += sum_outputs(computed, weights, pair_rows.astype(np.int32), self.exponents[rows])

    def result(self) -> torch.Tensor:
        return torch.from_numpy(sums_to_float(self.sums, self.exponents))
