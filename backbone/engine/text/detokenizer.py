"""Token ids to text as they come, and the watch for stop strings; one of each for a running sequence.

Called by the engine after each step. It never splits a character: bytes of an unfinished one wait for the next token.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from backbone.engine.text.tokenizer import Tokenizer
from kvasir.errors import RequestError


class IncrementalDetokenizer:
    """Decodes a sequence token by token; the pieces joined are the text of all bytes joined."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes; possibly empty. Bytes that cannot be UTF-8 become U+FFFD."""
        return self._decoder.decode(self._tokenizer.shown_bytes(token, skip_special=self._skip_special))

    def finish(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else nothing."""
        return self._decoder.decode(b"", final=True)


class StopUpdate(NamedTuple):
    """Text that may be shown now, and the stop string that ended the sequence, or None."""

    text: str
    stop: str | None


class StopMatcher:
    """Watches a text for stop strings and holds back what may yet become one.

    The stop string that is complete first wins, of those complete at once the one that began first; so the outcome
    does not depend on how the text was cut into pieces. Neither the stop string nor what follows it is ever shown.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises RequestError for an empty stop string, which would stop everything."""
        if "" in stops:
            raise RequestError("a stop string is empty; it must have at least one character")
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stop: str | None = None

    def push(self, text: str) -> StopUpdate:
        """Add text. After a stop string was found, everything further is dropped."""
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
        """The text still held back when the sequence ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_prefix(self, text: str) -> int:
        """Length of the longest end of text that a stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
