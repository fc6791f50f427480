"""How many replicas each expert should have: more for those that the router calls more. Pure.

With r = the smoothed traffic of an expert and m = the mean over its layer, both in rows/s:

    smoothed r <- r + (measured - r) * (1 - 2^(-elapsed / HALF_LIFE))
    load        = (r + QUIET) / (m + QUIET)             1 for an expert that is called as often as its layer's mean
    ideal       = fewest * load                         so that each replica of a layer gets about the same rows
    target      = the ideal rounded, within fewest..most, but it moves only when the ideal is beyond the rounding by
                  MARGIN: up when ideal > target + 1/2 + MARGIN, down when ideal < target - 1/2 - MARGIN, each
                  only as far as needed

QUIET keeps a site with a request now and then from chasing noise. An ideal that swings by less than 2 * MARGIN cannot
move a target to and fro, so nothing flaps. Called by `market.coverage.target_store`, which keeps the state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvasir.errors import ConfigError

HALF_LIFE_S = 120.0
QUIET_ROWS_S = 1.0
MARGIN = 0.25

Traffic = npt.NDArray[np.float32]  # rows/s [n_layer, n_expert]
Targets = npt.NDArray[np.int64]  # replicas [n_layer, n_expert]; 0 in layers without experts


@dataclass(frozen=True, slots=True)
class TargetBounds:
    """Every expert gets `fewest` replicas, a busy one up to `most`."""

    fewest: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most <= 1000:
            raise ConfigError(
                f"replica targets from {self.fewest} to {self.most}: 1 <= fewest <= most <= 1000 is needed"
            )


def first_targets(has_experts: npt.NDArray[np.bool_], n_expert: int, bounds: TargetBounds) -> Targets:
    """Targets before any traffic. `has_experts` [n_layer]."""
    return np.repeat(np.where(has_experts, bounds.fewest, 0)[:, None], n_expert, axis=1).astype(np.int64)


def smoothed(before: Traffic, measured: Traffic, elapsed_s: float) -> Traffic:
    """The moving average after `elapsed_s` more seconds at `measured`."""
    share = 1.0 - 2.0 ** (-max(0.0, elapsed_s) / HALF_LIFE_S)
    return (before + (measured - before) * np.float32(share)).astype(np.float32)


def ideal_replicas(traffic: Traffic, bounds: TargetBounds) -> npt.NDArray[np.float64]:
    """The formula's real number for each expert, before the bounds."""
    rows = traffic.astype(np.float64) + QUIET_ROWS_S
    load: npt.NDArray[np.float64] = rows / rows.mean(axis=1, keepdims=True)
    return bounds.fewest * load


def next_targets(before: Targets, traffic: Traffic, bounds: TargetBounds) -> Targets:
    """Targets for this smoothed traffic. Where `before` is 0 the layer has no experts, and it stays so."""
    ideal = ideal_replicas(traffic, bounds)
    reach = 0.5 + MARGIN
    lowest = np.ceil(ideal - reach).astype(np.int64)
    highest = np.floor(ideal + reach).astype(np.int64)
    moved = np.clip(np.clip(before, lowest, highest), bounds.fewest, bounds.most)
    return np.where(before == 0, 0, moved)
