"""What layer calls wait for: the dispatcher notes each one, and the planner of micro-batches takes their mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backbone.engine.swarm.measured import UNMEASURED, Measured
from backbone.engine.swarm.placement import DispatchBatch


@dataclass(frozen=True, slots=True)
class LayerTrip:
    """The mean of a step's layer calls: `base_s` is the way to and fro, `work_s` what workers compute until its end."""

    n_calls: int
    n_rows: int
    base_s: float
    work_s: float


class TripMeter:
    """What the layer calls of one dispatcher wait for, as far as their workers were measured."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, float, float]] = []  # rows, way and work of each

    def add(self, n_rows: int, batches: Iterable[DispatchBatch], measured: Mapping[str, Measured]) -> None:
        """A layer call of `n_rows` was placed: its slowest batch counts, after all that is under way before it."""
        base_s, work_s = 0.0, 0.0
        for batch in batches:
            known = measured.get(batch.worker_id, UNMEASURED)
            of_pairs = known.expected_s(len(batch.pair_slots)) - known.base_s
            if known.n_answers and known.base_s + of_pairs > base_s + work_s:
                base_s, work_s = known.base_s, of_pairs
        self._calls.append((n_rows, base_s, work_s))

    def take(self) -> LayerTrip | None:
        """The calls since the last time; None when there were none."""
        calls, self._calls = self._calls, []
        if not calls:
            return None
        n_rows, base_s, work_s = (sum(column) / len(calls) for column in zip(*calls, strict=True))
        return LayerTrip(len(calls), round(n_rows), base_s, work_s)
