"""Incremental decoding of a running sequence's token ids to text, and matching of its stop strings.

The engine calls both after each step. Characters are never split: bytes of an unfinished one wait for the next token.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from backbone.engine.text.tokenizer import Tokenizer
from kvasir.errors import RequestError


class IncrementalDetokenizer:
    """A decoder of one sequence, token by token. The pieces joined are the text of all bytes joined."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that this token completes, perhaps none. Bytes that are not UTF-8 become U+FFFD."""
        return self._decoder.decode(self._tokenizer.shown_bytes(token, skip_special=self._skip_special))

    def finish(self) -> str:
        """Return the rest at the end: U+FFFD for an unfinished character, else nothing."""
        return self._decoder.decode(b"", final=True)


class StopUpdate(NamedTuple):
    """Text that may be shown now, and the stop string that ended the sequence, or None."""

    text: str
    stop: str | None


class StopMatcher:
    """A matcher of stop strings in a text, which holds back text that may become one.

    The stop string that is complete first wins; of those complete at once, the one that began first. So the outcome
    does not depend on how the text is cut into pieces. The stop string and all text after it are never shown.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raise RequestError for an empty stop string, which would match at once."""
        if "" in stops:
            raise RequestError("a stop string is empty; it must have at least one character")
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stop: str | None = None

    def push(self, text: str) -> StopUpdate:
        """Add text and return what may be shown. After a stop string all further text is dropped."""
        if self.stop is not None:
            return StopUpdate("", self.stop)
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.stop = min(found)
            self._held = ""
            return StopUpdate(text[:at], self.stop)
        shown = len(text) - self._possible_prefix(text)
        self._held = text[shown:]
        return StopUpdate(text[:shown], None)

    def finish(self) -> str:
        """Return the text still held back when the sequence ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_prefix(self, text: str) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
