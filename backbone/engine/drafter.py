"""Drafts of one sequence: guessed from its own text, as long as they pay.

`sequence` asks it for drafts; the engine verifies them, so that no guess ever changes an answer. The answer is read
only when drafts are asked for, so that steps which are too full for them cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from backbone.engine.draft_length import AcceptedShare, worth_drafting
from backbone.engine.prompt_lookup import PromptLookup

READ_AT_ONCE = 64  # tokens, about 0.1 ms


class Drafter:
    """Guesses the next tokens of one sequence."""

    def __init__(self, prompt_ids: Sequence[int], n_most: int) -> None:
        """`n_most` bounds the tokens of a draft. Reads the whole prompt."""
        self._n_most = n_most
        self._n_read = 0  # tokens of the answer
        self._lookup = PromptLookup(prompt_ids)
        self._share = AcceptedShare()

    def draft(self, answer: Sequence[int], row_cost: float, room: int) -> tuple[int, ...]:
        """Up to `room` tokens that probably follow the answer, which is the former one or has grown.

        None where their rows would not pay (see `draft_length`), or while much of the answer is still to be read.
        """
        for token in answer[self._n_read : self._n_read + READ_AT_ONCE]:
            self._see(token)
        if self._n_read < len(answer):
            return ()
        n_matched = self._lookup.n_matched
        if not n_matched:
            return ()
        n = worth_drafting(self._share.of(n_matched), row_cost, min(self._n_most, room))
        return self._lookup.guess(n) if n else ()

    def _see(self, token: int) -> None:
        """The answer's next token. It judges the guess of it, whether that was drafted or not."""
        self._n_read += 1
        guessed = self._lookup.next_token
        if guessed is not None:
            self._share.see(self._lookup.n_matched, is_right=guessed == token)
        self._lookup.add(token)
