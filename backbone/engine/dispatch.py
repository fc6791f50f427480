"""One MoE layer's journey: rows to the workers that hold the experts, outputs back, and the fallback.

The model calls `submit` and awaits the result after it has computed the shared expert. A request is never failed
because of a worker: what no worker holds, and what comes back late, broken or wrong, is computed by another replica or
by the backbone's own, with the same bits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
import torch

from backbone.engine.audit import Reply
from backbone.engine.deadlines import DeadlineRule, patience_s
from backbone.engine.expert_store import ExpertStore
from backbone.engine.guard import WorkGuard
from backbone.engine.hedging import LATE, Attempt, HedgeCounters, first_heard, listen
from backbone.engine.measured import UNMEASURED, Measured
from backbone.engine.placement import CoverageSnapshot, DispatchBatch, IntArray, place, place_again
from backbone.engine.receipts import TrafficCounter
from backbone.engine.replica_choice import taking_part, with_probe
from backbone.engine.reply_format import ReplyFormat, round_replies
from backbone.engine.scheduler import Chunk
from backbone.engine.step_rows import StepRows
from backbone.engine.transport import Transport
from kvasir.errors import ConfigError, EdgeError, EdgeTimeout
from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows

logger = logging.getLogger(__name__)

WRONG = "the worker's answer was wrong"
MOVED = "the worker's ranges changed while it was asked"


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
    """One submitted layer: its encoded rows, its routed pairs, whose they are, and who may compute them."""

    layer: int
    rows: EncodedRows  # [T, row_bytes]
    expert_ids: IntArray  # [T, n_used]
    step: StepRows
    measured: Mapping[str, Measured]

    def rows_of(self, slots: IntArray) -> IntArray:
        """The row of each of some flat slots."""
        return np.asarray(slots // self.expert_ids.shape[1], np.int32)


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
        guard: WorkGuard | None = None,
        deadlines: DeadlineRule | None = None,
        traffic: TrafficCounter | None = None,
    ) -> None:
        """`deadline_s` is the transport's to keep; `grace_s` later a request stops waiting for one that does not.

        Without a `guard` every worker is trusted. `deadlines` say when an answer is late, `deadline_s` being their
        longest time; `traffic` counts how often experts are called. Raises ConfigError for a guard that rounds replies
        in another way: it would take every answer for a lie.
        """
        if guard is not None and guard.reply_format is not reply_format:
            raise ConfigError(f"the guard expects {guard.reply_format} replies, the dispatcher {reply_format}")
        self._store = store
        self._transport = transport
        self._deadline_s = deadline_s
        self._grace_s = grace_s
        self._reply_format = reply_format
        self._on_served = on_served
        self._guard = guard
        self._deadlines = replace(deadlines or DeadlineRule(), longest_s=deadline_s)
        self._traffic = traffic
        self._step = StepRows()
        self._n_calls = 0
        self.hedges = HedgeCounters()

    def begin_step(self, chunks: tuple[Chunk, ...]) -> None:
        """Whose rows the next calls have; without it no request is strict, and none can be flagged."""
        self._step = StepRows.of(chunks)

    def submit(self, layer: int, rows: torch.Tensor, expert_ids: torch.Tensor) -> Awaitable[torch.Tensor]:
        """Send rows [T, d_model] f32 to the experts [T, n_used]; the awaitable yields [T, n_used, d_model].

        Frames leave before this returns; local experts are computed when the result is awaited.
        """
        job = _Layer(
            layer,
            self._store.kernel.encode_rows(np.ascontiguousarray(rows.detach().numpy(), np.float32)),
            np.ascontiguousarray(expert_ids.numpy(), np.int32),
            self._step,
            self._transport.measurements(),
        )
        if self._traffic is not None:
            self._traffic.add(layer, job.expert_ids)
        self._n_calls += 1
        live, coverage = taking_part(self._usable(), job.measured, self._n_calls), self._transport.coverage()
        measured = with_probe(live, job.measured, self._n_calls)
        placement = place(layer, job.expert_ids, coverage, live, measured)
        attempts = [self._ask(job, batch, coverage) for batch in placement.batches]
        return self._collect(job, attempts, placement.fallback_slots)

    def _usable(self) -> frozenset[str]:
        live = self._transport.live()
        return live if self._guard is None else self._guard.usable(live)

    def _ask(self, job: _Layer, batch: DispatchBatch, coverage: CoverageSnapshot) -> Attempt:
        """Send a batch to its worker, and say until when the answer is in time."""
        measured = job.measured.get(batch.worker_id, UNMEASURED)
        patience = patience_s(measured, len(batch.pair_slots), self._deadlines)
        reason = LATE
        if patience >= self._deadline_s:
            patience += self._grace_s
            reason = f"no answer within {patience:g} s"
        due = asyncio.get_running_loop().time() + patience
        return Attempt(batch, listen(self._send(job, batch)), due, coverage.held.get(batch.worker_id), reason)

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

    async def _collect(self, job: _Layer, attempts: list[Attempt], fallback_slots: IntArray) -> torch.Tensor:
        n_rows, n_used = job.expert_ids.shape
        outputs = np.empty((n_rows * n_used, self._store.card.d_model), np.float32)
        self._compute_here(job, fallback_slots, outputs, "no replica")
        if len(attempts) == 1:
            await self._fill(job, attempts[0], outputs)
        else:
            await asyncio.gather(*(self._fill(job, attempt, outputs) for attempt in attempts))
        return torch.from_numpy(outputs.reshape(n_rows, n_used, -1))

    async def _fill(self, job: _Layer, first: Attempt, outputs: FloatRows) -> None:
        """Bring one batch's outputs to their places, whoever computes them in the end."""
        waiting, hedge, reason = [first], None, ""
        while waiting:
            heard = await first_heard(waiting)
            for attempt in heard:
                waiting.remove(attempt)
                answer = self._usable_answer(attempt)
                if not isinstance(answer, str):
                    self.hedges.n_won_by_replica += attempt is hedge
                    self._use(job, attempt.batch, answer, outputs)
                    return
                reason = answer
                self._leave_out(attempt, reason)
            if not heard:
                reason = first.late_reason
                self._note_late(waiting)
            if hedge is None and (hedge := self._hedge(job, first)) is not None:
                waiting = [replace(attempt, due=hedge.due) for attempt in waiting] + [hedge]
            elif not heard:
                break
        self.hedges.n_to_own += 1
        self._compute_here(job, first.batch.pair_slots, outputs, reason)

    def _note_late(self, waiting: list[Attempt]) -> None:
        now = asyncio.get_running_loop().time()
        for attempt in waiting:
            if attempt.due <= now:
                self.hedges.n_late += 1
                self._leave_out(attempt, attempt.late_reason)

    def _hedge(self, job: _Layer, late: Attempt) -> Attempt | None:
        """Ask another worker that holds the same experts, if there is one."""
        usable, coverage = self._usable(), self._transport.coverage()
        batch = place_again(late.batch, job.layer, job.expert_ids, coverage, usable, job.measured)
        if batch is None:
            return None
        self.hedges.n_to_replica += 1
        return self._ask(job, batch, coverage)

    def _usable_answer(self, attempt: Attempt) -> FloatRows | str:
        """What was answered, or why it cannot be used whatever it says."""
        answer = attempt.heard.result()
        if isinstance(answer, EdgeError):
            self.hedges.n_late += isinstance(answer, EdgeTimeout)
            return str(answer)
        if self._transport.coverage().held.get(attempt.batch.worker_id) != attempt.held:
            return MOVED  # its local ids may mean other experts now: that is nobody's lie
        wanted = (len(attempt.batch.pair_slots), self._store.card.d_model)
        if answer.shape != wanted:
            reason = f"the answer has shape {answer.shape}, {wanted} was asked for"
            if self._guard is not None:
                self._guard.note_oddity(attempt.batch.worker_id, reason)
            return reason
        if self._guard is None and not np.isfinite(answer).all():
            return "the answer holds a value that is not finite"
        return answer

    def _leave_out(self, attempt: Attempt, reason: str) -> None:
        logger.warning("worker %s is left out: %s", attempt.batch.worker_id, reason)
        self._transport.report(attempt.batch.worker_id, reason)

    def _use(self, job: _Layer, batch: DispatchBatch, answer: FloatRows, outputs: FloatRows) -> None:
        """Put a worker's answer into its places; the guard sees it first."""
        slots, pair_rows = batch.pair_slots, job.rows_of(batch.pair_slots)
        usable = round_replies(answer, self._reply_format)
        is_right = True
        if self._guard is not None:
            reply = Reply(batch.worker_id, job.layer, job.rows, pair_rows, job.expert_ids.reshape(-1)[slots], usable)
            strict = job.step.strict_pairs(pair_rows)
            requests = job.step.requests_of(pair_rows if strict is None else pair_rows[~strict])
            usable, is_right = self._guard.receive(reply, requests, strict)
        outputs[slots] = usable
        by_worker = Served(job.layer, batch.worker_id, pair_rows, "worker")
        self._on_served(by_worker if is_right else Served(job.layer, None, pair_rows, WRONG))

    def _compute_here(self, job: _Layer, slots: IntArray, outputs: FloatRows, reason: str) -> None:
        if not len(slots):
            return
        experts = self._store.layer(job.layer)
        pair_rows = job.rows_of(slots)
        computed = experts.compute(job.rows, pair_rows, job.expert_ids.reshape(-1)[slots])
        outputs[slots] = round_replies(computed, self._reply_format)
        self._on_served(Served(job.layer, None, pair_rows, reason))
