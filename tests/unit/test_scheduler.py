"""The plan of a step: decoding sequences are never stalled, prompts take what is left, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from backbone.engine.serving.scheduler import StepPlan, plan_step
from backbone.engine.serving.sequence import Sequence


@dataclass(eq=False)
class Fake:
    """What the scheduler reads of a sequence."""

    n_pending: int
    slot: int | None = None


def plan(running: list[Fake], waiting: list[Fake], free: int, rows: int) -> StepPlan:
    return plan_step(cast(list[Sequence], running), cast(list[Sequence], waiting), free, rows)


def admitted(step: StepPlan) -> list[object]:
    return list(step.admitted)


def rows_of(step: StepPlan) -> list[tuple[object, int]]:
    return [(chunk.sequence, chunk.n_rows) for chunk in step.chunks]


def test_decoding_sequences_always_get_their_row() -> None:
    running = [Fake(1, slot) for slot in range(5)]
    assert rows_of(plan(running, [Fake(9)], 1, 4)) == [(sequence, 1) for sequence in running]


def test_a_long_prompt_is_cut_and_goes_on_before_newcomers() -> None:
    decoding, prefilling, waiting = Fake(1, 0), Fake(100, 1), Fake(7)
    assert rows_of(plan([prefilling, decoding], [waiting], 1, 33)) == [(decoding, 1), (prefilling, 32)]
    step = plan([prefilling, decoding], [waiting], 1, 104)
    assert rows_of(step) == [(decoding, 1), (prefilling, 100), (waiting, 3)]
    assert admitted(step) == [waiting]


def test_without_a_free_slot_nobody_is_admitted() -> None:
    step = plan([Fake(1, 0)], [Fake(3), Fake(3)], 0, 64)
    assert len(step.chunks) == 1 and step.admitted == ()


def test_waiting_sequences_keep_their_order() -> None:
    first, second, third = Fake(3), Fake(3), Fake(3)
    assert admitted(plan([], [first, second, third], 2, 64)) == [first, second]
