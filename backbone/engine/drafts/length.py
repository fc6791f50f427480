"""The length of drafts: a rule over the share of right guesses and the cost of a row.

`drafter` applies it for each sequence and step. Pure; a choice changes the cost of a step, never a bit of an answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

# Guesses are counted by the length of the match: a long one is seldom chance.
_MATCHES = (4, 8)  # fewer than 4 tokens, fewer than 8, and more
_PRIORS = (0.4, 0.6, 0.8)
DEAREST_ROW = 0.9  # cost of a row above which no sequence drafts, as there is too little to gain
_WEIGHT = 1 / 12  # of one token in a moving average
_HEAD_PRIORS = (0.7, 0.6, 0.5)  # of the MTP head's first, second and later guesses: it was trained for the first
_KNOWN_WEIGHT = 1 / 48  # of one token in the average of all sequences
_DOUBT = 0.1  # of a token, as costs of guesses are less certain than those of rows


class AcceptedShare:
    """A sequence's moving averages of the share of right guesses, by the length of the match."""

    def __init__(self) -> None:
        self._shares = list(_PRIORS)

    def of(self, n_matched: int) -> float:
        """Return the share, 0 to 1, for matches of this length."""
        return self._shares[bisect_right(_MATCHES, n_matched)]

    def see(self, n_matched: int, *, is_right: bool) -> None:
        """Count a guess as right or wrong."""
        kind = bisect_right(_MATCHES, n_matched)
        self._shares[kind] += _WEIGHT * (is_right - self._shares[kind])


class HeadShare:
    """Moving averages of the MTP head's share of right guesses, given that its earlier guesses were right.

    Those of a sequence begin with what is `known` from all sequences, and add to it.
    """

    def __init__(self, known: HeadShare | None = None) -> None:
        self._shares: list[float] = list(_HEAD_PRIORS if known is None else known._shares)
        self._known = known

    def first(self, n: int) -> list[float]:
        """Return the shares, 0 to 1, of its first `n` guesses."""
        last = len(self._shares) - 1
        return [self._shares[min(number, last)] for number in range(n)]

    def see(self, number: int, *, is_right: bool) -> None:
        """Count the guess with this number, from 0, as right or wrong."""
        self._learn(number, _WEIGHT, is_right=is_right)
        if self._known is not None:
            self._known._learn(number, _KNOWN_WEIGHT, is_right=is_right)

    def _learn(self, number: int, weight: float, *, is_right: bool) -> None:
        kind = min(number, len(self._shares) - 1)
        self._shares[kind] += weight * (is_right - self._shares[kind])


def worth_guessing(shares: Sequence[float], cost: float) -> int:
    """Return how many guesses to draft, with a share for each and a cost that includes that of making it."""
    n, chance = 0, 1.0
    for share in shares:
        chance *= share
        if chance < cost + _DOUBT:
            break
        n += 1
    return n


def gain(shares: Sequence[float], cost: float) -> float:
    """Return the tokens that these drafts are expected to gain, less their cost."""
    total, chance = 0.0, 1.0
    for share in shares:
        chance *= share
        total += chance - cost
    return total


def worth_drafting(share: float, row_cost: float, n_most: int) -> int:
    """Return how many tokens to draft: as long as the chance that the next one is used is at least its row's cost.

    The k-th is used only if all before it were right: share ** k. `row_cost` is the cost of one more row, where the
    cost of a token without drafts is 1.
    """
    n, chance = 0, share
    while n < n_most and chance >= row_cost:
        n += 1
        chance *= share
    return n
