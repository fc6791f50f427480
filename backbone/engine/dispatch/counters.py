"""What layer calls did and what they wait for: counted by the dispatcher, read by summaries, meters and planners.

`Served` says which node computed which pairs. `Tally` adds them up for a run; `serving.shares` splits them by sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backbone.engine.swarm.measured import UNMEASURED, Measured
from backbone.engine.swarm.placement import DispatchBatch, IntArray

HOT = "hot"


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """The pairs that one node computed in one layer of one step. `worker_id` is None for the backbone's own replica."""

    layer: int
    worker_id: str | None
    pair_rows: IntArray  # [n_pairs] the batch's row that each pair belongs to
    reason: str  # "worker", HOT, NO_REPLICA, or why the worker's answer was not used

    @property
    def n_pairs(self) -> int:
        """Number of pairs."""
        return len(self.pair_rows)

    @property
    def is_hot(self) -> bool:
        """Whether the backbone computed them because its plan has their experts."""
        return self.worker_id is None and self.reason == HOT


class Tally:
    """Row-experts of a run by worker, and by reason where the backbone's own replica computed."""

    def __init__(self) -> None:
        self.pairs_by_worker: Counter[str] = Counter()
        self.fallback_by_reason: Counter[str] = Counter()
        self.n_hot = 0  # computed by the backbone because their experts are hot

    def add(self, served: Served) -> None:
        """Count one group of pairs."""
        if served.is_hot:
            self.n_hot += served.n_pairs
        elif served.worker_id is None:
            self.fallback_by_reason[served.reason] += served.n_pairs
        else:
            self.pairs_by_worker[served.worker_id] += served.n_pairs

    @property
    def n_pairs(self) -> int:
        """All routed pairs."""
        return self.pairs_by_worker.total() + self.n_hot + self.n_fallback

    @property
    def n_fallback(self) -> int:
        """Pairs computed by the backbone's own replica, without hot ones."""
        return self.fallback_by_reason.total()

    def share(self, n_pairs: int) -> float:
        """Return the share of all pairs, 0 to 1; 0 when nothing was routed."""
        return n_pairs / self.n_pairs if self.n_pairs else 0.0


@dataclass(frozen=True, slots=True)
class LayerTrip:
    """The mean of a step's layer calls: `base_s` is the round trip, `work_s` the workers' computing until its end."""

    n_calls: int
    n_rows: int
    base_s: float
    work_s: float


class TripMeter:
    """What the layer calls of one dispatcher wait for, as far as their workers were measured."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, float, float]] = []  # rows, round trip and work of each

    def add(self, n_rows: int, batches: Iterable[DispatchBatch], measured: Mapping[str, Measured]) -> None:
        """Note a placed layer call of `n_rows`: its slowest batch counts, after all that is under way before it."""
        base_s, work_s = 0.0, 0.0
        for batch in batches:
            known = measured.get(batch.worker_id, UNMEASURED)
            of_pairs = known.expected_s(len(batch.pair_slots)) - known.base_s
            if known.n_answers and known.base_s + of_pairs > base_s + work_s:
                base_s, work_s = known.base_s, of_pairs
        self._calls.append((n_rows, base_s, work_s))

    def take(self) -> LayerTrip | None:
        """Return the mean of the calls since the last time; None without calls."""
        calls, self._calls = self._calls, []
        if not calls:
            return None
        n_rows, base_s, work_s = (sum(column) / len(calls) for column in zip(*calls, strict=True))
        return LayerTrip(len(calls), round(n_rows), base_s, work_s)
