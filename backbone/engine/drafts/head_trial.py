"""Whether drafts of the MTP head pay, found out by running steps with them and without.

What rows and guesses cost is an estimate that may be far off where all steps are alike; seconds a token are the truth,
with everything in them. `draft_sources` feeds it and asks it. Pure: times come from outside.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_FORGET = 0.95  # of the steps of a way, at each step of it
_FIRST_STEPS = (6, 3)  # with the head and without, before anything is decided
_OTHER_WAY = 32  # every so many steps the way that seems worse is tried
_LEAST_GAIN = 1.02


@dataclass(slots=True)
class _Way:
    """Steps with the head, or without."""

    n_steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, n_tokens: int, seconds: float) -> None:
        self.n_steps += 1
        self.tokens = self.tokens * _FORGET + n_tokens
        self.seconds = self.seconds * _FORGET + seconds


@dataclass(slots=True)
class _Ways:
    """Both, for a number of sequences or about as many."""

    ways: tuple[_Way, _Way] = field(default_factory=lambda: (_Way(), _Way()))  # without, with
    n_asked: int = 0


class HeadTrial:
    """Tokens and seconds of an engine's steps with drafts of the head and without, by how many sequences decode."""

    def __init__(self) -> None:
        self._by_size: dict[int, _Ways] = {}

    def add(self, n_sequences: int, *, has_drafts: bool, n_tokens: int, seconds: float) -> None:
        """A step made so many tokens; its seconds are those of the head too."""
        self._ways(n_sequences).ways[has_drafts].add(n_tokens, seconds)

    def wants_drafts(self, n_sequences: int) -> bool:
        """Whether the next step had better have the head's drafts, or has them to find out."""
        both = self._ways(n_sequences)
        without, with_drafts = both.ways
        if with_drafts.n_steps < _FIRST_STEPS[0]:
            return True
        if without.n_steps < _FIRST_STEPS[1]:
            return False
        is_better = with_drafts.seconds * without.tokens * _LEAST_GAIN <= without.seconds * with_drafts.tokens
        both.n_asked += 1
        return is_better is (both.n_asked % _OTHER_WAY != 0)

    def _ways(self, n_sequences: int) -> _Ways:
        return self._by_size.setdefault(n_sequences.bit_length(), _Ways())
