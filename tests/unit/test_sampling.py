"""What `sample` promises: invariants of the filters, reproducible draws, ties by id, errors naming the value."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from backbone.engine.sampling.choice import RandomDraw, TokenHistory, candidates, log_softmax, sample
from backbone.sampling_params import SamplingParams
from kvasir.errors import RequestError

EMPTY = TokenHistory()
FINITE_LOGITS = hnp.arrays(
    np.float32, st.integers(1, 60), elements=st.one_of(st.integers(-4, 4).map(float), st.floats(-50, 50, width=32))
)


def logits_of(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def probabilities(logits: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float64]:
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    normalised: NDArray[np.float64] = weights / weights.sum()
    return normalised


def kept(logits: NDArray[np.float32], **params: float) -> list[int]:
    ids, _ = candidates(logits.astype(np.float64), SamplingParams(**params))  # type: ignore[arg-type]
    return sorted(ids.tolist())


def test_greedy_takes_the_largest_and_of_equals_the_lowest_id() -> None:
    assert sample(logits_of(1, 5, 5, 2), EMPTY, SamplingParams(temperature=0), None).token == 1


def test_draws_follow_the_softmax_at_any_temperature() -> None:
    logits = logits_of(0.0, 1.0, 2.0, -1.0)
    n_draws = 20_000
    for temperature in (0.5, 1.0, 2.0):
        params = SamplingParams(temperature=temperature)
        tokens = [sample(logits, EMPTY, params, RandomDraw(42, 0, n)).token for n in range(n_draws)]
        expected = probabilities(logits, temperature) * n_draws
        chi_square = ((np.bincount(tokens, minlength=4) - expected) ** 2 / expected).sum()
        assert chi_square < 16.3  # 0.1 % of samples of the right distribution exceed it (3 degrees of freedom)


def test_the_draw_depends_on_seed_choice_and_position_alone() -> None:
    logits = np.linspace(0, 1, 500, dtype=np.float32)
    params = SamplingParams(temperature=2.0)

    def text(seed: int, choice: int) -> list[int]:
        return [sample(logits, EMPTY, params, RandomDraw(seed, choice, n)).token for n in range(12)]

    assert text(3, 0) == text(3, 0)
    assert len({tuple(text(seed, choice)) for seed in (0, 3, 2**64 - 1) for choice in range(3)}) == 9


def test_the_generator_is_pinned() -> None:
    """A change of these would change every seeded text."""
    draws = [RandomDraw(seed, choice, at).uniform() for seed, choice, at in ((0, 0, 0), (1, 0, 0), (1, 2, 3))]
    assert draws == [0.011546754286331562, 0.3035680343067586, 0.6527702009682942]


@settings(max_examples=60, deadline=None)
@given(FINITE_LOGITS, st.integers(1, 70))
def test_top_k_keeps_the_k_largest(logits: NDArray[np.float32], top_k: int) -> None:
    expected = sorted(range(logits.size), key=lambda token: (-logits[token], token))[:top_k]
    assert kept(logits, top_k=top_k) == sorted(expected)


@settings(max_examples=60, deadline=None)
@given(FINITE_LOGITS, st.floats(0.01, 0.999))
def test_top_p_keeps_the_fewest_tokens_that_reach_the_share(logits: NDArray[np.float32], top_p: float) -> None:
    found = kept(logits, top_p=top_p)
    share = probabilities(logits)
    order = sorted(range(logits.size), key=lambda token: (-logits[token], token))
    assert found == sorted(order[: len(found)])
    assert share[found].sum() >= top_p - 1e-9
    assert share[order[: len(found) - 1]].sum() < top_p + 1e-9


@settings(max_examples=60, deadline=None)
@given(FINITE_LOGITS, st.floats(0.001, 1.0))
def test_min_p_keeps_what_has_that_share_of_the_best(logits: NDArray[np.float32], min_p: float) -> None:
    share = probabilities(logits)
    for token in set(range(logits.size)) - set(kept(logits, min_p=min_p)):
        assert share[token] < min_p * share.max() * (1 + 1e-9)
    for token in kept(logits, min_p=min_p):
        assert share[token] >= min_p * share.max() * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    FINITE_LOGITS,
    st.integers(0, 9),
    st.floats(0.05, 1),
    st.floats(0, 1),
    st.floats(1e-300, 2),
    st.integers(0, 2**64 - 1),
)
def test_the_chosen_token_is_a_candidate(
    logits: NDArray[np.float32], top_k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    before = logits.copy()
    token = sample(logits, EMPTY, params, RandomDraw(seed, 0, 5)).token
    assert token in candidates(logits.astype(np.float64), params)[0]
    assert int(logits.argmax()) in candidates(logits.astype(np.float64), params)[0]
    assert np.array_equal(logits, before)


def test_top_p_is_the_same_however_far_it_has_to_look() -> None:
    logits = np.random.default_rng(1).normal(0, 0.1, 40_000).astype(np.float32)
    order = np.argsort(-logits, kind="stable")
    share = np.cumsum(probabilities(logits)[order])
    for top_p in (0.01, 0.2, 0.9):
        assert kept(logits, top_p=top_p) == sorted(order[: np.searchsorted(share, top_p) + 1].tolist())


def plain_top_p(logits: NDArray[np.float64], temperature: float, top_p: float) -> NDArray[np.int64]:
    """From all weights, sorted."""
    scaled = (logits - logits.max()) / temperature
    order = np.argsort(-logits, kind="stable")
    wanted = top_p * np.exp(scaled).sum()
    return order[: int(np.searchsorted(np.cumsum(np.exp(scaled[order])), wanted)) + 1]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 3000),
    st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]),
    st.sampled_from([0.1, 0.7, 1.0, 2.0]),
    st.one_of(st.floats(0.001, 0.999), st.sampled_from([0.25, 0.5, 0.75, 1 - 1e-12])),
    st.integers(0, 10**6),
)
def test_top_p_by_a_shortlist_is_top_p_of_all(
    n: int, width: float, temperature: float, top_p: float, seed: int
) -> None:
    """Also where many logits are equal, shares are met exactly, or the tail counts."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, width, n)
    if seed % 2:
        logits = logits.round()
    if seed % 3 == 0:
        logits[generator.integers(0, n)] += 20  # one that is sure, above a long tail
    ids, weights = candidates(logits, SamplingParams(temperature=temperature, top_p=top_p))
    wanted = plain_top_p(logits, temperature, top_p)
    assert np.array_equal(ids, wanted)
    assert np.array_equal(weights, np.exp((logits[wanted] - logits.max()) / temperature))


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 60), st.booleans(), st.integers(0, 10**6))
def test_top_k_of_many_is_the_head_of_all_sorted(n: int, top_k: int, has_ties: bool, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, n)
    if has_ties:
        logits = logits.round()
    ids, _ = candidates(logits, SamplingParams(top_k=top_k))
    assert np.array_equal(ids, np.argsort(-logits, kind="stable")[:top_k])


def test_filters_apply_in_the_stated_order() -> None:
    """top-p sees the distribution that top-k left: of 0.4, 0.3, 0.3 two are 0.57 and 0.43, so 0.5 keeps one."""
    logits = np.log(logits_of(0.4, 0.3, 0.3))
    assert kept(logits, top_p=0.5) == [0, 1]
    assert kept(logits, top_p=0.5, top_k=2) == [0]


def test_repetition_penalty_counts_prompt_and_answer_once() -> None:
    history = TokenHistory([0])
    for token in (1, 1, 1):
        history.add(token)
    params = SamplingParams(temperature=0, repetition_penalty=2.0)
    assert sample(logits_of(4, 4, 1.9), history, params, None).token == 0
    assert sample(logits_of(4, 4, 2.1), history, params, None).token == 2
    assert sample(logits_of(-1, -1, -1.9), history, params, None).token == 2  # negative ones are multiplied


def test_presence_and_frequency_penalties_count_the_answer_only() -> None:
    history = TokenHistory([0])
    for token in (1, 1):
        history.add(token)
    presence = SamplingParams(temperature=0, presence_penalty=1.0)
    frequency = SamplingParams(temperature=0, frequency_penalty=1.0)
    assert sample(logits_of(1, 2.5, 0), history, presence, None).token == 1
    assert sample(logits_of(1, 2.5, 0), history, frequency, None).token == 0


def test_logit_bias_is_added() -> None:
    params = SamplingParams(temperature=0, logit_bias={2: 5.0, 0: -100})
    assert sample(logits_of(3, 2, 0), EMPTY, params, None).token == 2
    with pytest.raises(RequestError, match="token 7; this model's ids go from 0 to 2"):
        sample(logits_of(3, 2, 0), EMPTY, SamplingParams(temperature=0, logit_bias={7: 1.0}), None)


def test_logprobs_are_the_models_own_whatever_the_filters() -> None:
    logits = logits_of(1, 3, 3, 0)
    params = SamplingParams(temperature=0.3, top_k=1, logprobs=3, logit_bias={0: 90.0})
    sampled = sample(logits, EMPTY, params, RandomDraw(0, 0, 0))
    own = np.log(probabilities(logits))
    assert sampled.token == 0
    assert sampled.logprob == pytest.approx(own[0])
    assert [best.token for best in sampled.top_logprobs] == [1, 2, 0]
    assert [best.logprob for best in sampled.top_logprobs] == pytest.approx(own[[1, 2, 0]])
    assert np.exp(log_softmax(logits)).sum() == pytest.approx(1)
    only_chosen = sample(logits, EMPTY, SamplingParams(temperature=0, logprobs=0), None)
    assert only_chosen.logprob == pytest.approx(own[1])
    assert only_chosen.top_logprobs == ()
    without = sample(logits, EMPTY, SamplingParams(temperature=0), None)
    assert (without.logprob, without.top_logprobs) == (None, ())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(RequestError, match=r"for token 1 \(1 of 3 logits are not finite"):
        sample(logits_of(0, bad, 1), EMPTY, SamplingParams(temperature=0), None)


def test_a_missing_draw_is_refused() -> None:
    with pytest.raises(RequestError, match="needs a random draw"):
        sample(logits_of(0, 1), EMPTY, SamplingParams(), None)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", -0.1, "temperature is -0.1; it must be a number of 0 or more and at most 2"),
        ("temperature", math.nan, "temperature is nan"),
        ("temperature", "1", "temperature is '1'"),
        ("temperature", True, "temperature is True"),
        ("top_k", -1, "top_k is -1; it must be a whole number from 0"),
        ("top_k", 1.5, "top_k is 1.5"),
        ("top_p", 0, "top_p is 0; it must be a number above 0 and at most 1"),
        ("top_p", 1.01, "top_p is 1.01"),
        ("min_p", 2, "min_p is 2"),
        ("presence_penalty", 2.5, "presence_penalty is 2.5"),
        ("frequency_penalty", -2.5, "frequency_penalty is -2.5"),
        ("repetition_penalty", 0, "repetition_penalty is 0"),
        ("seed", -1, "seed is -1"),
        ("seed", 2**64, "seed is 18446744073709551616"),
        ("max_tokens", 0, "max_tokens is 0"),
        ("logprobs", 21, "logprobs is 21; it must be a whole number from 0 to 20"),
        ("stop", "END", "stop is 'END'; it must be a list of strings"),
        ("stop", [""], "stop has ''"),
        ("stop", ["x" * 257], "each must be a string of 1 to 256 characters"),
        ("stop", ["x"] * 17, "stop has 17 strings; at most 16"),
        ("logit_bias", {0: 101}, "logit_bias of token 0 is 101"),
        ("logit_bias", {-1: 1}, "a token of logit_bias is -1"),
        ("logit_bias", [1], "it must map token ids to numbers"),
    ],
)
def test_values_out_of_range_are_named(name: str, value: object, expected: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert expected in str(caught.value)


def test_parameters_do_not_change_after_they_are_checked() -> None:
    bias, stop = {1: 2.0}, ["x"]
    params = SamplingParams(logit_bias=bias, stop=stop)
    bias[2] = math.inf
    stop.append("")
    assert (dict(params.logit_bias), params.stop) == ({1: 2.0}, ("x",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3  # type: ignore[misc]
