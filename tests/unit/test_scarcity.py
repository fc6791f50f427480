"""The choice of a range: never beyond the target, never outside the budget, always the same, always the scarcest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.coverage.scarcity import Budget, Choice, Counts, choose, scarcity_of, smallest_wanted_bytes

MARKETS = st.integers(0, 2**32 - 1)


class Market:
    """A random small market: some layers without experts, sizes that differ by layer, targets that differ by expert."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        n_layer, n_expert = int(rng.integers(1, 5)), int(rng.integers(1, 13))
        self.bytes_by_layer = rng.choice([0, 100, 130, 205], n_layer)
        self.targets: Counts = np.where(self.bytes_by_layer[:, None] > 0, rng.integers(1, 4, (n_layer, n_expert)), 0)
        self.replicas: Counts = rng.integers(0, 4, (n_layer, n_expert))
        self.held = rng.random((n_layer, n_expert)) < rng.choice([0.0, 0.3])
        self.budget = Budget(
            n_bytes=int(rng.integers(0, 1500)) if rng.random() < 0.7 else None,
            n_experts=int(rng.integers(0, 15)) if rng.random() < 0.7 else None,
        )
        self.tie = int(rng.integers(0, 1000))

    def choose(self, tie: Callable[[int], int] | None = None) -> Choice | None:
        pick = tie or (lambda n: self.tie % n)
        return choose(self.replicas, self.targets, self.bytes_by_layer, self.budget, held=self.held, tie=pick)

    def wanted(self, layer: int, expert: int) -> bool:
        return bool(
            self.bytes_by_layer[layer]
            and self.replicas[layer, expert] < self.targets[layer, expert]
            and not self.held[layer, expert]
        )

    def score(self, layer: int, start: int, stop: int) -> int:
        total = 0
        for expert in range(start, stop):
            have, want = int(self.replicas[layer, expert]), int(self.targets[layer, expert])
            total += max(0, want - have) * 1000 // want
            total += 1000 * (self.replicas.shape[1] + 1) if have == 0 else 0
        return total

    def allowed(self) -> list[tuple[int, int, int]]:
        """Every range that may be chosen, by brute force."""
        n_layer, n_expert = self.replicas.shape
        found = []
        for layer in range(n_layer):
            for start in range(n_expert):
                for stop in range(start + 1, n_expert + 1):
                    n = stop - start
                    n_bytes = n * int(self.bytes_by_layer[layer])
                    fits = self.budget.n_bytes is None or n_bytes <= self.budget.n_bytes
                    fits = fits and (self.budget.n_experts is None or n <= self.budget.n_experts)
                    if fits and all(self.wanted(layer, expert) for expert in range(start, stop)):
                        found.append((layer, start, stop))
        return found


def test_it_works() -> None:
    targets = np.full((2, 8), 2)
    choice = choose(np.zeros((2, 8), int), targets, np.array([100, 100]), Budget(n_bytes=450))
    assert choice is not None
    assert (choice.range.layer, choice.range.start, choice.range.stop) == (0, 0, 4)
    assert (choice.scarcity, choice.replicas, choice.target) == (1.0, 0, 2)


@settings(max_examples=150, deadline=None)
@given(MARKETS)
def test_an_offer_is_wanted_fits_and_no_range_scores_higher(seed: int) -> None:
    market = Market(seed)
    choice, allowed = market.choose(), market.allowed()
    if choice is None:
        assert allowed == []
        return
    place = (choice.range.layer, choice.range.start, choice.range.stop)
    assert place in allowed
    assert market.score(*place) == max(market.score(*other) for other in allowed)
    cells = [(choice.range.layer, expert) for expert in range(choice.range.start, choice.range.stop)]
    assert choice.replicas == min(market.replicas[cell] for cell in cells)
    assert choice.target == max(market.targets[cell] for cell in cells)
    assert 0 < choice.scarcity <= 1


@settings(max_examples=60, deadline=None)
@given(MARKETS)
def test_same_market_and_tie_give_the_same_offer(seed: int) -> None:
    assert Market(seed).choose() == Market(seed).choose()


@settings(max_examples=60, deadline=None)
@given(MARKETS)
def test_a_market_filled_offer_by_offer_ends_exactly_at_target(seed: int) -> None:
    market = Market(seed)
    market.held[:] = False
    market.budget = Budget(n_experts=5)
    while (choice := market.choose()) is not None:
        market.replicas[choice.range.layer, choice.range.start : choice.range.stop] += 1
        assert (market.replicas[choice.range.layer] <= np.maximum(3, market.targets[choice.range.layer])).all()
    has_experts = market.bytes_by_layer > 0
    assert (market.replicas[has_experts] >= market.targets[has_experts]).all()


def test_no_expert_gets_a_second_replica_while_one_has_none() -> None:
    replicas = np.ones((2, 8), int)
    replicas[1, 3] = 0
    choice = choose(replicas, np.full((2, 8), 3), np.array([10, 1000]), Budget(n_bytes=1000))
    assert choice is not None
    assert (choice.range.layer, choice.range.start, choice.range.stop) == (1, 3, 4)


def test_a_budget_counts_the_layers_true_bytes() -> None:
    targets = np.array([[0] * 8, [1] * 8, [1] * 8])
    sizes = np.array([0, 150, 100])
    choice = choose(np.zeros((3, 8), int), targets, sizes, Budget(n_bytes=450))
    assert choice is not None
    assert (choice.range.layer, choice.range.n_experts) == (2, 4)  # 4 of 100 bytes do more than 3 of 150
    nothing = choose(np.zeros((3, 8), int), targets, sizes, Budget(n_bytes=99))
    assert nothing is None
    assert smallest_wanted_bytes(np.zeros((3, 8), int), targets, sizes) == 100


def take(tie: int, _n: int) -> int:
    return tie


def test_ties_go_to_the_injected_choice_and_leave_no_odd_rests() -> None:
    seen = set()
    for tie in range(12):
        choice = choose(np.zeros((3, 8), int), np.ones((3, 8), int), np.array([9, 9, 9]), Budget(n_experts=2),
                       tie=partial(take, tie))  # fmt: skip
        assert choice is not None
        seen.add((choice.range.layer, choice.range.start))
    assert seen == {(layer, start) for layer in range(3) for start in (0, 2, 4, 6)}


def test_a_layer_without_experts_is_never_offered_even_with_a_target() -> None:
    assert choose(np.zeros((1, 4), int), np.ones((1, 4), int), np.array([0]), Budget(n_experts=4)) is None


def test_what_a_volunteer_holds_is_not_offered_again() -> None:
    held = np.zeros((1, 4), bool)
    held[0, :2] = True
    choice = choose(np.ones((1, 4), int), np.full((1, 4), 2), np.array([5]), Budget(n_experts=4), held=held)
    assert choice is not None
    assert (choice.range.start, choice.range.stop) == (2, 4)


@pytest.mark.parametrize(
    ("replicas", "target", "scarcity"), [(0, 2, 1.0), (1, 2, 0.5), (1, 3, 0.667), (2, 2, 0.0), (5, 2, 0.0), (0, 0, 0.0)]
)
def test_the_published_formula(replicas: int, target: int, scarcity: float) -> None:
    assert scarcity_of(replicas, target) == scarcity
