"""One submitted MoE layer: its rows and pairs, and how answers become the layer's result.

`dispatch.dispatcher` makes one for each call. Outputs come back one a pair, or as sums: integers of weighted outputs,
a row for each row, to be added up (docs/reference/kx1.md, step 7). What a batch is asked, what shape its answer has and
where it goes differ between the two; who computes what does not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from backbone.engine.model.expert_caller import StepRows
from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import DispatchBatch, IntArray
from backbone.engine.swarm.reply_format import ReplyFormat, round_replies
from backbone.engine.swarm.transport import SumTransport, Transport
from backbone.engine.trust.audit import Answer, Reply
from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows, RowFormat
from kvasir.kernels.sums import LIMIT, Exponents, RowSums, sum_outputs, sums_to_float
from kvasir.wire.frames import SumOrder


class CallFacts(NamedTuple):
    """What every `LayerCall` begins with, in its order."""

    layer: int
    rows: EncodedRows
    row_format: RowFormat
    expert_ids: IntArray
    d_model: int
    step: StepRows
    measured: Mapping[str, Measured]


@dataclass(frozen=True, slots=True, eq=False)
class LayerCall(ABC):
    """A layer's encoded rows, its routed pairs, whose they are, and what is known of the workers."""

    layer: int
    rows: EncodedRows  # [T, row_bytes]
    row_format: RowFormat
    expert_ids: IntArray  # [T, n_used]
    d_model: int
    step: StepRows
    measured: Mapping[str, Measured]

    def rows_of(self, slots: IntArray) -> IntArray:
        """The row of each of some flat slots."""
        return np.asarray(slots // self.expert_ids.shape[1], np.int32)

    def ids_of(self, slots: IntArray) -> IntArray:
        """The expert of each of some flat slots."""
        return np.asarray(self.expert_ids.reshape(-1)[slots])

    @abstractmethod
    def send(
        self, transport: Transport, batch: DispatchBatch, deadline_s: float
    ) -> Future[FloatRows] | Future[RowSums]:
        """Ask a batch's worker. Raises EdgeError when it is not connected."""

    @abstractmethod
    def answer_shape(self, batch: DispatchBatch) -> tuple[int, int]:
        """What the answer to a batch must look like."""

    def impossible(self, batch: DispatchBatch, answer: Answer) -> str | None:
        """What no honest worker answers, of an answer of the right shape; None when nothing is."""
        return None

    @abstractmethod
    def reply(self, batch: DispatchBatch, answer: Answer) -> Reply:
        """An answer as the guard looks at it."""

    @abstractmethod
    def use(self, batch: DispatchBatch, answer: Answer) -> None:
        """Take a worker's answer into the result."""

    @abstractmethod
    def use_own(self, slots: IntArray, computed: FloatRows) -> None:
        """Take what was computed here for some slots, f32 [n_slots, d_model], into the result."""

    @abstractmethod
    def result(self) -> torch.Tensor:
        """What the model gets, when every slot is there."""


@dataclass(frozen=True, slots=True, eq=False)
class PairCall(LayerCall):
    """Answers with one output a pair: the result is [T, n_used, d_model]."""

    reply_format: ReplyFormat = ReplyFormat.F32
    outputs: FloatRows = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", np.empty((self.expert_ids.size, self.d_model), np.float32))

    def send(self, transport: Transport, batch: DispatchBatch, deadline_s: float) -> Future[FloatRows]:
        rows = self.rows[batch.rows]
        return transport.dispatch(
            batch.worker_id, self.layer, rows, self.row_format, batch.pair_rows, batch.pair_ids, deadline_s
        )

    def answer_shape(self, batch: DispatchBatch) -> tuple[int, int]:
        return len(batch.pair_slots), self.d_model

    def reply(self, batch: DispatchBatch, answer: Answer) -> Reply:
        slots = batch.pair_slots
        usable = round_replies(np.asarray(answer, np.float32), self.reply_format)
        return Reply(batch.worker_id, self.layer, self.rows, self.rows_of(slots), self.ids_of(slots), usable)

    def use(self, batch: DispatchBatch, answer: Answer) -> None:
        self.outputs[batch.pair_slots] = answer

    def use_own(self, slots: IntArray, computed: FloatRows) -> None:
        self.outputs[slots] = round_replies(computed, self.reply_format)

    def result(self) -> torch.Tensor:
        return torch.from_numpy(self.outputs.reshape(*self.expert_ids.shape, -1))


@dataclass(frozen=True, slots=True, eq=False)
class SumCall(LayerCall):
    """Answers with sums: the result is [T, d_model], the combined rows. No order of arrival can change a bit of it."""

    weights: FloatRows  # [T, n_used]
    exponents: Exponents  # [T]
    sums: RowSums = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", np.zeros((len(self.rows), self.d_model), np.int32))

    def order(self, batch: DispatchBatch) -> SumOrder:
        """Weights and exponents of a batch."""
        return SumOrder(self.weights.reshape(-1)[batch.pair_slots], self.exponents[batch.rows])

    def send(self, transport: Transport, batch: DispatchBatch, deadline_s: float) -> Future[RowSums]:
        if not isinstance(transport, SumTransport):
            raise TypeError(f"{type(transport).__name__} cannot ask for sums")
        pairs = batch.pair_rows, batch.pair_ids
        rows, order = self.rows[batch.rows], self.order(batch)
        return transport.dispatch_sums(batch.worker_id, self.layer, rows, self.row_format, *pairs, order, deadline_s)

    def answer_shape(self, batch: DispatchBatch) -> tuple[int, int]:
        return len(batch.rows), self.d_model

    def impossible(self, batch: DispatchBatch, answer: Answer) -> str | None:
        """A sum over so many pairs cannot be larger, and larger ones could overflow when they are added up."""
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
