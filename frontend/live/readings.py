"""The swarm as the dashboard shows it, read from Redis at one moment, on a thread of the market.

It only reads. It blocks for a few round trips and raises Redis's errors, and MarketError when the site has no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from market.coverage.model_facts import ModelFacts
from market.coverage.pulse import Pulse, WorkerPulse, fresh_pulses, joined_workers, pulse_key
from market.coverage.reading import CoverageSnapshot, snapshot_of
from market.coverage.throughput import Throughput, read_throughput
from market.coverage.traffic import Traffic, total_traffic, traffic_key
from market.service import MarketService


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """A model's swarm at one moment."""

    at_ms: int
    facts: ModelFacts
    coverage: CoverageSnapshot  # with its workers
    traffic: Traffic  # rows/s [n_layer, n_expert]
    pulses: Sequence[Pulse]
    by_node: dict[str, WorkerPulse]
    throughput: Throughput

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The nodes of heartbeats, and those that backbones reach without one, in ascending order."""
        return tuple(sorted({worker.worker_id for worker in self.coverage.workers} | self.by_node.keys()))


def read_swarm(market: MarketService) -> Readings:
    """Read the swarm now."""
    store = market.participation().store
    facts, client, now_ms = store.facts, market.client, market.clock()
    coverage = snapshot_of(store, market.settings.targets, with_workers=True)
    fields = cast("list[bytes]", client.hvals(traffic_key(facts.fingerprint)))
    pulses = fresh_pulses(cast(Any, client.hvals(pulse_key(facts.fingerprint))), now_ms / 1000)
    return Readings(
        at_ms=now_ms,
        facts=facts,
        coverage=coverage,
        traffic=total_traffic(fields, facts.n_layer, facts.n_expert, now_ms / 1000),
        pulses=pulses,
        by_node=joined_workers(pulses),
        throughput=read_throughput(client, facts.fingerprint, now_ms / 1000),
    )
