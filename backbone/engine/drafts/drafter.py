"""Drafts of one sequence, guessed from its own text or by the MTP head where they pay.

`sequence` asks for drafts and the engine verifies them, so no guess ever changes an answer. The answer is read only
when drafts are asked for, so steps that are too full for drafts cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backbone.engine.drafts.length import AcceptedShare, HeadShare, gain, worth_drafting, worth_guessing
from backbone.engine.drafts.prompt_lookup import PromptLookup

READ_AT_ONCE = 64  # tokens, about 0.1 ms


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Numbers of drafted tokens, and of those that the model accepted. Others were computed in vain."""

    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: DraftCounts) -> DraftCounts:
        return DraftCounts(self.drafted + other.drafted, self.accepted + other.accepted)


class Drafter:
    """The guesses of one sequence's next tokens."""

    def __init__(self, prompt_ids: Sequence[int], n_most: int) -> None:
        """Read the whole prompt; `n_most` bounds the tokens of a draft."""
        self._n_most = n_most
        self._n_read = 0  # tokens of the answer
        self._lookup = PromptLookup(prompt_ids)
        self._share = AcceptedShare()
        self._head_share: HeadShare | None = None  # None until `head_drafts` is called
        self._guessed: tuple[int, ...] = ()  # by the MTP head, for the answer's next tokens
        self._n_right = 0  # tokens of the same guess that came before them

    def draft(self, answer: Sequence[int], row_cost: float, room: int) -> tuple[int, ...]:
        """Guess up to `room` tokens that follow the answer, which may only have grown since the last call.

        Returns none where their rows would not pay (see `drafts.length`), or while much of the answer is still unread.
        """
        if not self._read(answer):
            return ()
        n, _ = self._worth_looking_up(row_cost, room)
        return self._lookup.guess(n) if n else ()

    def head_drafts(self, answer: Sequence[int], row_cost: float, head_cost: float, room: int, known: HeadShare) -> int:
        """Return how many tokens the MTP head should draft, up to `room`; 0 where it gains less than the text's guess.

        `head_cost` is the cost of one guess by the head, in the unit of `row_cost`; `known` is its share of right
        guesses in all sequences.
        """
        if self._head_share is None:
            self._head_share = HeadShare(known)
        if not self._read(answer):
            return 0
        cost, n_most = row_cost + head_cost, min(self._n_most, room)
        shares = self._head_share.first(n_most)
        n = worth_guessing(shares, cost)
        _, looked_up_gain = self._worth_looking_up(row_cost, room)
        return n if gain(shares[:n], cost) > looked_up_gain else 0

    def note_head(self, answer: Sequence[int], guessed: Sequence[int]) -> None:
        """Note the tokens that the MTP head guessed to follow the answer, unless the answer is not fully read."""
        self._guessed, self._n_right = tuple(guessed) if self._n_read == len(answer) else (), 0

    def _read(self, answer: Sequence[int]) -> bool:
        """Read more of the answer; return whether all of it is read."""
        for token in answer[self._n_read : self._n_read + READ_AT_ONCE]:
            self._see(token)
        return self._n_read == len(answer)

    def _worth_looking_up(self, row_cost: float, room: int) -> tuple[int, float]:
        """Return how many tokens of the text's own guess to draft, and the gain."""
        n_matched = self._lookup.n_matched
        if not n_matched:
            return 0, 0.0
        share = self._share.of(n_matched)
        n = worth_drafting(share, row_cost, min(self._n_most, room))
        return n, gain([share] * n, row_cost)

    def _see(self, token: int) -> None:
        """Read the answer's next token, and count the guesses of it as right or wrong, drafted or not."""
        self._n_read += 1
        if self._guessed and self._head_share is not None:
            is_right = self._guessed[0] == token
            self._head_share.see(self._n_right, is_right=is_right)
            self._guessed = self._guessed[1:] if is_right else ()
            self._n_right += 1
        guessed = self._lookup.next_token
        if guessed is not None:
            self._share.see(self._lookup.n_matched, is_right=guessed == token)
        self._lookup.add(token)
