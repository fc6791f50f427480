"""One MoE layer's journey: rows to the workers that hold the experts, outputs back, and the fallback.

The model calls `submit` and awaits the result after it has computed the shared expert. A request is never failed
because of a worker: what no worker holds, and what comes back late, broken or wrong, is computed by another replica or
by the backbone's own, with the same bits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
import torch

from backbone.engine.dispatch.deadlines import DeadlineRule, patience_s
from backbone.engine.dispatch.hedging import LATE, Attempt, HedgeCounters, first_heard, listen
from backbone.engine.dispatch.hot_cache import NOBODY, HotCache, clocks
from backbone.engine.dispatch.layer_call import CallFacts, LayerCall, PairCall, SumCall
from backbone.engine.dispatch.trips import TripMeter
from backbone.engine.model.expert_caller import StepRows
from backbone.engine.ops.interface import Routing
from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.measured import UNMEASURED
from backbone.engine.swarm.placement import DispatchBatch, IntArray, Placement, ReplicaMap, place, place_again
from backbone.engine.swarm.replica_choice import taking_part, with_probe
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.sum_scale import SumScale, check_can_sum
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.audit import Answer
from backbone.engine.trust.guard import WorkGuard
from backbone.engine.trust.receipts import TrafficCounter
from kvasir.errors import ConfigError, EdgeError, EdgeTimeout
from kvasir.experts import FloatRows
from kvasir.kernels.sums import RowSums

logger = logging.getLogger(__name__)

WRONG = "the worker's answer was wrong"
HOT = "hot"
NO_REPLICA = "no replica"
MOVED = "the worker's ranges changed while it was asked"


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What one node computed in one layer of one step. `worker_id` is None for the backbone's own replica."""

    layer: int
    worker_id: str | None
    pair_rows: IntArray  # [n_pairs] the batch's row that each pair belongs to
    reason: str  # "worker", HOT, NO_REPLICA, or why the worker's answer was not used

    @property
    def n_pairs(self) -> int:
        """How many pairs it was."""
        return len(self.pair_rows)

    @property
    def is_hot(self) -> bool:
        """Whether the backbone computed them by its own plan."""
        return self.worker_id is None and self.reason == HOT


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
        sum_scale: SumScale | None = None,
        hot: HotCache | None = None,
    ) -> None:
        """`deadline_s` is the transport's to keep; `grace_s` later a request stops waiting for one that does not.

        Without a `guard` every worker is trusted. `deadlines` say when an answer is late, `deadline_s` being their
        longest time; `traffic` counts how often experts are called. Replies in sums need a `sum_scale`. What `hot`
        names goes to no worker: it is computed here while the rest travels.

        Raises ConfigError for a guard that rounds replies in another way (it would take every answer for a lie), and
        where sums cannot be.
        """
        if guard is not None and guard.reply_format is not reply_format:
            raise ConfigError(f"the guard expects {guard.reply_format} replies, the dispatcher {reply_format}")
        if reply_format is ReplyFormat.SUM:
            check_can_sum(store, transport, sum_scale)
        self._sum_scale = sum_scale if reply_format is ReplyFormat.SUM else None
        self._store = store
        self._transport = transport
        self._deadline_s = deadline_s
        self._grace_s = grace_s
        self._reply_format = reply_format
        self._on_served = on_served
        self._guard = guard
        self._deadlines = replace(deadlines or DeadlineRule(), longest_s=deadline_s)
        self._traffic = traffic
        self._hot = hot
        self._step = StepRows()
        self._n_calls = 0
        self.hedges = HedgeCounters()
        self.trips = TripMeter()

    def begin_step(self, rows: StepRows) -> None:
        """Say whose rows the next calls have; without it no request is strict, and none can be flagged."""
        self._step = rows

    def submit(self, layer: int, rows: torch.Tensor, expert_ids: torch.Tensor) -> Awaitable[torch.Tensor]:
        """Send rows [T, d_model] f32 to the experts [T, n_used]; the awaitable yields [T, n_used, d_model].

        Frames leave before this returns; local experts are computed when the result is awaited.
        """
        return self._start(PairCall(*self._facts(layer, rows, expert_ids), self._reply_format))

    @property
    def has_sums(self) -> bool:
        """Whether the model is to call `submit_sums`."""
        return self._sum_scale is not None

    def submit_sums(self, layer: int, rows: torch.Tensor, routing: Routing) -> Awaitable[torch.Tensor]:
        """As `submit`, with each row's weights; the awaitable yields the combined rows [T, d_model].

        Raises ConfigError without a scale of sums.
        """
        if self._sum_scale is None:
            raise ConfigError("this dispatcher was made without a scale of sums")
        weights = np.ascontiguousarray(routing.weights.numpy(), np.float32)
        exponents = self._sum_scale.exponents(layer, weights)
        return self._start(SumCall(*self._facts(layer, rows, routing.expert_ids), weights, exponents))

    def _facts(self, layer: int, rows: torch.Tensor, expert_ids: torch.Tensor) -> CallFacts:
        kernel = self._store.kernel
        return CallFacts(
            layer,
            kernel.encode_rows(np.ascontiguousarray(rows.detach().numpy(), np.float32)),
            kernel.row_format,
            np.ascontiguousarray(expert_ids.numpy(), np.int32),
            self._store.card.d_model,
            self._step,
            self._transport.measurements(),
        )

    def _start(self, job: LayerCall) -> Awaitable[torch.Tensor]:
        layer = job.layer
        if self._traffic is not None:
            self._traffic.add(layer, job.expert_ids)
        if self._hot is not None:
            self._hot.note_call(layer, job.expert_ids)
        self._n_calls += 1
        live, coverage = taking_part(self._usable(), job.measured, self._n_calls), self._transport.coverage()
        measured = with_probe(live, job.measured, self._n_calls)
        hot = NOBODY if self._hot is None else self._hot.experts(layer)
        placement = place(layer, job.expert_ids, coverage, live, measured, hot=hot, turn=self._n_calls)
        self.trips.add(len(job.expert_ids), placement.batches, job.measured)
        attempts = [self._ask(job, batch, coverage) for batch in placement.batches]
        return self._collect(job, attempts, placement)

    def _usable(self) -> frozenset[str]:
        live = self._transport.live()
        return live if self._guard is None else self._guard.usable(live)

    def _ask(self, job: LayerCall, batch: DispatchBatch, coverage: ReplicaMap) -> Attempt:
        """Send a batch to its worker, and say until when the answer is in time."""
        measured = job.measured.get(batch.worker_id, UNMEASURED)
        patience = patience_s(measured, len(batch.pair_slots), self._deadlines)
        reason = LATE
        if patience >= self._deadline_s:
            patience += self._grace_s
            reason = f"no answer within {patience:g} s"
        due = asyncio.get_running_loop().time() + patience
        return Attempt(batch, listen(self._send(job, batch)), due, coverage.held.get(batch.worker_id), reason)

    def _send(self, job: LayerCall, batch: DispatchBatch) -> Future[FloatRows] | Future[RowSums]:
        try:
            return job.send(self._transport, batch, self._deadline_s)
        except EdgeError as error:
            failed: Future[FloatRows] = Future()
            failed.set_exception(error)
            return failed

    async def _collect(self, job: LayerCall, attempts: list[Attempt], placement: Placement) -> torch.Tensor:
        self._compute_here(job, placement.hot_slots, HOT)
        self._compute_here(job, placement.fallback_slots, NO_REPLICA)
        begun = clocks()
        if len(attempts) == 1:
            await self._fill(job, attempts[0])
        else:
            await asyncio.gather(*(self._fill(job, attempt) for attempt in attempts))
        if self._hot is not None and attempts:
            self._hot.note_wait(begun)
        return job.result()

    async def _fill(self, job: LayerCall, first: Attempt) -> None:
        """Bring one batch's outputs to their places, whoever computes them in the end."""
        waiting, hedge, reason = [first], None, ""
        while waiting:
            heard = await first_heard(waiting)
            for attempt in heard:
                waiting.remove(attempt)
                answer = self._usable_answer(job, attempt)
                if not isinstance(answer, str):
                    self.hedges.n_won_by_replica += attempt is hedge
                    self._use(job, attempt.batch, answer)
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
        self._compute_here(job, first.batch.pair_slots, reason)

    def _note_late(self, waiting: list[Attempt]) -> None:
        now = asyncio.get_running_loop().time()
        for attempt in waiting:
            if attempt.due <= now:
                self.hedges.n_late += 1
                self._leave_out(attempt, attempt.late_reason)

    def _hedge(self, job: LayerCall, late: Attempt) -> Attempt | None:
        """Ask another worker that holds the same experts, if there is one."""
        usable, coverage = self._usable(), self._transport.coverage()
        batch = place_again(late.batch, job.layer, job.expert_ids, coverage, usable, job.measured)
        if batch is None:
            return None
        self.hedges.n_to_replica += 1
        return self._ask(job, batch, coverage)

    def _usable_answer(self, job: LayerCall, attempt: Attempt) -> Answer | str:
        """What was answered, or why it cannot be used whatever it says."""
        answer = attempt.heard.result()
        if isinstance(answer, EdgeError):
            self.hedges.n_late += isinstance(answer, EdgeTimeout)
            return str(answer)
        if self._transport.coverage().held.get(attempt.batch.worker_id) != attempt.held:
            return MOVED  # its local ids may mean other experts now: that is nobody's lie
        wanted = job.answer_shape(attempt.batch)
        reason = None
        if answer.shape != wanted:
            reason = f"the answer has shape {answer.shape}, {wanted} was asked for"
        reason = reason or job.impossible(attempt.batch, answer)
        if reason is not None:
            if self._guard is not None:
                self._guard.note_oddity(attempt.batch.worker_id, reason)
            return reason
        if self._guard is None and not np.isfinite(answer).all():
            return "the answer holds a value that is not finite"
        return answer

    def _leave_out(self, attempt: Attempt, reason: str) -> None:
        logger.warning("worker %s is left out: %s", attempt.batch.worker_id, reason)
        self._transport.report(attempt.batch.worker_id, reason)

    def _use(self, job: LayerCall, batch: DispatchBatch, answer: Answer) -> None:
        """Put a worker's answer into its places; the guard sees it first."""
        pair_rows = job.rows_of(batch.pair_slots)
        reply, is_right = job.reply(batch, answer), True
        usable = reply.outputs
        if self._guard is not None:
            strict = job.step.strict_pairs(pair_rows)
            requests = job.step.requests_of(pair_rows if strict is None else pair_rows[~strict])
            usable, is_right = self._guard.receive(reply, requests, strict)
        job.use(batch, usable)
        by_worker = Served(job.layer, batch.worker_id, pair_rows, "worker")
        self._on_served(by_worker if is_right else Served(job.layer, None, pair_rows, WRONG))

    def _compute_here(self, job: LayerCall, slots: IntArray, reason: str) -> None:
        if not len(slots):
            return
        pair_rows, (begun, _) = job.rows_of(slots), clocks()
        computed = self._store.layer(job.layer).compute(job.rows, pair_rows, job.ids_of(slots))
        if self._hot is not None:
            self._hot.note_own(len(slots), clocks()[0] - begun)
        job.use_own(slots, computed)
        self._on_served(Served(job.layer, None, pair_rows, reason))
