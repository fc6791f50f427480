"""Two plain markets to set ours against: a dictionary of workers in one process, and SQLite.

The dictionary does what a market without promises does: a volunteer sees living replicas only, so those who ask at the
same moment see the same gap. SQLite has one row a range and takes a write lock for each volunteer.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np

from kvasir.experts import ExpertRange
from market.coverage.demand import layer_json
from market.coverage.model_facts import ModelFacts
from market.coverage.scarcity import Budget, Counts, choose


class DictMarket:
    """Living workers and their ranges."""

    def __init__(self, facts: ModelFacts, target: int) -> None:
        self.facts = facts
        self.targets = np.full((facts.n_layer, facts.n_expert), target)
        self.held: dict[str, ExpertRange] = {}

    def counts(self) -> Counts:
        """Count the replicas again."""
        counts = np.zeros((self.facts.n_layer, self.facts.n_expert), np.int64)
        for item in self.held.values():
            counts[item.layer, item.start : item.stop] += 1
        return counts

    def demand(self) -> bytes:
        """Write the answer again."""
        return _written(self.facts, self.counts(), self.targets)

    def volunteer(self, n_experts: int) -> ExpertRange | None:
        """The scarcest range; nothing is promised."""
        offer = choose(self.counts(), self.targets, self.facts.bytes_by_layer, Budget(n_experts=n_experts))
        return None if offer is None else offer.range


class SqliteMarket:
    """One row a worker."""

    def __init__(self, path: Path, facts: ModelFacts, target: int) -> None:
        self.facts = facts
        self.targets = np.full((facts.n_layer, facts.n_expert), target)
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
            "CREATE TABLE held (worker TEXT PRIMARY KEY, layer INT, start INT, stop INT, expires REAL);"
        )

    def beat(self, worker: str, item: ExpertRange) -> None:
        """A heartbeat."""
        row = (worker, item.layer, item.start, item.stop, 9e9)
        self._database.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?)", row)

    def counts(self) -> Counts:
        """Count the replicas again."""
        rows = np.array(self._database.execute("SELECT layer, start, stop FROM held WHERE expires > 0").fetchall())
        steps = np.zeros((self.facts.n_layer, self.facts.n_expert + 1), np.int64)
        if len(rows):
            np.add.at(steps, (rows[:, 0], rows[:, 1]), 1)
            np.add.at(steps, (rows[:, 0], rows[:, 2]), -1)
        counts: Counts = steps.cumsum(axis=1)[:, :-1]
        return counts

    def demand(self) -> bytes:
        """Write the answer again."""
        return _written(self.facts, self.counts(), self.targets)

    def volunteer(self, worker: str, n_experts: int) -> None:
        """Choose and hold under the write lock."""
        self._database.execute("BEGIN IMMEDIATE")
        offer = choose(self.counts(), self.targets, self.facts.bytes_by_layer, Budget(n_experts=n_experts))
        if offer is not None:
            self.beat(worker, offer.range)
        self._database.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _written(facts: ModelFacts, counts: Counts, targets: Counts) -> bytes:
    layers = ",".join(layer_json(layer, counts[layer], targets[layer]) for layer in facts.moe_layers)
    return f"{json.dumps({'model': facts.name})[:-1]}, layers: [{layers}]}}".encode()
