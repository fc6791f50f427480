"""The choice of a range for a volunteer: the scarcest one that fits into its budget. Pure: arrays in, one range out.

The rule, with m = replicas, live and pending, and t = the target:

    scarcity of an expert = max(0, t - m) / t, in thousandths
    score of a range      = sum of its experts' scarcities, plus for each expert without a replica more than the
                            scarcities of a whole layer: no expert gets its second replica while a range of uncovered
                            ones fits
    range                 = the highest score among all runs of wanted experts of one layer, cut to the number that the
                            budget holds at the layer's true bytes; among equals those that start at a multiple of
                            that number from their run's start; then the tie

An expert is wanted when it is below its target and the volunteer does not hold it. So no choice exceeds a target or
contains a layer without experts. Called by `market.coverage.leases`, which makes a choice binding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvasir.experts import ExpertRange

Counts = npt.NDArray[np.int64]  # [n_layer, n_expert]
Mask = npt.NDArray[np.bool_]  # [n_layer, n_expert]
Tie = Callable[[int], int]  # from the number of equal candidates, in order of layer and expert, to the index of one

THOUSANDTHS = 1000


@dataclass(frozen=True, slots=True)
class Budget:
    """The room that a volunteer has left; None: no bound of that kind."""

    n_bytes: int | None = None
    n_experts: int | None = None

    def experts_that_fit(self, bytes_by_layer: npt.NDArray[np.int64], n_expert: int) -> npt.NDArray[np.int64]:
        """Return how many experts of each layer fit, at most `n_expert`; 0 for layers without experts."""
        fit = np.full(len(bytes_by_layer), n_expert, np.int64)
        if self.n_bytes is not None:
            fit = np.minimum(fit, max(0, self.n_bytes) // np.maximum(bytes_by_layer, 1))
        if self.n_experts is not None:
            fit = np.minimum(fit, max(0, self.n_experts))
        return np.where(bytes_by_layer > 0, fit, 0)


@dataclass(frozen=True, slots=True)
class Choice:
    """A wanted range. `scarcity` is its experts' mean, `replicas` their fewest, `target` their largest."""

    range: ExpertRange
    scarcity: float
    replicas: int
    target: int


def scarcity_of(replicas: int, target: int) -> float:
    """Return the published scarcity, 0 to 1 in thousandths; 0 without a target."""
    return round(max(0, target - replicas) / target, 3) if target > 0 else 0.0


def first_candidate(_n_candidates: int) -> int:
    """Break ties by the lowest layer and expert."""
    return 0


def choose(
    replicas: Counts,
    targets: Counts,
    bytes_by_layer: npt.NDArray[np.int64],
    budget: Budget,
    *,
    held: Mask | None = None,
    tie: Tie = first_candidate,
) -> Choice | None:
    """Return the scarcest range that fits, or None when no wanted expert fits.

    `replicas` has live and pending replicas [n_layer, n_expert]; `held` marks the experts that the volunteer holds or
    has leased, [n_layer, n_expert].
    """
    wanted = (replicas < targets) & (bytes_by_layer > 0)[:, None]
    if held is not None:
        wanted &= ~held
    n_layer, n_expert = wanted.shape
    fit = budget.experts_that_fit(bytes_by_layer, n_expert)
    wanted &= (fit > 0)[:, None]
    if not wanted.any():
        return None
    experts = np.arange(n_expert)
    run_start, run_stop = _runs(wanted)
    stop = np.minimum(experts + fit[:, None], run_stop)
    sums = np.zeros((n_layer, n_expert + 1), np.int64)
    np.cumsum(np.where(wanted, _cell_scores(replicas, targets), 0), axis=1, out=sums[:, 1:])
    score = np.where(wanted, np.take_along_axis(sums, np.where(wanted, stop, 0), axis=1) - sums[:, :-1], -1)
    best = score == score.max()
    in_step = best & ((experts - run_start) % np.maximum(fit, 1)[:, None] == 0)
    candidates = np.flatnonzero(in_step if in_step.any() else best)
    layer, start = divmod(int(candidates[tie(len(candidates)) % len(candidates)]), n_expert)
    return _choice(ExpertRange(layer, start, int(stop[layer, start])), replicas, targets)


def smallest_wanted_bytes(
    replicas: Counts, targets: Counts, bytes_by_layer: npt.NDArray[np.int64], held: Mask | None = None
) -> int | None:
    """Return the bytes of the smallest wanted expert, or None when no expert is wanted: why `choose` found nothing."""
    wanted = (replicas < targets) & (bytes_by_layer > 0)[:, None]
    if held is not None:
        wanted &= ~held
    layers = wanted.any(axis=1)
    return int(bytes_by_layer[layers].min()) if layers.any() else None


def _cell_scores(replicas: Counts, targets: Counts) -> Counts:
    lacking = np.maximum(targets - replicas, 0)
    scarcity = lacking * THOUSANDTHS // np.maximum(targets, 1)
    uncovered = THOUSANDTHS * (replicas.shape[1] + 1)
    score: Counts = scarcity + np.where((replicas == 0) & (targets > 0), uncovered, 0)
    return score


def _runs(wanted: Mask) -> tuple[Counts, Counts]:
    """Return, for each wanted cell, the start and stop of its run; undefined elsewhere."""
    n_expert = wanted.shape[1]
    experts = np.arange(n_expert)
    last_gap = np.maximum.accumulate(np.where(wanted, -1, experts), axis=1)
    gaps = np.where(wanted, n_expert, experts)
    next_gap = np.minimum.accumulate(gaps[:, ::-1], axis=1)[:, ::-1]
    return last_gap + 1, next_gap


def _choice(item: ExpertRange, replicas: Counts, targets: Counts) -> Choice:
    cells = (item.layer, slice(item.start, item.stop))
    here, wanted = replicas[cells], targets[cells]
    scarcity = float(np.mean((wanted - here) / wanted))
    return Choice(item, round(scarcity, 3), int(here.min()), int(wanted.max()))
