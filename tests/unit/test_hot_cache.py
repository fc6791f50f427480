"""Hot experts in the dispatcher: the same bits as without, who is said to have computed, and plans made elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from backbone.engine.dispatch import hot_cache
from backbone.engine.dispatch.dispatcher import HOT, ExpertDispatcher, Served
from backbone.engine.dispatch.hot_cache import HotCache
from backbone.engine.ops.interface import Routing
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sum_calibration import calibrate
from backbone.engine.serving.tally import Tally
from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.transport import NoWorkers
from backbone.process.event_mapping import request_trace
from backbone.stream.request_trace import HOT as HOT_WORD
from kvasir.experts import ExpertRange, FloatRows
from kvasir.kernels.api import EncodedRows, Pairs
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.unit.engine_service import running, spec
from tests.unit.test_sum_replies import EXPERT_IDS, ROUTING, ROWS, Swarm

DEADLINE_S = 60.0
SLOW = Measured(base_s=0.02, pair_s=1e-3, n_answers=99)


class MeasuredSwarm(Swarm):
    """Workers that are known to be far away."""

    def measurements(self) -> Mapping[str, Measured]:
        return dict.fromkeys(self._held, SLOW)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    path: Path = write_tiny(tmp_path_factory.mktemp("model") / "m.gguf", TinyModel("qwen3moe", "Q4_K"))
    with LoadedModel.open(path, n_slot=4, n_ctx=128) as model:
        yield model


@pytest.fixture
def make_hot(loaded: LoadedModel) -> Iterator[Callable[..., HotCache]]:
    made: list[HotCache] = []

    def make(transport: Swarm | NoWorkers, n_experts: int = 10**6, **more: int) -> HotCache:
        made.append(HotCache(loaded.store, transport, n_experts * loaded.card.layers[0].expert_bytes, **more))
        return made[-1]

    yield make
    for hot in made:
        hot.close()


def partial() -> dict[str, ExpertRange]:
    """Experts 12 to 15 are held by nobody."""
    return {"a": ExpertRange(0, 0, 5), "b": ExpertRange(0, 5, 9), "c": ExpertRange(0, 8, 12)}


def planned(hot: HotCache) -> HotCache:
    for _ in range(4):
        hot.note_call(0, EXPERT_IDS.numpy().astype(np.int32))
    hot.note_own(1, 1e-9)
    hot.replan()
    return hot


@pytest.mark.parametrize("reply", [ReplyFormat.F32, ReplyFormat.F16, ReplyFormat.SUM])
@pytest.mark.parametrize("n_experts", [0, 3, 6, 100])
def test_what_is_hot_changes_no_bit(
    loaded: LoadedModel, make_hot: Callable[..., HotCache], reply: ReplyFormat, n_experts: int
) -> None:
    scale = calibrate(loaded) if reply is ReplyFormat.SUM else None

    def computed(transport: Swarm | NoWorkers, hot: HotCache | None, tally: Tally) -> torch.Tensor:
        dispatcher = ExpertDispatcher(
            loaded.store, transport, reply_format=reply, sum_scale=scale, hot=hot, on_served=tally.add
        )

        async def call() -> torch.Tensor:
            if scale is not None:
                return await dispatcher.submit_sums(0, ROWS, Routing(EXPERT_IDS, ROUTING.weights))
            return await dispatcher.submit(0, ROWS, EXPERT_IDS)

        return asyncio.run(call())

    swarm, tally = MeasuredSwarm(loaded.store, partial()), Tally()
    hot = planned(make_hot(swarm, n_experts))
    assert torch.equal(computed(swarm, hot, tally), computed(NoWorkers(), None, Tally()))
    assert hot.n_experts == min(n_experts, 12)
    n_hot = sum(int(EXPERT_IDS.eq(expert).sum()) for expert in hot.experts(0))
    assert (tally.n_hot, tally.fallback_by_reason) == (n_hot, {"no replica": int((EXPERT_IDS >= 12).sum())})
    assert tally.n_pairs == EXPERT_IDS.numel()


def test_frames_leave_before_anything_is_computed_here(loaded: LoadedModel, make_hot: Callable[..., HotCache]) -> None:
    happened: list[str] = []

    class Asked(MeasuredSwarm):
        def _outputs(
            self, worker_id: str, layer: int, rows: EncodedRows, pair_rows: Pairs, ids: Pairs
        ) -> FloatRows:  # fmt: skip
            happened.append(worker_id)
            return super()._outputs(worker_id, layer, rows, pair_rows, ids)

    def note(served: Served) -> None:
        happened.append(served.reason)

    swarm = Asked(loaded.store, partial())
    hot = planned(make_hot(swarm, 6))
    dispatcher = ExpertDispatcher(loaded.store, swarm, hot=hot, on_served=note)

    async def call() -> None:
        under_way = dispatcher.submit(0, ROWS, EXPERT_IDS)
        assert set(happened) <= set("abc") and happened
        await under_way

    asyncio.run(call())
    assert happened.index(HOT) == sum(name in "abc" for name in happened)


def test_a_plan_is_made_on_another_thread_and_its_pages_are_read_first(
    loaded: LoadedModel, make_hot: Callable[..., HotCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read, has_begun = threading.Event(), threading.Event()
    threads: list[str] = []

    def read_pages(store: ExpertStore, layer: int, expert_ids: np.ndarray) -> None:
        threads.append(threading.current_thread().name)
        has_begun.set()
        assert may_read.wait(DEADLINE_S)

    monkeypatch.setattr(ExpertStore, "read_pages", read_pages)
    hot = make_hot(MeasuredSwarm(loaded.store, partial()), plan_every=4)
    hot.note_own(1, 1e-9)
    ids = EXPERT_IDS.numpy().astype(np.int32)
    for _ in range(40):  # many more than one plan's worth: those that cannot be made now are not queued up
        hot.note_call(0, ids)
    assert has_begun.wait(DEADLINE_S)
    assert hot.n_experts == 0
    may_read.set()
    hot.close()
    assert hot.n_experts == 12 and set(threads) == {"kvasir-hot"}


def test_pages_of_hot_experts_are_read(loaded: LoadedModel) -> None:
    for layer in (0, 3):
        loaded.store.read_pages(layer, np.array([0, 5, 15], np.int32))
    loaded.store.read_pages(0, np.zeros(0, np.int32))


def test_waits_that_other_work_fills_are_not_idle(
    loaded: LoadedModel, make_hot: Callable[..., HotCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0, 0.0]
    monkeypatch.setattr(hot_cache, "clocks", lambda: (now[0], now[1]))
    hot = make_hot(MeasuredSwarm(loaded.store, partial()))
    for _ in range(3000):
        begun = now[0], now[1]
        now[0] += 0.02
        now[1] += 0.02
        hot.note_wait(begun)
    assert planned(hot).n_experts == 0
    for _ in range(3000):
        begun = now[0], now[1]
        now[0] += 0.02
        hot.note_wait(begun)
    assert planned(hot).n_experts == 12


def test_a_request_is_told_its_hot_share_and_its_trace_shows_it(
    loaded: LoadedModel, make_hot: Callable[..., HotCache]
) -> None:
    held = {"a": ExpertRange(0, 0, 16)}
    swarm = MeasuredSwarm(loaded.store, held)
    hot = make_hot(swarm)
    planned(hot)

    with running(loaded, transport=swarm, hot=hot) as (service, listener):
        service.submit(spec("job", prompt=(5, 9, 200)))
        done = listener.last("job")
    shares = done.shares  # type: ignore[union-attr]
    assert shares.hot > 0 and shares.fallback > 0  # the other layers are held by nobody
    trace = request_trace(done.trace, lambda worker_id: worker_id)
    kinds = [source.kind for source in trace.sources]
    assert HOT_WORD in kinds
    by_token = [sum(count for layer in token for count in layer) for token in trace.tokens()]
    assert set(by_token) == {loaded.card.n_used * loaded.card.n_layer}
