"""Late answers, on a clock that jumps: who is asked next, who wins, and that the bits are always the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from backbone.engine.dispatch.deadlines import DeadlineRule
from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.dispatch.hedging import LATE
from backbone.engine.serving.tally import Tally
from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.measured import Measured, RatioHistogram
from backbone.engine.swarm.placement import ReplicaMap
from backbone.engine.swarm.transport import NoWorkers
from kvasir.errors import EdgeError
from kvasir.experts import ExpertRange, FloatRows
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.api import EncodedRows, Pairs, RowFormat
from kvasir.kernels.registry import kernel_named
from kvasir.slicing.model_card import ModelCard
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.unit.virtual_time import VirtualLoop, run

ROWS = torch.randn(3, 256, generator=torch.Generator().manual_seed(3))
EXPERT_IDS = torch.tensor([[0, 5], [3, 1], [5, 2]])
USUAL = RatioHistogram().with_ratio(1.0)
FAST = Measured(base_s=0.01, pair_s=0.0, n_answers=100, ratios=USUAL)
SLOWER = Measured(base_s=0.02, pair_s=0.0, n_answers=100, ratios=USUAL)
RULE = DeadlineRule(shortest_s=0.1, factor=2.0, min_answers=10)


@dataclass
class Reply:
    """What a worker does with each question: after how long (None: never), and what it answers."""

    after_s: float | None
    change: Callable[[FloatRows], FloatRows] = lambda outputs: outputs
    error: EdgeError | None = None


class TwoWorkers:
    """Workers "a" and "b" hold all experts; they answer on the loop's own clock."""

    def __init__(self, store: ExpertStore, **replies: Reply) -> None:
        self._store = store
        self._replies = replies
        self.out: list[str] = []
        self.asked: list[str] = []

    def coverage(self) -> ReplicaMap:
        return ReplicaMap.build({name: [ExpertRange(0, 0, 16)] for name in self._replies})

    def live(self) -> frozenset[str]:
        return frozenset(self._replies) - set(self.out)

    def measurements(self) -> Mapping[str, Measured]:
        return {"a": FAST, "b": SLOWER}

    def dispatch(
        self,
        worker_id: str,
        layer: int,
        rows: EncodedRows,
        row_format: RowFormat,
        pair_rows: Pairs,
        pair_ids: Pairs,
        deadline_s: float,
    ) -> Future[FloatRows]:
        self.asked.append(worker_id)
        future: Future[FloatRows] = Future()
        reply = self._replies[worker_id]
        outputs = self._store.layer(layer).compute(rows, pair_rows, pair_ids)
        if reply.error is not None:
            raise reply.error
        if reply.after_s is not None:
            asyncio.get_running_loop().call_later(reply.after_s, future.set_result, reply.change(outputs))
        return future

    def report(self, worker_id: str, reason: str) -> None:
        self.out.append(worker_id)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertStore]:
    path: Path = write_tiny(tmp_path_factory.mktemp("model") / "m.gguf", TinyModel("qwen3moe", "Q4_K"))
    with GGUFIndex.open(path) as index:
        yield ExpertStore(index, ModelCard.from_index(index), kernel_named("kx1"))


def called(store: ExpertStore, transport: TwoWorkers) -> tuple[ExpertDispatcher, Tally, float]:
    """One layer call; it must give the replica's own bits. Returns also the seconds that it took."""
    tally = Tally()

    def test(
        dispatcher: ExpertDispatcher,
    ) -> Callable[[VirtualLoop], Coroutine[None, None, tuple[torch.Tensor, float]]]:
        async def call(loop: VirtualLoop) -> tuple[torch.Tensor, float]:
            started = loop.time()
            return await dispatcher.submit(0, ROWS, EXPERT_IDS), loop.time() - started

        return call

    expected, _ = run(test(ExpertDispatcher(store, NoWorkers())))
    dispatcher = ExpertDispatcher(store, transport, deadlines=RULE, on_served=tally.add)
    outputs, seconds = run(test(dispatcher))
    assert torch.equal(outputs, expected)
    return dispatcher, tally, seconds


def test_an_answer_in_time_is_used_and_nobody_else_is_asked(store: ExpertStore) -> None:
    transport = TwoWorkers(store, a=Reply(0.05), b=Reply(0.01))
    dispatcher, tally, seconds = called(store, transport)
    assert (transport.asked, transport.out) == (["a"], [])
    assert tally.pairs_by_worker == {"a": 6}
    assert seconds == pytest.approx(0.05)
    assert dispatcher.hedges.n_late == 0


def test_a_late_answer_is_asked_of_the_other_replica(store: ExpertStore) -> None:
    transport = TwoWorkers(store, a=Reply(None), b=Reply(0.01))
    dispatcher, tally, seconds = called(store, transport)
    assert (transport.asked, transport.out) == (["a", "b"], ["a"])
    assert tally.pairs_by_worker == {"b": 6}
    assert seconds == pytest.approx(0.11)
    assert (dispatcher.hedges.n_late, dispatcher.hedges.n_to_replica, dispatcher.hedges.n_won_by_replica) == (1, 1, 1)
    assert dispatcher.hedges.n_to_own == 0


def test_the_first_may_still_win(store: ExpertStore) -> None:
    dispatcher, tally, seconds = called(store, TwoWorkers(store, a=Reply(0.12), b=Reply(0.09)))
    assert tally.pairs_by_worker == {"a": 6}
    assert seconds == pytest.approx(0.12)
    assert (dispatcher.hedges.n_to_replica, dispatcher.hedges.n_won_by_replica) == (1, 0)


def test_when_both_are_late_the_backbone_computes(store: ExpertStore) -> None:
    transport = TwoWorkers(store, a=Reply(None), b=Reply(5.0))
    dispatcher, tally, seconds = called(store, transport)
    assert transport.asked == ["a", "b"]
    assert set(transport.out) == {"a", "b"}
    assert tally.fallback_by_reason == {LATE: 6}
    assert seconds == pytest.approx(0.2)
    assert dispatcher.hedges.n_to_own == 1


def test_without_another_replica_the_backbone_computes_at_once(store: ExpertStore) -> None:
    dispatcher, tally, seconds = called(store, TwoWorkers(store, a=Reply(None)))
    assert tally.fallback_by_reason == {LATE: 6}
    assert seconds == pytest.approx(0.1)
    assert (dispatcher.hedges.n_to_replica, dispatcher.hedges.n_to_own) == (0, 1)


@pytest.mark.parametrize(
    "bad", [Reply(0.01, lambda outputs: outputs[:-1]), Reply(None, error=EdgeError("closed"))], ids=["shape", "closed"]
)
def test_what_cannot_be_used_is_asked_of_the_other_replica_without_a_wait(store: ExpertStore, bad: Reply) -> None:
    transport = TwoWorkers(store, a=bad, b=Reply(0.01))
    _, tally, seconds = called(store, transport)
    assert tally.pairs_by_worker == {"b": 6}
    assert transport.out == ["a"]
    assert seconds <= 0.0201


def test_a_failing_hedge_does_not_end_the_wait_for_the_first(store: ExpertStore) -> None:
    transport = TwoWorkers(store, a=Reply(0.15), b=Reply(None, error=EdgeError("closed")))
    _, tally, _ = called(store, transport)
    assert transport.asked == ["a", "b"]
    assert tally.pairs_by_worker == {"a": 6}
