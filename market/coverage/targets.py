"""The target number of replicas of each expert: more for experts that the router selects more often. Pure.

With r = the smoothed traffic of an expert and m = the mean over its layer, both in rows/s:

    smoothed r <- r + (measured - r) * (1 - 2^(-elapsed / HALF_LIFE))
    load        = (r + QUIET) / (m + QUIET)             1 for an expert with its layer's mean traffic
    ideal       = fewest * load                         so that each replica of a layer gets about the same rows
    target      = the ideal rounded, within fewest..most, with hysteresis: it rises when ideal > target + 1/2 + MARGIN
                  and falls when ideal < target - 1/2 - MARGIN, each only as far as needed

QUIET keeps the targets of a site with little traffic from following noise. An ideal that swings by less than
2 * MARGIN cannot move a target back and forth. Called by `market.coverage.upkeep`, which keeps the state in Redis.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from market.coverage.traffic import Traffic
from market.settings import TargetBounds

HALF_LIFE_S = 120.0
QUIET_ROWS_S = 1.0
MARGIN = 0.25

Targets = npt.NDArray[np.int64]  # replicas [n_layer, n_expert]; 0 in layers without experts


def first_targets(has_experts: npt.NDArray[np.bool_], n_expert: int, bounds: TargetBounds) -> Targets:
    """Return the targets before any traffic. `has_experts` is [n_layer]."""
    return np.repeat(np.where(has_experts, bounds.fewest, 0)[:, None], n_expert, axis=1).astype(np.int64)


def smoothed(before: Traffic, measured: Traffic, elapsed_s: float) -> Traffic:
    """Return the moving average after `elapsed_s` more seconds at `measured`."""
    share = 1.0 - 2.0 ** (-max(0.0, elapsed_s) / HALF_LIFE_S)
    return (before + (measured - before) * np.float32(share)).astype(np.float32)


def ideal_replicas(traffic: Traffic, bounds: TargetBounds) -> npt.NDArray[np.float64]:
    """Return the formula's ideal of each expert, before rounding and bounds."""
    rows = traffic.astype(np.float64) + QUIET_ROWS_S
    load: npt.NDArray[np.float64] = rows / rows.mean(axis=1, keepdims=True)
    return bounds.fewest * load


def next_targets(before: Targets, traffic: Traffic, bounds: TargetBounds) -> Targets:
    """Return the targets for this smoothed traffic. Layers without experts, where `before` is 0, keep 0."""
    ideal = ideal_replicas(traffic, bounds)
    reach = 0.5 + MARGIN
    lowest = np.ceil(ideal - reach).astype(np.int64)
    highest = np.floor(ideal + reach).astype(np.int64)
    moved = np.clip(np.clip(before, lowest, highest), bounds.fewest, bounds.most)
    return np.where(before == 0, 0, moved)
