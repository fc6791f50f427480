"""One MoE layer's journey: rows to the workers that hold the experts, outputs back, and the fallback.

The model calls `submit`, and awaits the result after it has computed the shared expert. No request fails because of a
worker: pairs that no worker holds, and answers that are late, broken or wrong, are computed by another replica or by
the backbone's own, with the same bits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import torch

from backbone.engine.dispatch.counters import HOT, Served, TripMeter
from backbone.engine.dispatch.hedging import LATE, Attempt, DeadlineRule, HedgeCounters, first_heard, listen, patience_s
from backbone.engine.dispatch.hot_cache import NO_EXPERTS, HotCache, clocks
from backbone.engine.dispatch.layer_call import CallFacts, LayerCall, PairCall, SumCall
from backbone.engine.model.expert_caller import StepRows
from backbone.engine.ops.interface import Routing
from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.measured import UNMEASURED
from backbone.engine.swarm.placement import DispatchBatch, IntArray, Placement, ReplicaMap, place, place_again
from backbone.engine.swarm.replica_choice import taking_part, with_probe
from backbone.engine.swarm.sum_scale import SumScale, check_can_sum
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.guard import WorkGuard
from backbone.engine.trust.receipts import TrafficCounter
from kvasir.errors import EdgeError, EdgeTimeout
from kvasir.wire.split import Answer

logger = logging.getLogger(__name__)

WRONG = "the worker's answer was wrong"
NO_REPLICA = "no replica"
MOVED = "the worker's ranges changed while it was asked"


class ExpertDispatcher:
    """Implements the engine's StepExperts over a transport and the backbone's own replica."""

    def __init__(
        self,
        store: ExpertStore,
        transport: Transport,
        *,
        deadlines: DeadlineRule | None = None,
        on_served: Callable[[Served], None] = lambda served: None,
        guard: WorkGuard | None = None,
        traffic: TrafficCounter | None = None,
        sum_scale: SumScale | None = None,
        hot: HotCache | None = None,
    ) -> None:
        """Without a `guard` every worker is trusted. With a `sum_scale` workers answer with sums.

        `traffic` counts how often experts are called. The experts that `hot` names go to no worker: they are computed
        here while the other rows travel.

        Raises ConfigError if this model or its kernel cannot be answered with sums of that scale.
        """
        if sum_scale is not None:
            check_can_sum(store, sum_scale)
        self._sum_scale = sum_scale
        self._store = store
        self._transport = transport
        self._deadlines = deadlines or DeadlineRule()
        self._on_served = on_served
        self._guard = guard
        self._traffic = traffic
        self._hot = hot
        self._step = StepRows()
        self._n_calls = 0
        self.hedges = HedgeCounters()
        self.trips = TripMeter()

    def begin_step(self, rows: StepRows) -> None:
        """Set the requests whose rows the next calls have; without it no request is strict, and none can be flagged."""
        self._step = rows

    def submit(self, layer: int, rows: torch.Tensor, routing: Routing) -> Awaitable[torch.Tensor]:
        """Send rows [T, d_model] f32 to their experts; the awaitable yields what `ExpertCaller` says.

        Frames leave before this returns; local experts are computed when the result is awaited.
        """
        kernel = self._store.kernel
        facts = CallFacts(
            layer,
            kernel.encode_rows(np.ascontiguousarray(rows.detach().numpy(), np.float32)),
            kernel.row_format,
            np.ascontiguousarray(routing.expert_ids.numpy(), np.int32),
            self._store.card.d_model,
            self._step,
            self._transport.measurements(),
        )
        if self._sum_scale is None:
            return self._start(PairCall(*facts))
        weights = np.ascontiguousarray(routing.weights.numpy(), np.float32)
        return self._start(SumCall(*facts, weights, self._sum_scale.exponents(layer, weights)))

    def _start(self, call: LayerCall) -> Awaitable[torch.Tensor]:
        layer = call.layer
        if self._traffic is not None:
            self._traffic.add(layer, call.expert_ids)
        if self._hot is not None:
            self._hot.note_call(layer, call.expert_ids)
        self._n_calls += 1
        live, coverage = taking_part(self._usable(), call.measured, self._n_calls), self._transport.coverage()
        measured = with_probe(live, call.measured, self._n_calls)
        hot = NO_EXPERTS if self._hot is None else self._hot.experts(layer)
        placement = place(layer, call.expert_ids, coverage, live, measured, hot=hot, turn=self._n_calls)
        self.trips.add(len(call.expert_ids), placement.batches, call.measured)
        attempts = [self._ask(call, batch, coverage) for batch in placement.batches]
        return self._collect(call, attempts, placement)

    def _usable(self) -> frozenset[str]:
        live = self._transport.live()
        return live if self._guard is None else self._guard.usable(live)

    def _ask(self, call: LayerCall, batch: DispatchBatch, coverage: ReplicaMap) -> Attempt:
        """Send a batch to its worker, and set when its answer is late."""
        measured, rule = call.measured.get(batch.worker_id, UNMEASURED), self._deadlines
        patience, reason = patience_s(measured, len(batch.pair_slots), rule), LATE
        if patience >= rule.longest_s:
            patience += rule.grace_s
            reason = f"no answer within {patience:g} s"
        due = asyncio.get_running_loop().time() + patience
        return Attempt(batch, listen(self._send(call, batch)), due, coverage.held.get(batch.worker_id), reason)

    def _send(self, call: LayerCall, batch: DispatchBatch) -> Future[Answer]:
        try:
            return self._transport.dispatch(batch.worker_id, call.question(batch), self._deadlines.longest_s)
        except EdgeError as error:
            failed: Future[Answer] = Future()
            failed.set_exception(error)
            return failed

    async def _collect(self, call: LayerCall, attempts: list[Attempt], placement: Placement) -> torch.Tensor:
        self._compute_here(call, placement.hot_slots, HOT)
        self._compute_here(call, placement.fallback_slots, NO_REPLICA)
        begun = clocks()
        if len(attempts) == 1:
            await self._fill(call, attempts[0])
        else:
            await asyncio.gather(*(self._fill(call, attempt) for attempt in attempts))
        if self._hot is not None and attempts:
            self._hot.note_wait(begun)
        return call.result()

    async def _fill(self, call: LayerCall, first: Attempt) -> None:
        """Bring one batch's outputs to their places: from its worker, from another one, or computed here."""
        waiting, hedge, reason = [first], None, ""
        while waiting:
            heard = await first_heard(waiting)
            for attempt in heard:
                waiting.remove(attempt)
                answer = self._usable_answer(call, attempt)
                if not isinstance(answer, str):
                    self.hedges.n_won_by_replica += attempt is hedge
                    self._use(call, attempt.batch, answer)
                    return
                reason = answer
                self._leave_out(attempt, reason)
            if not heard:
                reason = first.late_reason
                self._note_late(waiting)
            if hedge is None and (hedge := self._hedge(call, first)) is not None:
                waiting = [replace(attempt, due=hedge.due) for attempt in waiting] + [hedge]
            elif not heard:
                break
        self.hedges.n_to_own += 1
        self._compute_here(call, first.batch.pair_slots, reason)

    def _note_late(self, waiting: list[Attempt]) -> None:
        now = asyncio.get_running_loop().time()
        for attempt in waiting:
            if attempt.due <= now:
                self.hedges.n_late += 1
                self._leave_out(attempt, attempt.late_reason)

    def _hedge(self, call: LayerCall, late: Attempt) -> Attempt | None:
        """Ask another worker that holds the same experts, if there is one."""
        usable, coverage = self._usable(), self._transport.coverage()
        batch = place_again(late.batch, call.layer, call.expert_ids, coverage, usable, call.measured)
        if batch is None:
            return None
        self.hedges.n_to_replica += 1
        return self._ask(call, batch, coverage)

    def _usable_answer(self, call: LayerCall, attempt: Attempt) -> Answer | str:
        """Return the answer, or the reason why it cannot be used."""
        answer = attempt.heard.result()
        if isinstance(answer, EdgeError):
            self.hedges.n_late += isinstance(answer, EdgeTimeout)
            return str(answer)
        if self._transport.coverage().held.get(attempt.batch.worker_id) != attempt.held:
            return MOVED  # its local ids may mean other experts now, so a wrong answer would prove no lie
        wanted = call.answer_shape(attempt.batch)
        reason = None
        if answer.shape != wanted:
            reason = f"the answer has shape {answer.shape}, {wanted} was asked for"
        reason = reason or call.impossible(attempt.batch, answer)
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

    def _use(self, call: LayerCall, batch: DispatchBatch, answer: Answer) -> None:
        """Put a worker's answer into its places, after the guard has checked it."""
        pair_rows = call.rows_of(batch.pair_slots)
        is_right = True
        if self._guard is not None:
            strict = call.step.strict_pairs(pair_rows)
            requests = call.step.requests_of(pair_rows if strict is None else pair_rows[~strict])
            answer, is_right = self._guard.receive(call.reply(batch, answer), requests, strict)
        call.use(batch, answer)
        by_worker = Served(call.layer, batch.worker_id, pair_rows, "worker")
        self._on_served(by_worker if is_right else Served(call.layer, None, pair_rows, WRONG))

    def _compute_here(self, call: LayerCall, slots: IntArray, reason: str) -> None:
        if not len(slots):
            return
        pair_rows, (begun, _) = call.rows_of(slots), clocks()
        computed = self._store.layer(call.layer).compute(call.rows, pair_rows, call.ids_of(slots))
        if self._hot is not None:
            self._hot.note_own(len(slots), clocks()[0] - begun)
        call.use_own(slots, computed)
        self._on_served(Served(call.layer, None, pair_rows, reason))
