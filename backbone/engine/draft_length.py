"""How many drafted tokens are worth their rows: a rule over how often guesses came true and what a row costs.

`drafter` asks it for each sequence and step. Pure; a choice changes what a step costs, never a bit of an answer.
"""

from __future__ import annotations

from bisect import bisect_right

# Guesses are told apart by how much of the text's end was found earlier: a long match is seldom chance.
_MATCHES = (4, 8)  # fewer than 4 tokens, fewer than 8, and more
_PRIORS = (0.4, 0.6, 0.8)
DEAREST_ROW = 0.9  # cost of a row above which nobody drafts: there is too little to gain
_WEIGHT = 1 / 12  # of one token in a moving average


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
