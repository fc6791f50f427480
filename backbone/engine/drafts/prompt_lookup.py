"""Guesses how a text goes on from what it said before: the longest end of it that occurred earlier, and what followed.

`drafter` keeps one for each sequence. Pure: tokens in, tokens out; no model, no clock, no randomness.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_MATCH = 32  # more tokens are not compared
N_PLACES = 8  # latest places of the same two tokens that are compared


class PromptLookup:
    """An index over a text that grows token by token.

    A match is two tokens or more at the text's end that occurred before. It is followed for as long as the text goes
    on as it did then; otherwise the longest is looked for, of equals the latest.
    """

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        """Reads the whole text, about a microsecond a token."""
        # Numbers alone: containers for each token would keep the garbage collector busy.
        self._text: list[int] = []
        self._latest: dict[int, int] = {}  # by two tokens: where they ended last
        self._before: list[int] = []  # by the place of a token: where the same two ended before; 0: nowhere
        self._stop = 0  # where the match ends; 0: there is none
        self.n_matched = 0  # tokens; 0: nothing was found
        for token in token_ids:
            self.add(token)

    @property
    def next_token(self) -> int | None:
        """What followed the match; None without one."""
        return self._text[self._stop] if self._stop else None

    def add(self, token: int) -> None:
        """The text's next token."""
        text = self._text
        goes_on = self._stop > 0 and text[self._stop] == token
        text.append(token)
        place, earlier = len(text), 0
        if place > 1:
            pair = text[-2] << 32 | token
            earlier = self._latest.get(pair, 0)
            self._latest[pair] = place
        self._before.append(earlier)
        if goes_on:
            self._stop += 1
            self.n_matched += 1
        else:
            self._find(earlier)

    def guess(self, n: int) -> tuple[int, ...]:
        """The next `n` tokens if the text goes on as it did after the match; none without one.

        A match that overlaps the end means that the text repeats itself, and the guess goes on repeating.
        """
        if not self._stop:
            return ()
        period = len(self._text) - self._stop
        followed = self._text[self._stop : self._stop + n]
        while len(followed) < n:
            followed.append(followed[-period])
        return tuple(followed)

    def _find(self, place: int) -> None:
        """Take the longest match of those that end at this place and at the places before it."""
        self._stop = self.n_matched = 0
        for _ in range(N_PLACES):
            if not place:
                break
            n_matched = self._matched(place)
            if n_matched > self.n_matched:
                self._stop, self.n_matched = place, n_matched
            place = self._before[place - 1]

    def _matched(self, stop: int) -> int:
        """How many tokens before `stop` are those at the text's end; at least two are."""
        text, n = self._text, 2
        most = min(stop, LONGEST_MATCH)
        while n < most and text[stop - n - 1] == text[-n - 1]:
            n += 1
        return n
