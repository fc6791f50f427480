"""Which experts the backbone computes itself: the plan from made-up calls and times, and the samples that it reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.dispatch.call_samples import Calls, CallSamples
from backbone.engine.dispatch.hot_plan import Costs, costs_of, plan_bytes, plan_hot, saved_s
from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import ReplicaMap
from kvasir.experts import ExpertRange

N_LAYER, N_EXPERT, N_USED = 4, 16, 2
SIZES = [100, 100, 150, 150]


def skewed_calls(seed: int = 1, n_rows: int = 1, n_calls: int = 200) -> list[Calls]:
    """Calls whose experts differ much in how often they are called, in every layer in another order."""
    rng = np.random.default_rng(seed)
    layers = []
    for _ in range(N_LAYER):
        chance = rng.permutation(1.0 / np.arange(1, N_EXPERT + 1))
        calls = np.zeros((n_calls, N_EXPERT), np.uint16)
        for call in calls:
            for _ in range(n_rows):
                call[rng.choice(N_EXPERT, N_USED, replace=False, p=chance / chance.sum())] += 1
        layers.append(calls)
    return layers


def costs(trip_s: float, pair_s: float, own_s: float = 0.0, idle: float = 1.0) -> Costs:
    shape = N_LAYER, N_EXPERT
    return Costs(np.full(shape, trip_s), np.full(shape, pair_s), own_s, idle)


def share_here(calls: Sequence[Calls], plan: Sequence[frozenset[int]]) -> float:
    here = sum(int(layer[:, sorted(hot)].sum()) for layer, hot in zip(calls, plan, strict=True))
    return here / sum(int(layer.sum()) for layer in calls)


def test_where_pairs_cost_the_busiest_experts_are_taken() -> None:
    calls, sizes = skewed_calls(), [100] * N_LAYER
    plan = plan_hot(calls, costs(trip_s=1e-9, pair_s=1e-3), sizes, 1600)
    assert plan_bytes(plan, sizes) == 1600
    traffic = np.stack([layer.sum(axis=0) for layer in calls]).reshape(-1)
    assert share_here(calls, plan) == pytest.approx(np.sort(traffic)[-16:].sum() / traffic.sum())


def test_where_trips_cost_whole_layers_are_taken() -> None:
    calls = skewed_calls(n_rows=3)
    slow = costs(trip_s=0.02, pair_s=1e-6)
    budget = 2 * 16 * 100
    plan = plan_hot(calls, slow, SIZES, budget)
    busiest = plan_hot(calls, costs(trip_s=1e-9, pair_s=1e-3), SIZES, budget)
    assert saved_s(calls, slow, plan) > 1.2 * saved_s(calls, slow, busiest) > 0
    called = [set(np.flatnonzero(layer.sum(axis=0)).tolist()) for layer in calls]
    assert sum(hot >= wanted for hot, wanted in zip(plan, called, strict=True)) == 2


def test_quiet_experts_are_taken_when_the_called_ones_are_and_there_is_room() -> None:
    calls = [np.zeros((8, N_EXPERT), np.uint16) for _ in range(N_LAYER)]
    for layer in calls[:2]:
        layer[:, :3] = 1
    rates = costs(trip_s=0.02, pair_s=1e-4)
    for room, sizes in ((6, [3, 3]), (5, [3, 2]), (8, [5, 3]), (40, [16, 16])):
        plan = plan_hot(calls, rates, [100] * N_LAYER, 100 * room)
        assert [len(hot) for hot in plan] == [*sizes, 0, 0]


def test_nothing_is_taken_where_nothing_is_saved() -> None:
    calls = skewed_calls()
    for useless in (
        costs(0.02, 1e-4, own_s=0.1),  # workers are faster
        costs(0.02, 1e-4, own_s=1e-6, idle=0.0),  # other requests fill the waiting
        costs(0.0, 0.0),  # nobody holds anything: it is all computed here as it is
    ):
        assert plan_hot(calls, useless, SIZES, 10**6) == (frozenset(),) * N_LAYER
    assert plan_hot(calls, costs(0.02, 1e-4), SIZES, 99) == (frozenset(),) * N_LAYER
    no_calls = [np.zeros((0, N_EXPERT), np.uint16)] * N_LAYER
    assert plan_hot(no_calls, costs(0.02, 1e-4), SIZES, 10**6) == (frozenset(),) * N_LAYER


def test_no_more_is_computed_here_than_pays_while_the_rest_travels() -> None:
    calls = skewed_calls(n_rows=64)
    rates = costs(trip_s=0.01, pair_s=1e-4, own_s=1e-4)
    plan = plan_hot(calls, rates, SIZES, 10**6)
    assert 0.3 < share_here(calls, plan) < 0.95
    everything = (frozenset(range(N_EXPERT)),) * N_LAYER
    assert saved_s(calls, rates, plan) > saved_s(calls, rates, everything)


def test_a_plan_stays_until_another_is_clearly_better() -> None:
    rates, budget = costs(trip_s=1e-9, pair_s=1e-3), 800
    calls = skewed_calls()
    plan = plan_hot(calls, rates, SIZES, budget)
    noisy = [layer + np.random.default_rng(n).integers(0, 2, layer.shape) for n, layer in enumerate(calls)]
    again = plan_hot([layer.astype(np.uint16) for layer in noisy], rates, SIZES, budget, plan)
    assert again is plan
    moved = [np.roll(layer, 5, axis=1) for layer in calls]
    assert plan_hot(moved, rates, SIZES, budget, plan) not in (plan, None)
    smaller = plan_hot(calls, rates, SIZES, budget // 2, plan)
    assert plan_bytes(smaller, SIZES) <= budget // 2


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 99),
    budget=st.integers(0, 9000),
    trip=st.floats(1e-6, 1.0),
    pair=st.floats(0.0, 0.1),
    own=st.floats(0.0, 0.01),
)
def test_a_plan_fits_and_never_loses(seed: int, budget: int, trip: float, pair: float, own: float) -> None:
    calls, rates = skewed_calls(seed, n_calls=12), costs(trip, pair, own)
    plan = plan_hot(calls, rates, SIZES, budget)
    assert plan_bytes(plan, SIZES) <= budget
    assert saved_s(calls, rates, plan) >= 0
    assert plan == plan_hot(calls, rates, SIZES, budget)


def test_costs_are_those_of_the_nearest_measured_worker() -> None:
    coverage = ReplicaMap.build(
        {
            "far": [ExpertRange(0, 0, 8)],
            "near": [ExpertRange(0, 4, 6), ExpertRange(1, 0, 2)],
            "new": [ExpertRange(1, 0, 8)],
        }
    )
    measured = {
        "far": Measured(base_s=0.05, pair_s=1e-3, n_answers=9),
        "near": Measured(base_s=0.01, pair_s=2e-3, n_answers=9),
        "new": Measured(),
    }
    found = costs_of((2, 8), coverage, measured, 1e-4, 0.5)
    assert found.trip_s.tolist() == [[0.05] * 4 + [0.01] * 2 + [0.05] * 2, [0.01] * 2 + [0.0] * 6]
    assert found.pair_s[0].tolist() == [5e-4] * 8  # two workers side by side
    assert found.pair_s[1].tolist() == [2e-3] * 2 + [0.0] * 6


def test_samples_are_the_last_calls_and_what_rows_called_together() -> None:
    samples = CallSamples(2, 4, n_kept=2, every=2)
    for first in ([0, 1], [2, 3], [1, 2], [2, 3], [3, 0]):
        samples.add(1, np.array([first, [0, 3]], np.int32))
    assert samples.calls(0).shape == (0, 4)
    assert sorted(samples.calls(1).tolist()) == [[1, 1, 1, 1], [2, 0, 0, 2]]  # the second, third sampled of three
    together = samples.together(1)
    assert together[0].tolist() == [5, 1, 0, 4]
    assert (together == together.T).all()
    assert together.diagonal().sum() == 3 * 2 * 2
