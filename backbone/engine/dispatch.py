"""One MoE layer's journey: rows to the workers that hold the experts, outputs back, and the fallback.

The model calls `submit` and awaits the result after it has computed the shared expert. A request is never failed
because of a worker: what no worker holds, and what comes back late, broken or not finite, is computed by the
backbone's own replica, with the same bits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch

from backbone.engine.expert_store import ExpertStore
from backbone.engine.placement import DispatchBatch, IntArray, place
from backbone.engine.reply_format import ReplyFormat, round_replies
from backbone.engine.transport import Transport
from kvasir.errors import EdgeError
from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What one node computed in one layer of one step. `worker_id` is None for the backbone's own replica."""

    layer: int
    worker_id: str | None
    pair_rows: IntArray  # [n_pairs] the batch's row that each pair belongs to
    reason: str  # "worker", "no replica", or why the worker's answer was not used

    @property
    def n_pairs(self) -> int:
        """How many pairs it was."""
        return len(self.pair_rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One submitted layer: its encoded rows and its routed pairs."""

    layer: int
    rows: EncodedRows  # [T, row_bytes]
    expert_ids: IntArray  # [T, n_used]


class ExpertDispatcher:
    """Implements the model's ExpertCaller over a transport and the backbone's own replica."""

    def __init__(
        self,
        store: ExpertStore,
        transport: Transport,
        *,
        deadline_s: float = 10.0,
        grace_s: float = 2.0,
        reply_format: ReplyFormat = ReplyFormat.F32,
        on_served: Callable[[Served], None] = lambda served: None,
    ) -> None:
        """`deadline_s` is the transport's to keep; `grace_s` later a request stops waiting for one that does not."""
        self._store = store
        self._transport = transport
        self._deadline_s = deadline_s
        self._longest_wait_s = deadline_s + grace_s
        self._reply_format = reply_format
        self._on_served = on_served

    def submit(self, layer: int, rows: torch.Tensor, expert_ids: torch.Tensor) -> Awaitable[torch.Tensor]:
        """Send rows [T, d_model] f32 to the experts [T, n_used]; the awaitable yields [T, n_used, d_model].

        Frames leave before this returns; local experts are computed when the result is awaited.
        """
        job = _Layer(
            layer,
            self._store.kernel.encode_rows(np.ascontiguousarray(rows.detach().numpy(), np.float32)),
            np.ascontiguousarray(expert_ids.numpy(), np.int32),
        )
        placement = place(layer, job.expert_ids, self._transport.coverage(), self._transport.live())
        sent = [(batch, self._send(job, batch)) for batch in placement.batches]
        return self._collect(job, sent, placement.fallback_slots)

    def _send(self, job: _Layer, batch: DispatchBatch) -> Future[FloatRows]:
        try:
            return self._transport.dispatch(
                batch.worker_id,
                job.layer,
                job.rows[batch.rows],
                self._store.kernel.row_format,
                batch.pair_rows,
                batch.pair_ids,
                self._deadline_s,
            )
        except EdgeError as error:
            failed: Future[FloatRows] = Future()
            failed.set_exception(error)
            return failed

    async def _collect(
        self, job: _Layer, sent: list[tuple[DispatchBatch, Future[FloatRows]]], fallback_slots: IntArray
    ) -> torch.Tensor:
        n_rows, n_used = job.expert_ids.shape
        outputs = np.empty((n_rows * n_used, self._store.card.d_model), np.float32)
        self._compute_here(job, fallback_slots, outputs, "no replica")
        for batch, future in sent:
            answer = await self._answer(batch, future, outputs.shape[1])
            if isinstance(answer, str):
                self._compute_here(job, batch.pair_slots, outputs, answer)
            else:
                outputs[batch.pair_slots] = round_replies(answer, self._reply_format)
                self._on_served(Served(job.layer, batch.worker_id, batch.pair_slots // n_used, "worker"))
        return torch.from_numpy(outputs.reshape(n_rows, n_used, -1))

    async def _answer(self, batch: DispatchBatch, future: Future[FloatRows], d_model: int) -> FloatRows | str:
        """A worker's usable answer, or why it cannot be used."""
        try:
            answer = await asyncio.wait_for(asyncio.wrap_future(future), self._longest_wait_s)
        except TimeoutError:
            reason = f"no answer within {self._longest_wait_s:g} s"
        except EdgeError as error:
            reason = str(error)
        else:
            wanted = (len(batch.pair_slots), d_model)
            if answer.shape != wanted:
                reason = f"the answer has shape {answer.shape}, {wanted} was asked for"
            elif not np.isfinite(answer).all():
                reason = "the answer holds a value that is not finite"
            else:
                return answer
        logger.warning("worker %s is left out: %s", batch.worker_id, reason)
        self._transport.report(batch.worker_id, reason)
        return reason

    def _compute_here(self, job: _Layer, slots: IntArray, outputs: FloatRows, reason: str) -> None:
        if not len(slots):
            return
        experts = self._store.layer(job.layer)
        n_used = job.expert_ids.shape[1]
        computed = experts.compute(job.rows, slots // n_used, job.expert_ids.reshape(-1)[slots])
        outputs[slots] = round_replies(computed, self._reply_format)
        self._on_served(Served(job.layer, None, slots // n_used, reason))
