"""What a run did, counted: pairs by who computed them. Fed by the dispatcher's `on_served`, read by summaries."""

from __future__ import annotations

from collections import Counter

from backbone.engine.dispatch.dispatcher import Served


class Tally:
    """Row-expert pairs by node, and by reason where the backbone's own replica stepped in."""

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
        return self.pairs_by_worker.total() + self.n_hot + self.fallback_by_reason.total()

    @property
    def n_fallback(self) -> int:
        """Pairs computed by the backbone's own replica, hot ones not counted."""
        return self.fallback_by_reason.total()

    def share(self, n_pairs: int) -> float:
        """A part of all pairs, 0 to 1; 0 when nothing was routed."""
        return n_pairs / self.n_pairs if self.n_pairs else 0.0
