"""Guesses from a text itself: the longest end of it that occurred earlier, and the tokens that followed there.

`drafter` keeps one for each sequence. Pure: tokens in, tokens out; no model, no clock, no randomness.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_MATCH = 32  # tokens compared at most
N_PLACES = 8  # latest places of the same two tokens, compared at most


class PromptLookup:
    """An index over a text that grows token by token.

    A match is two tokens or more at the text's end that occurred before. It is followed while the text goes on as it
    did there; otherwise the longest match is looked for, the latest of equals.
    """

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        """Read the whole text, in about a microsecond a token."""
        # Only numbers: a container for each token would keep the garbage collector busy.
        self._text: list[int] = []
        self._latest: dict[int, int] = {}  # by two tokens: the place where they ended last
        self._before: list[int] = []  # by a token's place: where the same two ended before; 0: nowhere
        self._stop = 0  # where the match ends; 0: no match
        self.n_matched = 0  # tokens; 0: no match
        for token in token_ids:
            self.add(token)

    @property
    def next_token(self) -> int | None:
        """Return the token that followed the match, or None without one."""
        return self._text[self._stop] if self._stop else None

    def add(self, token: int) -> None:
        """Append a token to the text."""
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
        """Return the next `n` tokens if the text goes on as after the match; none without a match.

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
        """Find the longest match that ends at this place or at the earlier ones of the same tokens."""
        self._stop = self.n_matched = 0
        for _ in range(N_PLACES):
            if not place:
                break
            n_matched = self._matched(place)
            if n_matched > self.n_matched:
                self._stop, self.n_matched = place, n_matched
            place = self._before[place - 1]

    def _matched(self, stop: int) -> int:
        """Return how many tokens before `stop` equal those at the text's end; at least two do."""
        text, n = self._text, 2
        most = min(stop, LONGEST_MATCH)
        while n < most and text[stop - n - 1] == text[-n - 1]:
            n += 1
        return n
