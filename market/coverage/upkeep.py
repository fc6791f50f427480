"""Periodic work on a model's coverage: targets follow the traffic, and counts are rebuilt.

No process of its own does it: each request of the market checks whether work is due, and Redis gives each turn to one
process. Expired leases are not part of it: `market.coverage.store` removes those at every look. Without traffic, or
before the first turn, every expert has the fewest replicas as its target.
"""

from __future__ import annotations

import logging
from typing import Any, cast

import numpy as np

from market.coverage.codec import coverage_key, pack_counts, unpack_targets
from market.coverage.model_facts import ModelFacts
from market.coverage.store import KEEP_S, CoverageStore
from market.coverage.targets import next_targets, smoothed
from market.coverage.traffic import Traffic, total_traffic, traffic_key
from market.settings import TargetBounds

LOOK_EVERY_MS = 1000
TARGETS_EVERY_MS = 5000
REBUILD_EVERY_MS = 60_000

logger = logging.getLogger(__name__)


class Upkeep:
    """One process's part in the upkeep of one model."""

    def __init__(self, store: CoverageStore, bounds: TargetBounds) -> None:
        self._store = store
        self._bounds = bounds
        self._next_ms = 0

    def tend(self) -> None:
        """Do the work that is due. Returns at once when called again within a second."""
        now_ms = self._store.clock()
        if now_ms < self._next_ms <= now_ms + LOOK_EVERY_MS:
            return
        self._next_ms = now_ms + LOOK_EVERY_MS
        elapsed_ms = self._store.turn("targets", TARGETS_EVERY_MS)
        if elapsed_ms is not None:
            refresh_targets(self._store, self._bounds, elapsed_ms)
        if self._store.turn("rebuild", REBUILD_EVERY_MS) is not None and (n_wrong := self._store.rebuild()):
            logger.error("%d of the two count strings disagreed with the workers' ranges; rebuilt", n_wrong)


def refresh_targets(store: CoverageStore, bounds: TargetBounds, elapsed_ms: int) -> bool:
    """Step the moving average of the traffic and the targets, `elapsed_ms` after the last step.

    Returns False when no target has changed.
    """
    facts, client = store.facts, store.client
    smoothed_key = coverage_key(facts.fingerprint, "smoothed")
    fields = cast("list[bytes]", client.hvals(traffic_key(facts.fingerprint)))
    measured = total_traffic(fields, facts.n_layer, facts.n_expert, store.clock() / 1000)
    before = _unpack_smoothed(cast(Any, client.get(smoothed_key)), facts)
    average = smoothed(before, measured, elapsed_ms / 1000)
    client.set(smoothed_key, average.astype("<f4").tobytes(), ex=KEEP_S)
    packed = cast(Any, client.get(coverage_key(facts.fingerprint, "targets"))) or b""
    return store.set_targets(pack_counts(next_targets(unpack_targets(packed, facts, bounds), average, bounds)))


def _unpack_smoothed(packed: bytes | None, facts: ModelFacts) -> Traffic:
    if packed is None or len(packed) != 4 * facts.n_cell:
        return np.zeros((facts.n_layer, facts.n_expert), np.float32)
    return np.frombuffer(packed, "<f4").reshape(facts.n_layer, facts.n_expert).astype(np.float32)
