"""What is drafted, and how far: guesses against plain search, the rule over shares and costs, the line of costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.drafts.costs import RowCost
from backbone.engine.drafts.drafter import Drafter
from backbone.engine.drafts.length import AcceptedShare, worth_drafting
from backbone.engine.drafts.prompt_lookup import LONGEST_MATCH, N_PLACES, PromptLookup


def longest(text: list[int]) -> int:
    """Tokens of the longest end of a text that also ends at one of the latest places where its last two tokens are."""
    if len(text) < 2:
        return 0
    places = [stop for stop in range(2, len(text)) if text[stop - 2 : stop] == text[-2:]][-N_PLACES:]
    return max(
        (
            max(n for n in range(min(stop, LONGEST_MATCH) + 1) if text[stop - n : stop] == text[len(text) - n :])
            for stop in places
        ),
        default=0,
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 12))
def test_a_guess_is_what_followed_the_longest_match(text: list[int], n: int) -> None:
    lookup = PromptLookup(text)
    assert min(lookup.n_matched, LONGEST_MATCH) >= longest(text)
    guessed = lookup.guess(n)
    if not lookup.n_matched:
        assert guessed == () and lookup.next_token is None
        return
    assert guessed[0] == lookup.next_token and len(guessed) == n
    ends = [
        stop
        for stop in range(lookup.n_matched, len(text))
        if text[stop - lookup.n_matched : stop] == text[len(text) - lookup.n_matched :]
    ]
    repeated = [[*text, *guessed][stop : stop + n] for stop in ends]
    assert list(guessed) in repeated


def test_a_text_may_grow_and_repeat_itself() -> None:
    lookup = PromptLookup([1, 2, 3, 9])
    assert lookup.guess(3) == ()
    for token in (1, 2, 3):
        lookup.add(token)
    assert (lookup.guess(2), lookup.n_matched) == ((9, 1), 3)
    lookup.add(9)
    assert (lookup.guess(1), lookup.n_matched) == ((1,), 4)
    lookup.add(5)
    assert (lookup.guess(1), lookup.n_matched) == ((), 0)
    repeating = PromptLookup([5, 7, 5, 7, 5, 7])
    assert (repeating.guess(5), repeating.n_matched) == ((5, 7, 5, 7, 5), 4)
    assert PromptLookup([4]).guess(3) == PromptLookup().guess(3) == ()


def test_of_equal_matches_the_latest_is_followed() -> None:
    assert PromptLookup([1, 2, 5, 1, 2, 6, 1, 2]).next_token == 6
    assert PromptLookup([9, 1, 2, 5, 1, 2, 6, 9, 1, 2]).next_token == 5


@pytest.mark.parametrize(
    ("share", "row_cost", "n"),
    [(0.8, 0.9, 0), (0.8, 0.8, 1), (0.8, 0.5, 3), (0.0, 0.1, 0), (1.0, 0.99, 8), (0.5, 0.01, 6), (0.9, 0.001, 8)],
)
def test_drafts_are_as_long_as_their_last_token_pays(share: float, row_cost: float, n: int) -> None:
    assert worth_drafting(share, row_cost, 8) == n
    assert worth_drafting(share, row_cost, 0) == 0


def test_shares_follow_what_came_true_apart_by_match() -> None:
    shares = AcceptedShare()
    for _ in range(60):
        shares.see(2, is_right=False)
        shares.see(20, is_right=True)
    assert shares.of(2) < 0.02 and shares.of(20) > 0.99
    assert shares.of(5) == AcceptedShare().of(5)


def test_guesses_that_are_wrong_are_no_longer_drafted_and_come_back_when_they_are_right() -> None:
    """Also those that were not drafted are judged, so no row is spent on finding out."""
    generator, drafter = np.random.default_rng(5), Drafter([], 4)
    answer: list[int] = []
    for _ in range(400):
        drafter.draft(answer, 0.5, 4)
        answer.append(int(generator.integers(0, 4)))  # chance matches, and nothing follows from them
    assert drafter.draft(answer, 0.5, 4) == ()
    lengths = []
    for token in [*range(10)] * 12:
        lengths.append(len(drafter.draft(answer, 0.5, 4)))
        answer.append(token)
    assert lengths[-1] == 4
    assert len(drafter.draft(answer, 0.5, 3)) == 3
    assert drafter.draft(answer, 0.5, 0) == drafter.draft(answer, 0.5, -2) == ()


def test_a_long_answer_is_read_piece_by_piece_before_drafts_go_on() -> None:
    answer = [*range(10)] * 20
    drafter = Drafter([1, 2], 4)
    found = [drafter.draft(answer, 0.1, 4) for _ in range(4)]
    assert found == [(), (), (), (0, 1, 2, 3)]
    assert drafter.draft(answer, 0.1, 4) == (0, 1, 2, 3)


def test_a_rows_cost_is_found_from_steps_of_different_sizes() -> None:
    generator, cost = np.random.default_rng(2), RowCost()
    for _ in range(300):
        n_rows = int(generator.integers(1, 20))
        cost.add(n_rows, (0.040 + 0.002 * n_rows) * generator.uniform(0.9, 1.1))
    for n_tokens in (1, 8, 64):
        assert cost.relative(n_tokens) == pytest.approx(0.002 / (0.040 / n_tokens + 0.002), rel=0.35)


def test_a_rows_cost_is_half_of_what_was_known_while_all_steps_are_alike() -> None:
    cost = RowCost()
    before = [cost.relative(n) for n in (1, 8, 64)]
    for _ in range(50):
        cost.add(8, 0.1)
    assert [cost.relative(n) for n in (1, 8, 64)] == pytest.approx(before)
    assert before == sorted(before) and before[0] < 0.1 and 0.4 < before[-1] < 0.5
    cost.add(80, 0.1 * (8 + 80) / (8 + 8))  # as it was believed to be, and no longer in doubt
    assert [cost.relative(n) for n in (1, 8, 64)] == pytest.approx([2 * one for one in before], rel=0.2)


@pytest.mark.parametrize(("fixed_rows", "share", "least", "most"), [(640, 0.6, 0.95, 1), (2, 0.6, 0, 0.15)])
def test_a_full_batch_finds_out_what_its_rows_cost(fixed_rows: int, share: float, least: float, most: float) -> None:
    """64 sequences without end, of which some guess: first all steps have 64 rows, and a line through them is any line.

    Where rows cost nothing beside the network nearly all steps draft in the end, where they cost all few do.
    """
    generator, cost, n_drafting = np.random.default_rng(3), RowCost(), 0
    for number in range(400):
        n_each = worth_drafting(share, cost.relative(64), 4)
        n_drafting += n_each > 0 and number >= 200
        n_rows = 64 + n_each * int(generator.integers(8, 24))
        cost.add(n_rows, 0.001 * (fixed_rows + n_rows) * generator.uniform(0.95, 1.05))
    assert least <= n_drafting / 200 <= most


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0, 10)), max_size=30), st.integers(0, 100))
def test_a_rows_cost_is_a_share_whatever_the_times(steps: list[tuple[int, float]], n_tokens: int) -> None:
    cost = RowCost()
    for n_rows, seconds in steps:
        cost.add(n_rows, seconds)
    assert 0 < cost.relative(n_tokens) <= 1 + 1e-9
