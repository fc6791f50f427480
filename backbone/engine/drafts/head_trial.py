"""A trial of the MTP head's drafts: steps are run with them and without, and their seconds a token compared.

The costs of rows and guesses are estimates that may be far off where all steps are alike; measured seconds a token
include everything. `draft_sources` adds them. Pure: no clock is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_FORGET = 0.95  # weight of a way's earlier steps, at each step of it
_FIRST_STEPS = (6, 3)  # with the head and without, before the first decision
_OTHER_WAY = 32  # steps between two trials of the way that seems worse
_LEAST_GAIN = 1.02


@dataclass(slots=True)
class _Way:
    """Steps with the head, or steps without."""

    n_steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, n_tokens: int, seconds: float) -> None:
        self.n_steps += 1
        self.tokens = self.tokens * _FORGET + n_tokens
        self.seconds = self.seconds * _FORGET + seconds


@dataclass(slots=True)
class _Ways:
    """Both ways, for numbers of sequences with one bit length."""

    ways: tuple[_Way, _Way] = field(default_factory=lambda: (_Way(), _Way()))  # without, with
    n_asked: int = 0


class HeadTrial:
    """Tokens and seconds of an engine's steps with drafts of the head and without, by how many sequences decode."""

    def __init__(self) -> None:
        self._by_size: dict[int, _Ways] = {}

    def add(self, n_sequences: int, *, has_drafts: bool, n_tokens: int, seconds: float) -> None:
        """Add a step that made `n_tokens`; its seconds include the head's."""
        self._ways(n_sequences).ways[has_drafts].add(n_tokens, seconds)

    def wants_drafts(self, n_sequences: int) -> bool:
        """Return whether the next step should use the head's drafts, as they pay or are being tried."""
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
