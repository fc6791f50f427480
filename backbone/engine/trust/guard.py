"""Checks workers' answers: which workers may serve, which answers are confirmed or sampled, and what follows.

The dispatcher passes every answer through it before the combine. A confirmed answer is recomputed
before use and replaced if it is wrong; others are sampled and checked later, in a thread of their own. Only recomputed
answers change trust: silence, closed edges and failures of our own side never do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.placement import IntArray
from backbone.engine.trust.audit import Answer, Evidence, Judge, ReplayMemory, Reply, SecretDraws
from backbone.engine.trust.background import Background
from backbone.engine.trust.book import Forgetful, TrustBook, TrustKeeper
from backbone.engine.trust.entry_tests import EntryTests, WorkerAccess
from backbone.engine.trust.exposure import ExposureBook, Flagged
from backbone.engine.trust.receipts import ReceiptBook, work_by_range
from backbone.engine.trust.standing import (
    TrustPolicy,
    TrustState,
    after_good_check,
    after_lie,
    after_oddity,
    audit_share,
)
from kvasir.errors import KernelError
from kvasir.experts import ExpertRange

logger = logging.getLogger(__name__)

MAX_SAMPLE_PAIRS = 32  # kept of one sampled answer
MAX_SAMPLES_WAITING = 64  # beyond that a sample is checked at once, on the engine's thread

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Lie:
    """A proven lie and its consequences."""

    evidence: Evidence
    flagged: Flagged
    n_withheld: int  # row-experts that are not paid


@dataclass(slots=True)
class GuardCounters:
    """Counts of the guard's work. Written under its lock, read from any thread."""

    n_replies: int = 0
    n_confirmed_pairs: int = 0  # before use
    n_sampled_replies: int = 0
    n_audited_pairs: int = 0  # after use
    n_lies: int = 0
    check_cpu_s: float = 0.0  # CPU time of the threads that recomputed


class WorkGuard:
    """Shared by all dispatchers of a backbone process. `close` it when they are gone."""

    def __init__(
        self,
        store: ExpertStore,
        workers: WorkerAccess,
        *,
        key: bytes,
        policy: TrustPolicy | None = None,
        is_strict: bool = False,
        keeper: TrustKeeper | None = None,
        on_lie: Callable[[Lie], None] = lambda lie: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`key` has 32 secret bytes; `is_strict` confirms every worker's answers before use; `now` gives unix seconds.

        `on_lie` is called by the thread that found the lie, and must not block. Trust, receipts and evidence belong to
        the node of a worker (`workers.node_of`).
        """
        self.book = TrustBook(policy or TrustPolicy(), keeper or Forgetful())
        self.receipts = ReceiptBook(store.card.fingerprint)
        self.exposures = ExposureBook()
        self.counters = GuardCounters()
        self.reply_format = workers.reply_format
        self._transport = workers.transport
        self._judge = Judge(store, workers.reply_format)
        self._draws = SecretDraws(key)
        self._replays = ReplayMemory()
        self._is_strict = is_strict
        self._on_lie = on_lie
        self._node_of = workers.node_of
        self._now = now
        self._lock = threading.Lock()
        self._audits = Background("kvasir-audit", MAX_SAMPLES_WAITING)
        self._entry = EntryTests(store, workers, self.book, self._draws, self._judge_entry)

    def close(self) -> None:
        """Finish waiting checks, settle all receipts and save the trust states; receipts can still be drained after.

        A keeper that fails is only logged; call `book.save` before to have its error raised.
        """
        self._audits.close()
        self.receipts.give_up(self._now())
        self._entry.save_soon()
        self._entry.close()

    def settle(self) -> None:
        """Wait until all samples taken so far are checked and all entry tests under way have ended."""
        self._entry.join()
        self._audits.join()

    def usable(self, live: frozenset[str]) -> frozenset[str]:
        """Return the live workers that may serve: tested, and not in quarantine. Tests of new ones start here."""
        return self._entry.passed(live)

    def receive(self, reply: Reply, request_ids: Iterable[str], must_confirm: Mask | None) -> tuple[Answer, bool]:
        """Return the outputs to use for a reply, and whether the worker answered right as far as it was checked.

        `request_ids` are the requests that use the reply, `must_confirm` bool [n_pairs] marks the pairs of strict ones.
        Outputs that are not finite, or that the node gave before for another question, are always confirmed. Raises
        KernelError when our own side cannot compute.
        """
        self.counters.n_replies += 1
        node_id = self._node_of(reply.worker_id)
        is_odd = self._replays.is_old(node_id, reply) or not np.isfinite(reply.outputs).all()
        if self._is_strict or is_odd or not self.book.is_proven(node_id):
            return self._confirm(reply)
        if must_confirm is not None and must_confirm.any():
            return self._receive_mixed(reply, request_ids, must_confirm)
        self.exposures.note(node_id, request_ids)
        if self.book.state(node_id).quarantined:  # by an audit a moment ago, which could not flag this use any more
            return self._confirm(reply)
        self._use_unconfirmed(reply)
        return reply.outputs, True

    def _receive_mixed(self, reply: Reply, request_ids: Iterable[str], must_confirm: Mask) -> tuple[Answer, bool]:
        """Confirm the pairs of strict requests, then receive the others with the trust that is left."""
        strict, other = (np.flatnonzero(mask).astype(np.int32) for mask in (must_confirm, ~must_confirm))
        outputs = reply.outputs.copy()
        outputs[reply.places(strict)], is_right = self._confirm(reply.part(strict))
        if len(other):
            outputs[reply.places(other)], is_rest_right = self.receive(reply.part(other), request_ids, None)
            is_right = is_right and is_rest_right
        return outputs, is_right

    def note_oddity(self, worker_id: str, what: str) -> None:
        """Check more of a worker's answers after one that no honest worker gives but that proves nothing."""
        logger.warning("worker %s is in doubt: %s", worker_id, what)
        self.book.change(self._node_of(worker_id), partial(after_oddity, policy=self.book.policy))

    def _confirm(self, reply: Reply) -> tuple[Answer, bool]:
        right, is_right = self._check(reply, "confirmation")
        with self._lock:
            self.counters.n_confirmed_pairs += reply.n_pairs
        node_id = self._node_of(reply.worker_id)
        state = self.book.state(node_id)
        if is_right and state.quarantined:  # the answer was under way when the lie was found
            self.receipts.add_unpaid(node_id, self._work(reply), self._now(), _proven(state.evidence_id))
        elif is_right:
            self.receipts.add_verified(node_id, self._work(reply), self._now())
        return right, is_right

    def _use_unconfirmed(self, reply: Reply) -> None:
        node_id = self._node_of(reply.worker_id)
        self.receipts.add_pending(node_id, self._work(reply))
        share = audit_share(self.book.state(node_id), self.book.policy)
        if self._draws.unit() >= share:
            return
        with self._lock:
            self.counters.n_sampled_replies += 1
            number = self.counters.n_sampled_replies
        self.receipts.cut(node_id, number)
        sample = reply.part(self._some(reply.n_pairs))
        if not self._audits.offer(partial(self._audit, sample, number)):
            self._audit(sample, number)

    def _some(self, n_pairs: int) -> IntArray:
        if n_pairs <= MAX_SAMPLE_PAIRS:
            return np.arange(n_pairs, dtype=np.int32)
        chosen = self._draws.generator().choice(n_pairs, MAX_SAMPLE_PAIRS, replace=False)
        return np.sort(chosen).astype(np.int32)

    def _audit(self, sample: Reply, number: int) -> None:
        try:
            _, is_right = self._check(sample, "audit")
        except KernelError:
            logger.exception("our own replica could not check an answer of worker %s", sample.worker_id)
            return
        with self._lock:
            self.counters.n_audited_pairs += sample.n_pairs
        if is_right:
            self.receipts.vouch(self._node_of(sample.worker_id), number, self._now())

    def _judge_entry(self, reply: Reply) -> bool:
        self._replays.is_old(self._node_of(reply.worker_id), reply)  # remember it: it must not be given again later
        return self._check(reply, "entry test")[1]

    def _check(self, reply: Reply, found_by: str) -> tuple[Answer, bool]:
        """Recompute a reply and change trust by it; return the right outputs and whether the reply equals them."""
        started = time.thread_time()
        right = self._judge.right_outputs(reply)
        is_right = not len(self._judge.wrong_pairs(reply, right))
        of_node = replace(reply, worker_id=self._node_of(reply.worker_id))
        evidence = None if is_right else self._judge.evidence(of_node, right, found_by, self._now())
        with self._lock:
            self.counters.check_cpu_s += time.thread_time() - started
        if is_right:
            self.book.change(of_node.worker_id, partial(after_good_check, n_pairs=reply.n_pairs))
        elif evidence is None:
            logger.error("our own replica gave two answers for layer %d; no worker is blamed", reply.layer)
        else:
            self._convict(evidence, reply.worker_id)
        return right, is_right

    def _convict(self, evidence: Evidence, worker_id: str) -> None:
        node_id = evidence.worker_id

        def rule(state: TrustState) -> TrustState:
            return state if state.quarantined else after_lie(state, evidence.evidence_id)

        before, _ = self.book.change(node_id, rule, evidence)
        if before.quarantined:
            return
        self._entry.expel(node_id)
        reason = _proven(evidence.evidence_id)
        n_withheld = self.receipts.withhold(node_id, evidence.at, reason)
        flagged = self.exposures.flag(node_id, evidence.evidence_id)
        with self._lock:
            self.counters.n_lies += 1
        logger.warning("worker %s is in quarantine: %s, found by %s", node_id, reason, evidence.found_by)
        self._transport.report(worker_id, reason)
        self._on_lie(Lie(evidence, flagged, n_withheld))
        self._entry.save_soon()

    def _work(self, reply: Reply) -> Counter[ExpertRange]:
        held = self._transport.coverage().held.get(reply.worker_id, ())
        return work_by_range(held, reply.layer, reply.expert_ids)


def _proven(evidence_id: str) -> str:
    """Return the reason for which a node is not paid."""
    return f"a wrong answer was proven (evidence {evidence_id})"
