"""What the next step computes: a pure plan over the sequences. `engine` carries it out.

Running sequences that decode come first, one row each, so that a long prompt never stalls them; what is left of the
step's rows goes to prompts in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backbone.engine.sequence import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """`n_rows` next tokens of one sequence."""

    sequence: Sequence
    n_rows: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a step runs, and which waiting sequences must be given a slot first."""

    chunks: tuple[Chunk, ...]
    admitted: tuple[Sequence, ...]


def plan_step(running: Iterable[Sequence], waiting: Iterable[Sequence], n_free_slots: int, max_rows: int) -> StepPlan:
    """Plan at most `max_rows` rows, but always one for each decoding sequence.

    Waiting sequences are admitted in order, while a slot is free and rows are left.
    """
    ordered = list(running)
    chunks = [Chunk(sequence, 1) for sequence in ordered if sequence.n_pending == 1]
    left = max_rows - len(chunks)
    admitted = []
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
    return StepPlan(tuple(chunks), tuple(admitted))
