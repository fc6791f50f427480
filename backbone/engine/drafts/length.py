"""How many drafted tokens are worth their rows: a rule over how often guesses came true and what a row costs.

`drafter` asks it for each sequence and step. Pure; a choice changes what a step costs, never a bit of an answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

# Guesses are told apart by how much of the text's end was found earlier: a long match is seldom chance.
_MATCHES = (4, 8)  # fewer than 4 tokens, fewer than 8, and more
_PRIORS = (0.4, 0.6, 0.8)
DEAREST_ROW = 0.9  # cost of a row above which nobody drafts: there is too little to gain
_WEIGHT = 1 / 12  # of one token in a moving average
_HEAD_PRIORS = (0.7, 0.6, 0.5)  # of the MTP head's first guess, its second and later ones: it was trained for the first
_KNOWN_WEIGHT = 1 / 48  # of one token in what all sequences know together
_DOUBT = 0.1  # of a token: costs of guesses are known less well than those of rows


class AcceptedShare:
    """A sequence's moving averages of how often the next guessed token was right, by the length of the match."""

    def __init__(self) -> None:
        self._shares = list(_PRIORS)

    def of(self, n_matched: int) -> float:
        """0 to 1."""
        return self._shares[bisect_right(_MATCHES, n_matched)]

    def see(self, n_matched: int, *, is_right: bool) -> None:
        """A token was chosen for which there was a guess."""
        kind = bisect_right(_MATCHES, n_matched)
        self._shares[kind] += _WEIGHT * (is_right - self._shares[kind])


class HeadShare:
    """Moving averages of how often the MTP head was right, where its guesses before were.

    Those of a sequence begin with what is `known` from others, and add to it.
    """

    def __init__(self, known: HeadShare | None = None) -> None:
        self._shares: list[float] = list(_HEAD_PRIORS if known is None else known._shares)
        self._known = known

    def first(self, n: int) -> list[float]:
        """Of its first `n` guesses, each 0 to 1."""
        last = len(self._shares) - 1
        return [self._shares[min(number, last)] for number in range(n)]

    def see(self, number: int, *, is_right: bool) -> None:
        """The guess with this number, from 0, turned out right or wrong."""
        self._learn(number, _WEIGHT, is_right=is_right)
        if self._known is not None:
            self._known._learn(number, _KNOWN_WEIGHT, is_right=is_right)

    def _learn(self, number: int, weight: float, *, is_right: bool) -> None:
        kind = min(number, len(self._shares) - 1)
        self._shares[kind] += weight * (is_right - self._shares[kind])


def worth_guessing(shares: Sequence[float], cost: float) -> int:
    """As `worth_drafting`, with a share for each guess and a cost that is that of making it too."""
    n, chance = 0, 1.0
    for share in shares:
        chance *= share
        if chance < cost + _DOUBT:
            break
        n += 1
    return n


def gain(shares: Sequence[float], cost: float) -> float:
    """Tokens that these drafts are expected to bring, beyond what they cost."""
    total, chance = 0.0, 1.0
    for share in shares:
        chance *= share
        total += chance - cost
    return total


def worth_drafting(share: float, row_cost: float, n_most: int) -> int:
    """How many tokens to draft: as long as the chance that the next one counts is at least what its row costs.

    The k-th is used only if all before it were right: share ** k. `row_cost` is the cost of one more row, where the
    cost of a token without drafts is 1.
    """
    n, chance = 0, share
    while n < n_most and chance >= row_cost:
        n += 1
        chance *= share
    return n
