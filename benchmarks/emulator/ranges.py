"""Who holds what in an emulated swarm: the market's own rules, asked layer by layer.

Targets follow the measured traffic (`market.coverage.targets`), and each worker takes the scarcest range that its share
of a layer holds (`market.coverage.scarcity`). Every worker holds a part of every layer, as none has room for all of a
large model.
"""

from __future__ import annotations

import numpy as np

from kvasir.experts import ExpertRange
from market.coverage.scarcity import Budget, Counts, choose
from market.coverage.targets import first_targets, next_targets
from market.settings import TargetBounds

Holdings = dict[str, tuple[ExpertRange, ...]]  # by worker

ROWS_S = 1000.0  # mean traffic of an expert: far above what the market takes for quiet


def assign_ranges(traffic: Counts, n_workers: int, fewest: int) -> Holdings:
    """Ranges by worker for router calls [n_layer, n_expert], at least `fewest` replicas each but no two in one worker.

    Workers have room for the same number of experts of each layer.
    """
    n_layer, n_expert = traffic.shape
    bounds = TargetBounds(min(fewest, n_workers), n_workers)
    rates = (traffic / traffic.mean(axis=1, keepdims=True) * ROWS_S).astype(np.float32)
    targets = next_targets(first_targets(np.ones(n_layer, np.bool_), n_expert, bounds), rates, bounds)
    held: dict[str, list[ExpertRange]] = {f"worker-{number:02}": [] for number in range(n_workers)}
    for layer in range(n_layer):
        _assign_layer(layer, targets, held)
    return {name: tuple(sorted(ranges)) for name, ranges in held.items()}


def _assign_layer(layer: int, targets: Counts, held: dict[str, list[ExpertRange]]) -> None:
    """Give out one layer. Who has the fewest experts so far comes first, as those who come last may get less."""
    names = sorted(held, key=lambda name: (sum(part.n_experts for part in held[name]), name))
    room = -(-int(targets[layer].sum()) // len(names))
    only_here = (np.arange(len(targets)) == layer).astype(np.int64)
    replicas = np.zeros_like(targets)
    for name in names:
        mine = np.zeros(targets.shape, np.bool_)
        while (left := room - int(mine.sum())) > 0:
            offer = choose(replicas, targets, only_here, Budget(n_experts=left), held=mine)
            if offer is None:
                break
            held[name].append(offer.range)
            cells = slice(offer.range.start, offer.range.stop)
            replicas[layer, cells] += 1
            mine[layer, cells] = True
