"""The demand for a model's experts as a worker sees it: replicas and targets of runs of experts.

`market_client` reads it from GET /api/expert-demand. `plan` checks whether a range has more replicas than its target
and whether other experts have fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvasir.experts import ExpertRange


@dataclass(frozen=True, slots=True)
class DemandRun:
    """Experts of one layer with the same replicas and the same target."""

    range: ExpertRange
    replicas: int
    target: int


@dataclass(frozen=True, slots=True)
class Demand:
    """All runs of one model. Replicas are those of live workers, including this one."""

    fingerprint: str
    runs: tuple[DemandRun, ...]

    def surplus(self, item: ExpertRange) -> int:
        """Return the spare replicas of the range's scarcest expert; negative if one has too few or is unknown."""
        covered, least = 0, 0
        for run in self.runs:
            n_shared = _n_shared(run.range, item)
            if n_shared:
                least = run.replicas - run.target if not covered else min(least, run.replicas - run.target)
                covered += n_shared
        return least if covered == item.n_experts else -1

    def has_gap_beside(self, held: Iterable[ExpertRange]) -> bool:
        """Return whether experts outside `held` have fewer replicas than their target."""
        ranges = tuple(held)
        return any(
            sum(_n_shared(run.range, item) for item in ranges) < run.range.n_experts
            for run in self.runs
            if run.replicas < run.target
        )


def read_runs(layers: Iterable[dict[str, object]]) -> Iterator[DemandRun]:
    """Yield the runs of an answer's `layers`. Raises LookupError, TypeError or ValueError if they are malformed."""
    for layer in layers:
        segments = layer["segments"]
        if not isinstance(segments, list):
            raise TypeError(f"segments is {type(segments).__name__}, not a list")
        for segment in segments:
            start, stop = segment["experts"]
            item = ExpertRange(int(str(layer["layer"])), int(start), int(stop))
            yield DemandRun(item, int(segment["replicas"]), int(segment["target"]))


def _n_shared(one: ExpertRange, other: ExpertRange) -> int:
    """Count the experts in both ranges."""
    if one.layer != other.layer:
        return 0
    return max(0, min(one.stop, other.stop) - max(one.start, other.start))
