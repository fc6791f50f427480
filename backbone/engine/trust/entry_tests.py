"""Lets workers in: tests each new one in the background, keeps out those in quarantine, asks again after silence.

Part of the `guard`. The engine's thread asks who is admitted, and never waits for a test.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.placement import ReplicaMap
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.audit import Reply
from backbone.engine.trust.background import Background
from backbone.engine.trust.book import TrustBook
from backbone.engine.trust.draws import SecretDraws
from backbone.engine.trust.entry_questions import ask, make_questions
from kvasir.errors import EdgeError, KernelError
from kvasir.experts import ExpertRange

logger = logging.getLogger(__name__)

MAX_TESTS_WAITING = 1024
TEST_DEADLINE_S = 5.0
RETRY_S = 5.0

Held = tuple[ExpertRange, ...]


class EntryDesk:
    """Who may serve, with the ranges that the worker had when it was tested."""

    def __init__(
        self,
        store: ExpertStore,
        transport: Transport,
        book: TrustBook,
        draws: SecretDraws,
        judge: Callable[[Reply], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`judge` says whether a reply is right, and draws the consequences when it is not."""
        self._store = store
        self._transport = transport
        self._book = book
        self._draws = draws
        self._judge = judge
        self._node_of = transport.node_of
        self._clock = clock
        self._lock = threading.Lock()
        self._admitted: dict[str, Held] = {}
        self._names: frozenset[str] = frozenset()
        self._testing: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._coverage: ReplicaMap | None = None
        self._tests = Background("kvasir-entry", MAX_TESTS_WAITING)

    def admitted(self, live: frozenset[str]) -> frozenset[str]:
        """Those of the live workers that may serve. Starts a test for each of the others that may be tested now."""
        coverage = self._transport.coverage()
        if coverage is not self._coverage:
            self._drop_changed(coverage)
        for worker_id in live - self._names:
            self._start_test(worker_id)
        return live & self._names

    def expel(self, node_id: str) -> None:
        """A node's workers may no longer serve."""
        with self._lock:
            self._keep({name: held for name, held in self._admitted.items() if self._node_of(name) != node_id})

    def save_soon(self) -> None:
        """Save what is known of the workers, in the background."""
        if not self._tests.offer(self._book.save):
            logger.info("trust is saved with the next flush")

    def join(self) -> None:
        """Wait for the tests under way."""
        self._tests.join()

    def close(self) -> None:
        """End the thread."""
        self._tests.close()

    def _drop_changed(self, coverage: ReplicaMap) -> None:
        """Whoever holds other ranges now, or left and came back, is tested again."""
        with self._lock:
            self._coverage = coverage
            self._keep({name: held for name, held in self._admitted.items() if coverage.held.get(name) == held})
            self._retry_at = {name: at for name, at in self._retry_at.items() if name in coverage.held}

    def _keep(self, admitted: dict[str, Held]) -> None:
        self._admitted, self._names = admitted, frozenset(admitted)

    def _start_test(self, worker_id: str) -> None:
        with self._lock:
            is_due = self._clock() >= self._retry_at.get(worker_id, 0.0)
            if worker_id in self._testing or self._is_out(worker_id) or not is_due:
                return
            self._testing.add(worker_id)
        if not self._tests.offer(lambda: self._test(worker_id)):
            self._testing.discard(worker_id)

    def _test(self, worker_id: str) -> None:
        held: Held = ()
        try:
            self._book.load(self._node_of(worker_id))
            coverage = self._transport.coverage()
            held = coverage.held.get(worker_id, ())
            is_admitted = not self._is_out(worker_id) and self._passes(worker_id, coverage)
        except (EdgeError, KernelError) as error:
            logger.warning("the entry test of worker %s has no result: %s", worker_id, error)
            is_admitted = False
        with self._lock:
            self._testing.discard(worker_id)
            if is_admitted and not self._is_out(worker_id):
                self._keep({**self._admitted, worker_id: held})
            else:
                self._retry_at[worker_id] = self._clock() + RETRY_S

    def _is_out(self, worker_id: str) -> bool:
        return self._book.state(self._node_of(worker_id)).quarantined

    def _passes(self, worker_id: str, coverage: ReplicaMap) -> bool:
        questions = make_questions(self._store, coverage, worker_id, self._draws.generator())
        replies = ask(questions, worker_id, self._transport, self._store, TEST_DEADLINE_S)
        for reply in replies:
            if self._transport.coverage().held.get(worker_id) != coverage.held.get(worker_id):
                raise EdgeError("its ranges changed meanwhile")  # its local ids may mean other experts now
            if not self._judge(reply):
                return False
        return bool(questions)
