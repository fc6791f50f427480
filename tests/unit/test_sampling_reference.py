"""`sample` against sampling without a shortcut: the same tokens and the same log-probabilities, to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from backbone.engine.sampling.choice import RandomDraw, TokenHistory, candidates, sample
from backbone.engine.sampling.weights import Values, descending, largest, pick
from backbone.sampling_params import SamplingParams
from tests.unit.sampling_reference import reference_candidates, reference_sample

N_SMALL = 4000  # cases of vocabularies of up to 300
N_LARGE = 400  # cases of up to 40,000
BANNED = -100.0  # the bias by which the API bans a token

Logits = NDArray[np.float32]


def made_logits(dice: np.random.Generator, n_vocab: int) -> Logits:
    """Flat, wide or sharp; rounded to many ties, or few values in all, or with zeros of both signs."""
    width = dice.choice([0.0, 1e-6, 0.1, 1.0, 3.0, 30.0, 1e30])
    logits = dice.normal(dice.choice([0.0, 15.0, -1e4]), width, n_vocab)
    kind = dice.integers(5)
    if kind == 0:
        logits = logits.round()
    elif kind == 1:
        logits[dice.integers(0, n_vocab, 1 + n_vocab // 5000)] += 12  # few that are likely, above a long tail
    elif kind == 2:
        logits = dice.choice(logits[:3], n_vocab)
    elif kind == 3:
        logits[dice.random(n_vocab) < 0.3] *= -0.0
    return logits.astype(np.float32)


def made_params(dice: np.random.Generator, n_vocab: int) -> SamplingParams:
    def maybe(*values: float) -> float:
        return float(dice.choice([*values])) if dice.random() < 0.5 else float(values[0])

    top_k = int(maybe(0, 1, 5, 40, n_vocab // 2, n_vocab, 2 * n_vocab))
    banned = dice.integers(0, n_vocab, dice.integers(0, 6)).tolist() if dice.random() < 0.3 else []
    return SamplingParams(
        temperature=float(dice.choice([0.0, 1e-300, 1e-3, 0.1, 0.7, 1.0, 1.0, 2.0])),
        top_k=top_k,
        top_p=maybe(1.0, 1e-9, 0.1, 0.25, 0.5, 0.95, 1 - 1e-12, float(dice.uniform(0.01, 0.999))),
        min_p=maybe(0.0, 1e-300, 0.01, 0.05, 0.5, 1.0),
        presence_penalty=maybe(0.0, 0.5, -2.0),
        frequency_penalty=maybe(0.0, 0.3, -1.0),
        repetition_penalty=maybe(1.0, 1.1, 0.5, 10.0),
        logprobs=int(dice.integers(0, 21)) if dice.random() < 0.4 else None,
        logit_bias={token: float(dice.choice([BANNED, 100.0, 0.1])) for token in banned},
    )


@pytest.mark.parametrize(("n_cases", "most"), [(N_SMALL, 300), (N_LARGE, 40_000)])
def test_sampling_is_what_it_is_without_shortcuts(n_cases: int, most: int) -> None:
    dice = np.random.default_rng(most)
    for number in range(n_cases):
        n_vocab = int(dice.integers(1, most))
        logits, params = made_logits(dice, n_vocab), made_params(dice, n_vocab)
        prompt, output = (dice.integers(0, n_vocab, dice.integers(0, 50)).tolist() for _ in range(2))
        history = TokenHistory(prompt)
        for token in output:
            history.add(token)
        draw = None if params.is_greedy else RandomDraw(number, 0, 0)
        before = logits.copy()
        with np.errstate(under="ignore"):
            found = sample(logits, history, params, draw)
            wanted = reference_sample(logits, prompt, output, params, draw)
        assert found == wanted, (number, params)
        assert np.array_equal(logits, before)


def test_candidates_are_what_they_are_without_shortcuts() -> None:
    """Also where every order of adding is in doubt: weights that are equal, or meet the share exactly."""
    dice = np.random.default_rng(7)
    for number in range(1500):
        n_vocab = int(dice.integers(1, 9000 if number % 10 == 0 else 300))
        logits, params = made_logits(dice, n_vocab).astype(np.float64), made_params(dice, n_vocab)
        if params.is_greedy:
            continue
        logits[dice.integers(0, n_vocab, n_vocab // 3)] += 1e-13  # as penalties leave them
        ids, weights = candidates(logits, params)
        wanted_ids, wanted_weights = reference_candidates(logits, params)
        assert np.array_equal(ids, wanted_ids) and np.array_equal(weights, wanted_weights), (number, params)


def test_a_whole_vocabulary_is_sampled_without_filters() -> None:
    """248,320 tokens, at draws on and beside the borders between them."""
    dice = np.random.default_rng(3)
    for width in (0.0, 1.0, 4.0):
        weights = np.exp(-np.abs(dice.normal(0, width, 248_320)))
        cumulative = np.cumsum(weights)
        borders = cumulative[dice.integers(0, weights.size, 60)] / cumulative[-1]
        draws = [*borders, *np.nextafter(borders, 0), *(borders + 1e-11), *dice.random(60), 0.0, math.nextafter(1, 0)]
        for uniform in draws:
            index = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
            assert pick(weights, uniform) == min(index, np.searchsorted(cumulative, cumulative[-1]))


def test_a_draw_that_points_at_a_border_is_decided_by_the_sum_in_order() -> None:
    """Weights of one size: any draw k / n is a border, which sums of blocks could not tell."""
    weights = np.full(1 << 15, 1.0)
    assert [pick(weights, k / weights.size) for k in (0, 1, 2047, 2048, 30_000)] == [0, 1, 2047, 2048, 30_000]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 100, 2999, 3000, 20_000])
def test_ranks_are_those_of_a_stable_sort(kind: type[np.float32] | type[np.float64], size: int) -> None:
    dice = np.random.default_rng(size)
    rows: list[Values] = [
        dice.normal(0, 3, size).astype(kind),
        dice.normal(0, 3, size).round().astype(kind),
        dice.choice(np.array([0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38], kind), size),
    ]
    for values in rows:
        order = np.argsort(-values, kind="stable")
        assert np.array_equal(descending(values), order)
        for n_best in (0, 1, 7, size - 1, size, size + 1):
            assert np.array_equal(largest(values, n_best), order[:n_best])
