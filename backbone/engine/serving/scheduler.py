"""The plan of the next step: a pure function of the sequences. `engine` carries it out.

Running sequences that decode come first, one row each, so that a long prompt never stalls them. The remaining rows of
the step go to prompts in the order of arrival, then to drafts of the decoding sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from backbone.engine.serving.sequence import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """The next `n_rows` tokens of one sequence; the last of them are `drafts`, which this step verifies."""

    sequence: Sequence
    n_rows: int
    drafts: tuple[int, ...] = ()

    @property
    def n_own(self) -> int:
        """Rows of tokens that the sequence has."""
        return self.n_rows - len(self.drafts)

    @property
    def is_sampling(self) -> bool:
        """Whether the step chooses a token for the sequence. Valid before the step only: it changes the sequence."""
        return self.n_own == self.sequence.n_pending


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The chunks of a step, those with drafts last, and the waiting sequences that need a slot first."""

    chunks: tuple[Chunk, ...]
    admitted: tuple[Sequence, ...]


def no_drafts(_sequence: Sequence, _room: int) -> tuple[int, ...]:
    """Return no drafts: plain decoding."""
    return ()


def rows_left(running: Iterable[Sequence], waiting: Iterable[Sequence], n_free_slots: int, max_rows: int) -> int:
    """Return how many rows of the next step decoding and prompts leave for drafts."""
    plan = plan_step(running, waiting, n_free_slots, max_rows)
    return max(max_rows - sum(chunk.n_rows for chunk in plan.chunks), 0)


def plan_step(
    running: Iterable[Sequence],
    waiting: Iterable[Sequence],
    n_free_slots: int,
    max_rows: int,
    draft: Callable[[Sequence, int], tuple[int, ...]] = no_drafts,
) -> StepPlan:
    """Plan at most `max_rows` rows, but always one for each decoding sequence.

    Waiting sequences are admitted in order, while a slot is free and rows are left. `draft` returns a decoding
    sequence's drafts, at most the given number.
    """
    ordered = list(running)
    decoding = [sequence for sequence in ordered if sequence.n_pending == 1]
    left = max_rows - len(decoding)
    chunks, admitted = [], []
    for sequence in [s for s in ordered if s.n_pending > 1] + list(waiting):
        if left <= 0:
            break
        if sequence.slot is None:
            if n_free_slots == 0:
                break
            n_free_slots -= 1
            admitted.append(sequence)
        n_rows = min(sequence.n_pending, left)
        chunks.append(Chunk(sequence, n_rows))
        left -= n_rows
    plain: list[Chunk] = []
    drafted: list[Chunk] = []
    for sequence in decoding:
        drafts = draft(sequence, left) if left > 0 else ()
        (drafted if drafts else plain).append(Chunk(sequence, 1 + len(drafts), drafts))
        left -= len(drafts)
    return StepPlan((*plain, *chunks, *drafted), tuple(admitted))
