"""Keeps a model's targets in Redis: traffic in, a moving average, targets out. One web process at a time does it.

Called through `market.coverage.upkeep`. Without traffic, or before the first turn, every expert has the fewest
replicas.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from market.coverage.codec import Counts, coverage_key, pack_counts, unpack_counts
from market.coverage.model_facts import ModelFacts
from market.coverage.store import KEEP_S, CoverageStore
from market.coverage.targets import TargetBounds, Traffic, first_targets, next_targets, smoothed
from market.coverage.traffic import total_traffic, traffic_key


def targets_in(packed: bytes, facts: ModelFacts, bounds: TargetBounds) -> Counts:
    """Targets from a view's string; the first ones where it is empty."""
    if len(packed) != 2 * facts.n_cell:
        return first_targets(facts.bytes_by_layer > 0, facts.n_expert, bounds)
    return unpack_counts(packed, facts.n_layer, facts.n_expert)


def refresh_targets(store: CoverageStore, bounds: TargetBounds, elapsed_ms: int) -> bool:
    """One step of the average and of the targets, `elapsed_ms` after the last. False when no target has moved."""
    facts, client = store.facts, store.client
    smoothed_key = coverage_key(facts.fingerprint, "smoothed")
    fields = cast("list[bytes]", client.hvals(traffic_key(facts.fingerprint)))
    measured = total_traffic(fields, facts.n_layer, facts.n_expert, store.clock() / 1000)
    before = _traffic(cast(Any, client.get(smoothed_key)), facts)
    average = smoothed(before, measured, elapsed_ms / 1000)
    client.set(smoothed_key, average.astype("<f4").tobytes(), ex=KEEP_S)
    packed = cast(Any, client.get(coverage_key(facts.fingerprint, "targets"))) or b""
    return store.set_targets(pack_counts(next_targets(targets_in(packed, facts, bounds), average, bounds)))


def _traffic(packed: bytes | None, facts: ModelFacts) -> Traffic:
    if packed is None or len(packed) != 4 * facts.n_cell:
        return np.zeros((facts.n_layer, facts.n_expert), np.float32)
    return np.frombuffer(packed, "<f4").reshape(facts.n_layer, facts.n_expert).astype(np.float32)
