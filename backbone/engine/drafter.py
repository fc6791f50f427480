"""Drafts of one sequence: guessed from its own text, as long as they pay.

`sequence` tells it each token and asks for drafts; the engine verifies them, so that no guess ever changes an answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from backbone.engine.draft_length import AcceptedShare, worth_drafting
from backbone.engine.prompt_lookup import PromptLookup


class Drafter:
    """Guesses the next tokens of one sequence."""

    def __init__(self, prompt_ids: Iterable[int], n_most: int) -> None:
        """`n_most` bounds the tokens of a draft. Reads the whole prompt."""
        self._n_most = n_most
        self._lookup = PromptLookup(prompt_ids)
        self._share = AcceptedShare()

    def draft(self, row_cost: float, room: int) -> tuple[int, ...]:
        """Up to `room` tokens that probably come next; none where their rows would not pay (see `draft_length`)."""
        n_matched = self._lookup.n_matched
        if not n_matched:
            return ()
        n = worth_drafting(self._share.of(n_matched), row_cost, min(self._n_most, room))
        return self._lookup.guess(n) if n else ()

    def see(self, token: int) -> None:
        """The sequence's next token. It judges the guess of it, whether that was drafted or not."""
        guessed = self._lookup.next_token
        if guessed is not None:
            self._share.see(self._lookup.n_matched, is_right=guessed == token)
        self._lookup.add(token)
