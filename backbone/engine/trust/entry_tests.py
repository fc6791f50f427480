"""Entry tests: each new worker answers questions about experts that it holds before it may serve.

`guard` owns an `EntryTests` and judges the answers as all others. Tests run in the background, so the engine's thread
never waits for one. The rows of a question are random, so a worker cannot keep an answer from an earlier test.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass

import numpy as np

from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.placement import IntArray, ReplicaMap
from backbone.engine.swarm.reply_format import ReplyFormat, round_replies
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.audit import Reply, SecretDraws
from backbone.engine.trust.background import Background
from backbone.engine.trust.book import TrustBook
from kvasir.errors import EdgeError, KernelError
from kvasir.experts import ExpertRange
from kvasir.kernels.api import EncodedRows

logger = logging.getLogger(__name__)

N_PAIRS = 32  # of one test, spread over the layers
ROW_SCALE = 1.0
MAX_TESTS_WAITING = 1024
TEST_DEADLINE_S = 5.0
RETRY_S = 5.0

Held = tuple[ExpertRange, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WorkerAccess:
    """The way to workers: the transport, the format of their replies, and the node of each worker."""

    transport: Transport
    reply_format: ReplyFormat = ReplyFormat.F32
    node_of: Callable[[str], str] = lambda worker_id: worker_id


class EntryTests:
    """The workers that passed, each with the ranges that it held then, and the tests under way."""

    def __init__(
        self,
        store: ExpertStore,
        workers: WorkerAccess,
        book: TrustBook,
        draws: SecretDraws,
        judge: Callable[[Reply], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`judge` returns whether a reply is right, and changes the worker's trust."""
        self._store = store
        self._workers = workers
        self._book = book
        self._draws = draws
        self._judge = judge
        self._clock = clock
        self._lock = threading.Lock()
        self._passed: dict[str, Held] = {}
        self._names: frozenset[str] = frozenset()
        self._testing: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._coverage: ReplicaMap | None = None
        self._tests = Background("kvasir-entry", MAX_TESTS_WAITING)

    def passed(self, live: frozenset[str]) -> frozenset[str]:
        """Return the live workers that may serve, and start a test for each of the others that is due for one."""
        coverage = self._workers.transport.coverage()
        if coverage is not self._coverage:
            self._drop_changed(coverage)
        for worker_id in live - self._names:
            self._start_test(worker_id)
        return live & self._names

    def expel(self, node_id: str) -> None:
        """Withdraw the right to serve from a node's workers."""
        node_of = self._workers.node_of
        with self._lock:
            self._keep({name: held for name, held in self._passed.items() if node_of(name) != node_id})

    def save_soon(self) -> None:
        """Save the trust states in the background."""
        if not self._tests.offer(self._book.save):
            logger.info("trust is saved with the next flush")

    def join(self) -> None:
        """Wait for the tests under way."""
        self._tests.join()

    def close(self) -> None:
        """End the thread."""
        self._tests.close()

    def _drop_changed(self, coverage: ReplicaMap) -> None:
        """Test workers again that left and came back, or hold other ranges now."""
        with self._lock:
            self._coverage = coverage
            self._keep({name: held for name, held in self._passed.items() if coverage.held.get(name) == held})
            self._retry_at = {name: at for name, at in self._retry_at.items() if name in coverage.held}

    def _keep(self, passed: dict[str, Held]) -> None:
        self._passed, self._names = passed, frozenset(passed)

    def _start_test(self, worker_id: str) -> None:
        with self._lock:
            is_due = self._clock() >= self._retry_at.get(worker_id, 0.0)
            if worker_id in self._testing or self._is_quarantined(worker_id) or not is_due:
                return
            self._testing.add(worker_id)
        if not self._tests.offer(lambda: self._test(worker_id)):
            self._testing.discard(worker_id)

    def _test(self, worker_id: str) -> None:
        held: Held = ()
        try:
            self._book.load(self._workers.node_of(worker_id))
            coverage = self._workers.transport.coverage()
            held = coverage.held.get(worker_id, ())
            has_passed = not self._is_quarantined(worker_id) and self._passes(worker_id, coverage)
        except (EdgeError, KernelError) as error:
            logger.warning("the entry test of worker %s has no result: %s", worker_id, error)
            has_passed = False
        with self._lock:
            self._testing.discard(worker_id)
            if has_passed and not self._is_quarantined(worker_id):
                self._keep({**self._passed, worker_id: held})
            else:
                self._retry_at[worker_id] = self._clock() + RETRY_S

    def _is_quarantined(self, worker_id: str) -> bool:
        return self._book.state(self._workers.node_of(worker_id)).quarantined

    def _passes(self, worker_id: str, coverage: ReplicaMap) -> bool:
        questions = make_questions(self._store, coverage, worker_id, self._draws.generator())
        for reply in ask(questions, worker_id, self._workers, self._store, TEST_DEADLINE_S):
            if self._workers.transport.coverage().held.get(worker_id) != coverage.held.get(worker_id):
                raise EdgeError("its ranges changed meanwhile")  # its local ids may mean other experts now
            if not self._judge(reply):
                return False
        return bool(questions)


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One row for some experts of a layer."""

    layer: int
    row: EncodedRows  # [1, row_bytes]
    expert_ids: IntArray  # [n_pairs]
    local_ids: IntArray  # [n_pairs] at the worker


def make_questions(
    store: ExpertStore,
    coverage: ReplicaMap,
    worker_id: str,
    generator: np.random.Generator,
    n_pairs: int = N_PAIRS,
) -> tuple[Question, ...]:
    """Return questions for at most `n_pairs` experts that a worker holds, spread evenly over its layers."""
    held: dict[int, list[tuple[int, int]]] = {}
    for (layer, expert_id), replicas in coverage.replicas.items():
        for replica in replicas:
            if replica.worker_id == worker_id:
                held.setdefault(layer, []).append((expert_id, replica.local_id))
    layers = generator.permutation(sorted(held))[:n_pairs]
    per_layer = max(1, n_pairs // max(len(layers), 1))
    questions = []
    for layer in layers.tolist():
        chosen = generator.permutation(np.asarray(held[layer], np.int32))[:per_layer]
        values = generator.standard_normal((1, store.card.d_model), np.float32) * np.float32(ROW_SCALE)
        row = store.kernel.encode_rows(values)
        questions.append(Question(layer, row, chosen[:, 0].copy(), chosen[:, 1].copy()))
    return tuple(questions)


def ask(
    questions: tuple[Question, ...], worker_id: str, workers: WorkerAccess, store: ExpertStore, deadline_s: float
) -> Iterator[Reply]:
    """Send all questions and yield the replies. Raises EdgeError when one does not come, for any reason."""
    asked = []
    for question in questions:
        pair_rows = np.zeros(len(question.local_ids), np.int32)
        asked.append(
            workers.transport.dispatch(
                worker_id,
                question.layer,
                question.row,
                store.kernel.row_format,
                pair_rows,
                question.local_ids,
                deadline_s,
            )
        )
    for question, future in zip(questions, asked, strict=True):
        try:
            outputs = round_replies(future.result(deadline_s + 2.0), workers.reply_format)
        except (TimeoutError, CancelledError) as error:
            raise EdgeError(f"worker {worker_id}: its entry test was not answered") from error
        pair_rows = np.zeros(len(question.expert_ids), np.int32)
        yield Reply(worker_id, question.layer, question.row, pair_rows, question.expert_ids, outputs)
