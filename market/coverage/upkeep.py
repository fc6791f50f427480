"""What must be done now and then: targets follow the traffic, counts are counted anew. No process of its own does it.

Whoever serves a request of the market looks whether it is time; Redis gives each turn to one process. Ended leases are
not its business: `market.coverage.store` takes those away at every look.
"""

from __future__ import annotations

import logging

from market.coverage.store import CoverageStore
from market.coverage.target_store import refresh_targets
from market.coverage.targets import TargetBounds

LOOK_EVERY_MS = 1000
TARGETS_EVERY_MS = 5000
REBUILD_EVERY_MS = 60_000

logger = logging.getLogger(__name__)


class Upkeep:
    """The upkeep of one model as one process does it."""

    def __init__(self, store: CoverageStore, bounds: TargetBounds) -> None:
        self._store = store
        self._bounds = bounds
        self._next_ms = 0

    def tend(self) -> None:
        """Do what is due. Costs nothing when called again within a second."""
        now_ms = self._store.clock()
        if now_ms < self._next_ms <= now_ms + LOOK_EVERY_MS:
            return
        self._next_ms = now_ms + LOOK_EVERY_MS
        elapsed_ms = self._store.turn("targets", TARGETS_EVERY_MS)
        if elapsed_ms is not None:
            refresh_targets(self._store, self._bounds, elapsed_ms)
        if self._store.turn("rebuild", REBUILD_EVERY_MS) is not None:
            n_mended = self._store.rebuild()
            if n_mended:
                logger.error("%d of the coverage's counts were not what its workers make; mended", n_mended)
