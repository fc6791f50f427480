"""Trust follows evidence alone, and what sampling catches is what the formula says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.trust.audit import SecretDraws
from backbone.engine.trust.standing import (
    TrustPolicy,
    TrustState,
    after_good_check,
    after_lie,
    after_oddity,
    audit_share,
    is_proven,
    needed,
)

Event = Callable[[TrustState], TrustState]
POLICY = TrustPolicy(proven_after=100, first_share=1 / 8, least_share=1 / 32, doubt_share=1 / 2, doubt_pairs=40)
CHECKS = st.integers(0, 300).map(lambda n: lambda state: after_good_check(state, n))
ODDITIES = st.just(lambda state: after_oddity(state, POLICY))
LIES = st.just(lambda state: after_lie(state, "e"))


def released(state: TrustState) -> TrustState:
    """As `market.nodes.trust_store.release` leaves a node."""
    return replace(state, verified=0, doubt=0, quarantined=False)


RELEASES = st.just(released)


def after(state: TrustState, events: list[Event]) -> TrustState:
    return reduce(lambda now, event: event(now), events, state)


def test_a_new_worker_is_checked_in_full_until_it_is_proven() -> None:
    state = after_good_check(TrustState(), 99)
    assert not is_proven(state, POLICY)
    assert audit_share(state, POLICY) == 1.0
    assert is_proven(after_good_check(state, 1), POLICY)
    assert audit_share(after_good_check(state, 1), POLICY) == 1 / 8


def test_the_share_falls_as_more_is_verified_down_to_the_least() -> None:
    shares = [audit_share(TrustState(verified=n), POLICY) for n in (100, 200, 300, 400, 10_000)]
    assert shares == [1 / 8, 1 / 16, 1 / 24, 1 / 32, 1 / 32]


def test_an_oddity_raises_the_share_until_enough_was_verified_since() -> None:
    doubted = after_oddity(TrustState(verified=1000), POLICY)
    assert audit_share(doubted, POLICY) == 1 / 2
    assert audit_share(after_good_check(doubted, 39), POLICY) == 1 / 2
    assert audit_share(after_good_check(doubted, 40), POLICY) == 1 / 32


def test_one_lie_takes_all_trust_and_makes_the_way_back_longer() -> None:
    caught = after_lie(TrustState(verified=10**6), "evidence")
    assert caught == TrustState(failures=1, quarantined=True, evidence_id="evidence")
    assert needed(released(caught), POLICY) == 200


@settings(max_examples=60, deadline=None)
@given(before=st.lists(st.one_of(CHECKS, ODDITIES)), since=st.lists(st.one_of(CHECKS, ODDITIES)))
def test_nothing_but_a_release_ends_a_quarantine(before: list[Event], since: list[Event]) -> None:
    caught = after_lie(after(TrustState(), before), "e")
    state = after(caught, since)
    assert state.quarantined
    assert not is_proven(state, POLICY)
    assert audit_share(state, POLICY) == 1.0


@settings(max_examples=60, deadline=None)
@given(events=st.lists(st.one_of(CHECKS, ODDITIES, LIES, RELEASES)))
def test_trust_is_never_more_than_what_was_verified_since_the_last_lie(events: list[Event]) -> None:
    state, verified, lies = TrustState(), 0, 0
    for event in events:
        before, state = state, event(state)
        verified = 0 if state.failures > before.failures else state.verified
        lies += state.failures - before.failures
    assert state.failures == lies
    assert state.verified == verified >= 0
    assert is_proven(state, POLICY) == (not state.quarantined and verified >= 100 * 2**lies)
    assert POLICY.least_share <= audit_share(state, POLICY) <= 1.0


@settings(max_examples=40, deadline=None)
@given(events=st.lists(st.one_of(CHECKS, ODDITIES)), more=st.integers(1, 10_000))
def test_verified_work_never_raises_the_share(events: list[Event], more: int) -> None:
    state = after(TrustState(), events)
    assert audit_share(after_good_check(state, more), POLICY) <= audit_share(state, POLICY)


@pytest.mark.parametrize("lie_share", [0.001, 0.01, 0.1])
def test_sampling_catches_what_the_formula_says(lie_share: float) -> None:
    """Simulated liars, each until its first sampled lie: on average 1 / (lie share x sample share) replies."""
    sample_share, n_liars = 1 / 64, 1500
    rng, draws = np.random.default_rng(5), SecretDraws(b"k" * 32)
    # A lie is sampled with the sample's share, whatever the liar does: only the lies need to be drawn.
    caught_after = []
    for _ in range(n_liars):
        n_lies = 1
        while draws.unit() >= sample_share:
            n_lies += 1
        caught_after.append(int(rng.negative_binomial(n_lies, lie_share)) + n_lies)
    expected = 1 / (lie_share * sample_share)
    assert np.mean(caught_after) == pytest.approx(expected, rel=0.1)
    n_replies = int(expected)
    share = np.mean([after <= n_replies for after in caught_after])
    assert share == pytest.approx(1 - (1 - lie_share * sample_share) ** n_replies, abs=0.05)


def test_draws_are_those_of_their_key_and_even() -> None:
    one, same, other = SecretDraws(b"a" * 32), SecretDraws(b"a" * 32), SecretDraws(b"b" * 32)
    units = [one.unit() for _ in range(4000)]
    assert units == [same.unit() for _ in range(4000)]
    assert units[:3] != [other.unit() for _ in range(3)]
    assert np.mean(units) == pytest.approx(0.5, abs=0.03)
    assert 0.0 <= min(units) < max(units) < 1.0
    assert one.generator().integers(0, 2**62) == same.generator().integers(0, 2**62)
    with pytest.raises(ValueError, match="5 bytes"):
        SecretDraws(b"short")
