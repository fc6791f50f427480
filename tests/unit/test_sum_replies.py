"""Answers in sums through the dispatcher: the same bits however pairs are spread, lied about, late or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.dispatch.dispatcher import WRONG, ExpertDispatcher
from backbone.engine.ops.interface import Routing
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sum_calibration import calibrate, sum_scale_of
from backbone.engine.serving.tally import Tally
from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import ReplicaMap
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.sum_scale import SumScale
from backbone.engine.swarm.transport import NoWorkers, Transport
from backbone.engine.trust.entry_tests import WorkerAccess
from backbone.engine.trust.guard import WorkGuard
from backbone.engine.trust.standing import TrustPolicy
from backbone.management.generation import DispatchSettings, first_difference, generate
from backbone.sampling_params import SamplingParams
from kvasir.errors import ConfigError, EdgeTimeout
from kvasir.experts import ExpertRange, FloatRows
from kvasir.kernels.api import EncodedRows, Pairs, RowFormat
from kvasir.kernels.registry import kernel_named
from kvasir.kernels.sums import RowSums, sum_outputs
from kvasir.wire.frames import SumOrder
from tests.oracles.tiny_gguf import TinyModel, write_tiny

ROWS = torch.randn(6, 256, generator=torch.Generator().manual_seed(5))
EXPERT_IDS = torch.tensor([[0, 9, 4, 7], [3, 1, 8, 15], [9, 2, 0, 1], [1, 0, 5, 6], [15, 14, 13, 12], [2, 3, 4, 5]])
WEIGHTS = torch.softmax(torch.randn(6, 4, generator=torch.Generator().manual_seed(6)), 1)
ROUTING = Routing(EXPERT_IDS, WEIGHTS)
PROVEN = TrustPolicy(proven_after=0, first_share=0.0, least_share=0.0)
UNPROVEN = TrustPolicy(proven_after=10**9)

Answer = Callable[[RowSums], RowSums]


class Swarm:
    """Workers with the given ranges of layer 0, whose sums pass through `answer`."""

    def __init__(self, store: ExpertStore, held: Mapping[str, ExpertRange], answer: Answer = lambda sums: sums) -> None:
        self._store = store
        self._held = dict(held)
        self._answer = answer
        self._coverage = ReplicaMap.build({name: [part] for name, part in held.items()})
        self.n_rows_back = 0
        self.reports: list[str] = []

    def coverage(self) -> ReplicaMap:
        return self._coverage

    def live(self) -> frozenset[str]:
        return frozenset(self._held)

    def measurements(self) -> Mapping[str, Measured]:
        return {}

    def _outputs(self, worker_id: str, layer: int, rows: EncodedRows, pair_rows: Pairs, ids: Pairs) -> FloatRows:
        return self._store.layer(layer).compute(rows, pair_rows, ids + np.int32(self._held[worker_id].start))

    def dispatch(
        self, worker_id: str, layer: int, rows: EncodedRows, row_format: RowFormat, pair_rows: Pairs, pair_ids: Pairs,
        deadline_s: float,
    ) -> Future[FloatRows]:  # fmt: skip
        future: Future[FloatRows] = Future()
        future.set_result(self._outputs(worker_id, layer, rows, pair_rows, pair_ids))
        return future

    def dispatch_sums(
        self, worker_id: str, layer: int, rows: EncodedRows, row_format: RowFormat, pair_rows: Pairs, pair_ids: Pairs,
        order: SumOrder, deadline_s: float,
    ) -> Future[RowSums]:  # fmt: skip
        future: Future[RowSums] = Future()
        outputs = self._outputs(worker_id, layer, rows, pair_rows, pair_ids)
        sums = sum_outputs(outputs, order.weights, pair_rows, order.exponents)
        self.n_rows_back += len(sums)
        try:
            future.set_result(self._answer(sums))
        except EdgeTimeout as error:
            future.set_exception(error)
        return future

    def report(self, worker_id: str, reason: str) -> None:
        self.reports.append(reason)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    path = write_tiny(tmp_path_factory.mktemp("model") / "m.gguf", TinyModel("qwen3moe", "Q4_K"))
    with LoadedModel.open(path, n_slot=4, n_ctx=128) as model:
        yield model


@pytest.fixture(scope="module")
def scale(loaded: LoadedModel) -> SumScale:
    return calibrate(loaded)


@pytest.fixture
def make_guard(loaded: LoadedModel) -> Iterator[Callable[..., WorkGuard]]:
    guards: list[WorkGuard] = []

    def make(transport: Transport, policy: TrustPolicy, **more: object) -> WorkGuard:
        guard = WorkGuard(
            loaded.store,
            WorkerAccess(transport, ReplyFormat.SUM),
            key=bytes(32),
            policy=policy,
            **more,  # type: ignore[arg-type]
        )
        guards.append(guard)
        return guard

    yield make
    for guard in guards:
        guard.close()


def combined(
    loaded: LoadedModel, scale: SumScale, transport: Transport, guard: WorkGuard | None = None
) -> tuple[torch.Tensor, Tally]:
    tally = Tally()
    dispatcher = ExpertDispatcher(
        loaded.store, transport, reply_format=ReplyFormat.SUM, sum_scale=scale, guard=guard, on_served=tally.add
    )

    async def call() -> torch.Tensor:
        if guard is not None:
            guard.usable(transport.live())
            guard.settle()  # entry tests are over
        return await dispatcher.submit_sums(0, ROWS, ROUTING)

    return asyncio.run(call()), tally


def halves(middle: int) -> dict[str, ExpertRange]:
    return {"a": ExpertRange(0, 0, middle), "b": ExpertRange(0, middle, 16)}


@given(st.lists(st.integers(1, 15), min_size=1, max_size=5, unique=True), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_any_split_of_the_experts_gives_the_same_bits(
    loaded: LoadedModel, scale: SumScale, cuts: list[int], n_missing: int
) -> None:
    alone, _ = combined(loaded, scale, NoWorkers())
    edges = [0, *sorted(cuts), 16]
    held = {f"w{n}": ExpertRange(0, start, stop) for n, (start, stop) in enumerate(pairwise(edges))}
    for name in list(held)[:n_missing]:
        del held[name]
    swarm = Swarm(loaded.store, held)
    together, tally = combined(loaded, scale, swarm)
    assert torch.equal(together, alone)
    assert sum(tally.pairs_by_worker.values()) + tally.n_fallback == EXPERT_IDS.numel()


def test_one_row_comes_back_for_a_row_whatever_its_experts(loaded: LoadedModel, scale: SumScale) -> None:
    swarm = Swarm(loaded.store, {"a": ExpertRange(0, 0, 16)})
    combined(loaded, scale, swarm)
    assert swarm.n_rows_back == len(ROWS)


def test_sums_are_near_the_combine_of_outputs(loaded: LoadedModel, scale: SumScale) -> None:
    sums, _ = combined(loaded, scale, NoWorkers())
    dispatcher = ExpertDispatcher(loaded.store, NoWorkers())

    async def call() -> torch.Tensor:
        return await dispatcher.submit(0, ROWS, EXPERT_IDS)

    exact = (asyncio.run(call()) * WEIGHTS[:, :, None]).sum(1)
    error = torch.linalg.norm(sums - exact, dim=1) / torch.linalg.norm(exact, dim=1)
    assert 0 < error.max() < 0.02
    fine, _ = combined(loaded, replace(scale, bits=14), NoWorkers())
    assert torch.linalg.norm(fine - exact) < torch.linalg.norm(sums - exact) / 100


def late(sums: RowSums) -> RowSums:
    raise EdgeTimeout("no result within 1 s")


def too_large(sums: RowSums) -> RowSums:
    return np.where(np.arange(256) == 3, np.int32(-(2**31)), sums).astype(np.int32)


@pytest.mark.parametrize("answer", [late, too_large, lambda sums: sums[:1], lambda sums: sums[:, :128]])
def test_what_cannot_be_used_is_computed_here(loaded: LoadedModel, scale: SumScale, answer: Answer) -> None:
    alone, _ = combined(loaded, scale, NoWorkers())
    swarm = Swarm(loaded.store, halves(8), answer)
    together, tally = combined(loaded, scale, swarm)
    assert torch.equal(together, alone)
    assert tally.n_fallback == EXPERT_IDS.numel() and swarm.reports


def one_more(sums: RowSums) -> RowSums:
    changed = sums.copy()
    changed[0, 17] += 1
    return changed


def test_a_lie_of_one_unit_is_found_and_not_used(
    loaded: LoadedModel, scale: SumScale, make_guard: Callable[..., WorkGuard]
) -> None:
    alone, _ = combined(loaded, scale, NoWorkers())
    lies: list[object] = []
    swarm = Swarm(loaded.store, halves(8), one_more)
    guard = make_guard(swarm, UNPROVEN, on_lie=lies.append)
    together, tally = combined(loaded, scale, swarm, guard)
    assert torch.equal(together, alone)
    assert len(lies) == 2 and tally.fallback_by_reason[WRONG] == EXPERT_IDS.numel()


def test_honest_sums_pass_confirmation_and_audits(
    loaded: LoadedModel, scale: SumScale, make_guard: Callable[..., WorkGuard]
) -> None:
    alone, _ = combined(loaded, scale, NoWorkers())
    for policy in (UNPROVEN, replace(PROVEN, first_share=1.0, least_share=1.0)):
        swarm = Swarm(loaded.store, halves(5))
        guard = make_guard(swarm, policy)
        together, tally = combined(loaded, scale, swarm, guard)
        guard.settle()
        assert torch.equal(together, alone)
        assert (tally.n_fallback, guard.counters.n_lies) == (0, 0)
        assert guard.counters.n_confirmed_pairs + guard.counters.n_audited_pairs > 0


def test_whole_texts_are_the_same_bits_over_workers(loaded: LoadedModel, scale: SumScale) -> None:
    card = loaded.card
    params = SamplingParams(temperature=0.0, max_tokens=6)
    sums = DispatchSettings(reply_format=ReplyFormat.SUM, sum_scale=scale)
    prompts = [[5, 9, 200, 17], [61], [8, 8, 8]]
    alone = generate(loaded, NoWorkers(), prompts, params, settings=sums)
    held = {f"w{n}": ExpertRange(0, 4 * n, 4 * n + 4) for n in range(4)}
    over_workers = generate(loaded, Swarm(loaded.store, held), prompts, params, settings=sums)
    assert first_difference(over_workers, alone) is None
    n_by_workers = sum(over_workers.tally.pairs_by_worker.values())
    assert over_workers.tally.n_fallback == (card.n_layer - 1) * n_by_workers > 0  # they hold the first layer alone
    plain = generate(loaded, NoWorkers(), prompts, params)
    assert plain.logit_digests != alone.logit_digests  # it is another arithmetic, and says so by its name


def test_the_scale_is_kept_and_the_same_again(loaded: LoadedModel, scale: SumScale, tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    assert sum_scale_of(loaded, folder) == scale
    (path,) = folder.iterdir()
    kept = path.read_text()
    assert SumScale.from_json(kept) == scale == calibrate(loaded)
    assert sum_scale_of(loaded, folder) == scale
    path.write_text(kept.replace("output_rms", "rms"))
    with pytest.raises(ConfigError, match=r"delete it to have it measured again"):
        sum_scale_of(loaded, folder)


def test_exponents_are_the_rows_own(scale: SumScale) -> None:
    weights = np.array([[0.5, 0.5], [1.0, 0.0], [0.25, 0.25], [0.0, 0.0]], np.float32)
    plain = SumScale(scale.fingerprint, {0: 1.0}, bits=6)
    assert plain.exponents(0, weights).tolist() == [-7, -6, -8, -7]
    for row in range(4):
        assert plain.exponents(0, weights[row : row + 1])[0] == plain.exponents(0, weights)[row]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sum_scale": None}, "sums need a scale"),
        ({"fingerprint": "00" * 32}, "scale of sums is of model 0000"),
        ({"output_rms": {0: 1.0}}, r"lacks layers \[1, 2, 3\]"),
    ],
)
def test_sums_that_cannot_be_are_refused(
    loaded: LoadedModel, scale: SumScale, changes: dict[str, object], message: str
) -> None:
    wrong = None if "sum_scale" in changes else replace(scale, **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        ExpertDispatcher(loaded.store, NoWorkers(), reply_format=ReplyFormat.SUM, sum_scale=wrong)


def test_other_kernels_have_no_sums(loaded: LoadedModel, scale: SumScale) -> None:
    floats = ExpertStore(loaded.index, loaded.card, kernel_named("float"))
    with pytest.raises(ConfigError, match="sums need the kernel kx1"):
        ExpertDispatcher(floats, NoWorkers(), reply_format=ReplyFormat.SUM, sum_scale=scale)
