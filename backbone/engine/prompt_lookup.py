"""Guesses how a text goes on from what it said before: the longest end of it that occurred earlier, and what followed.

`drafter` keeps one for each sequence. Pure: tokens in, tokens out; no model, no clock, no randomness.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SHORTEST_MATCH = 2  # tokens; one alone says too little
LONGEST_MATCH = 32  # more than these make a guess no better
N_PLACES = 8  # latest places of the same two tokens that are compared


class Guess(NamedTuple):
    """How the text may go on, and how many tokens of its end were found earlier; 0: nothing was found."""

    token_ids: tuple[int, ...] = ()
    n_matched: int = 0


class PromptLookup:
    """An index over a text that grows token by token."""

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        """Reads the whole text, about a microsecond a token."""
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}  # where the same tokens ended, latest last
        for token in token_ids:
            self.add(token)

    def __len__(self) -> int:
        return len(self._text)

    def add(self, token: int) -> None:
        """The text's next token."""
        self._text.append(token)
        if len(self._text) >= SHORTEST_MATCH:
            places = self._places.setdefault(tuple(self._text[-SHORTEST_MATCH:]), [])
            places.append(len(self._text))
            if len(places) > N_PLACES + 1:  # the last one is the end of the text itself
                del places[0]

    def guess(self, n_most: int) -> Guess:
        """What followed the longest earlier match of the text's end, the latest of equals, up to `n_most` tokens.

        A match that overlaps the end means that the text repeats itself, and the guess goes on repeating.
        """
        places = self._places.get(tuple(self._text[-SHORTEST_MATCH:]), [])
        if len(places) < 2 or n_most < 1:
            return Guess()
        n_matched, stop = max((self._matched(place), place) for place in places[:-1])
        period = len(self._text) - stop
        followed = self._text[stop : stop + n_most]
        while len(followed) < n_most:
            followed.append(followed[-period])
        return Guess(tuple(followed), n_matched)

    def _matched(self, stop: int) -> int:
        """How many tokens before `stop` are those at the text's end."""
        text, n = self._text, SHORTEST_MATCH
        most = min(stop, LONGEST_MATCH)
        while n < most and text[stop - n - 1] == text[-n - 1]:
            n += 1
        return n
