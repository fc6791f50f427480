"""Drafts of one sequence: guessed from its own text, as long as they pay, and how many of them came true.

`sequence` tells it each token and asks for drafts; the engine verifies them, so that no guess ever changes an answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from backbone.engine.draft_length import AcceptedShare, worth_drafting
from backbone.engine.prompt_lookup import Guess, PromptLookup


class Drafter:
    """Guesses the next tokens of one sequence."""

    def __init__(self, prompt_ids: Iterable[int], n_most: int) -> None:
        """`n_most` bounds the tokens of a draft. Reads the whole prompt."""
        self._n_most = n_most
        self._lookup = PromptLookup(prompt_ids)
        self._share = AcceptedShare()
        self._guess = Guess()
        self._n_seen = 0  # of the guess

    def draft(self, row_cost: float, room: int) -> tuple[int, ...]:
        """Up to `room` tokens that probably come next; none where their rows would not pay (see `draft_length`)."""
        self._guess, self._n_seen = self._lookup.guess(self._n_most), 0
        n_matched = self._guess.n_matched
        if not n_matched:
            return ()
        n = worth_drafting(self._share.of(n_matched), row_cost, min(self._n_most, room))
        return self._guess.token_ids[:n]

    def see(self, token: int) -> None:
        """The sequence's next token. It judges the last guess, whether that was drafted or not."""
        if self._n_seen < len(self._guess.token_ids):
            is_right = self._guess.token_ids[self._n_seen] == token
            self._share.see(self._guess.n_matched, is_right=is_right)
            self._n_seen += 1
            if not is_right:
                self._guess = Guess()
        self._lookup.add(token)
