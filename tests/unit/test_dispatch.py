"""The dispatcher over transports that misbehave: the outputs are always the replica's own bits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import torch

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.serving.tally import Tally
from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import ReplicaMap
from backbone.engine.swarm.transport import NoWorkers
from kvasir.errors import EdgeError, EdgeTimeout
from kvasir.experts import ExpertRange, FloatRows
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.api import EncodedRows, Pairs, RowFormat
from kvasir.kernels.registry import kernel_named
from kvasir.slicing.model_card import ModelCard
from tests.oracles.tiny_gguf import TinyModel, write_tiny

Answer = Callable[[FloatRows], FloatRows]
ROWS = torch.randn(5, 256, generator=torch.Generator().manual_seed(3))
EXPERT_IDS = torch.tensor([[0, 9], [3, 1], [9, 2], [1, 0], [15, 14]])


class OneWorker:
    """A worker that holds experts 0 to 7 and whose answers pass through `answer`."""

    def __init__(self, store: ExpertStore, answer: Answer) -> None:
        self._store = store
        self._answer = answer
        self.reports: list[str] = []
        self.n_rows_sent = 0

    def coverage(self) -> ReplicaMap:
        return ReplicaMap.build({"w": [ExpertRange(0, 0, 8)]})

    def live(self) -> frozenset[str]:
        return frozenset({"w"})

    def measurements(self) -> Mapping[str, Measured]:
        return {}

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
        self.n_rows_sent += len(rows)
        future: Future[FloatRows] = Future()
        try:
            future.set_result(self._answer(self._store.layer(layer).compute(rows, pair_rows, pair_ids)))
        except EdgeTimeout as error:
            future.set_exception(error)
        except TimeoutError:
            pass  # the future never ends
        return future

    def report(self, worker_id: str, reason: str) -> None:
        self.reports.append(reason)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertStore]:
    path: Path = write_tiny(tmp_path_factory.mktemp("model") / "m.gguf", TinyModel("qwen3moe", "Q4_K"))
    with GGUFIndex.open(path) as index:
        yield ExpertStore(index, ModelCard.from_index(index), kernel_named("kx1"))


def run(dispatcher: ExpertDispatcher) -> torch.Tensor:
    async def call() -> torch.Tensor:
        return await dispatcher.submit(0, ROWS, EXPERT_IDS)

    return asyncio.run(call())


def honest(outputs: FloatRows) -> FloatRows:
    return outputs


def infinite(outputs: FloatRows) -> FloatRows:
    return np.where(np.arange(256) == 7, np.inf, outputs).astype(np.float32)


def wrong_width(outputs: FloatRows) -> FloatRows:
    return outputs[:, :128]


def late(_outputs: FloatRows) -> FloatRows:
    raise EdgeTimeout("no result within 1 s")


def never(_outputs: FloatRows) -> FloatRows:
    raise TimeoutError


def closed(_outputs: FloatRows) -> FloatRows:
    raise EdgeError("the edge is closed")  # raised by dispatch itself, before there is a future


def test_rows_travel_once_and_the_rest_is_computed_here(store: ExpertStore) -> None:
    expected = run(ExpertDispatcher(store, NoWorkers()))
    worker, tally = OneWorker(store, honest), Tally()
    assert torch.equal(run(ExpertDispatcher(store, worker, on_served=tally.add)), expected)
    assert worker.n_rows_sent == 4  # row 4 needs experts 14 and 15 only, rows 1 and 3 two of the worker's
    assert (tally.pairs_by_worker, tally.fallback_by_reason) == ({"w": 6}, {"no replica": 4})
    assert worker.reports == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (infinite, "the answer holds a value that is not finite"),
        (wrong_width, "the answer has shape (6, 128), (6, 256) was asked for"),
        (late, "no result within 1 s"),
        (never, "no answer within 0.02 s"),
        (closed, "the edge is closed"),
    ],
)
def test_what_cannot_be_used_is_computed_here_and_reported(store: ExpertStore, answer: Answer, reason: str) -> None:
    expected = run(ExpertDispatcher(store, NoWorkers()))
    worker, tally = OneWorker(store, answer), Tally()
    dispatcher = ExpertDispatcher(store, worker, deadline_s=0.01, grace_s=0.01, on_served=tally.add)
    assert torch.equal(run(dispatcher), expected)
    assert worker.reports == [reason]
    assert tally.fallback_by_reason == {"no replica": 4, reason: 6}


def test_an_outputs_place_is_its_row_and_selection(store: ExpertStore) -> None:
    together = run(ExpertDispatcher(store, NoWorkers()))
    for row, ids in enumerate(EXPERT_IDS.tolist()):
        encoded = store.kernel.encode_rows(ROWS[row : row + 1].numpy())
        for position, expert_id in enumerate(ids):
            single = store.layer(0).compute(encoded, np.zeros(1, np.int32), np.asarray([expert_id], np.int32))
            assert np.array_equal(together[row, position].numpy(), single[0])
