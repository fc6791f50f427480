"""Measure how long the swarm lacks replicas after half of its workers vanish: real market, real Redis, virtual clock.

What it models: workers beat each 15 s; half of them stop at the same moment; as many others wait, who ask again when
they were told to, are promised a range, fetch it at DOWNLOAD_BYTES_S and then beat. What it does not: losses on the
way, self-tests, downloads that fail, workers that differ.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from redis import Redis

from kvasir.experts import ExpertRange
from market.coverage.model_facts import ModelFacts
from market.coverage.participation import Participation
from market.coverage.reading import snapshot_of
from market.schemas import CoverageBody, VolunteerBody
from market.settings import MarketSettings

BEAT_EVERY_MS = 15_000
DOWNLOAD_BYTES_S = 12_500_000  # 100 Mbit/s
GIVE_UP_MS = 1_200_000


@dataclass(frozen=True, slots=True)
class Healed:
    """`heal_s` from the moment they vanish until no replica is lacking; the counts before and after."""

    heal_s: float
    download_s: float  # of one worker's range: a part of heal_s
    imbalance: float  # most replicas of an expert over fewest, when all are there
    beyond_target: int  # experts that ever had more replicas and promises than their target


class _Clock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


class _Swarm:
    """Workers as events in time: (ms, number, what it does, its range)."""

    def __init__(self, client: Redis, facts: ModelFacts, market: MarketSettings, n_experts: int) -> None:
        self.clock = _Clock()
        self.market = Participation(client, facts, market, self.clock)
        self.facts = facts
        self.n_experts = n_experts
        self.targets = market.targets
        self.events: list[tuple[int, int, str, ExpertRange | None]] = []
        self.gone: set[int] = set()
        self.download_ms = 0

    def later(self, delay_ms: float, number: int, what: str, item: ExpertRange | None = None) -> None:
        heapq.heappush(self.events, (self.clock.ms + round(delay_ms), number, what, item))

    def step(self) -> bool:
        """Let the next thing happen; True when a worker began to serve."""
        ms, number, what, item = heapq.heappop(self.events)
        self.clock.ms = max(ms, self.clock.ms)
        if number in self.gone:
            return False
        if what == "ask":
            self._ask(number)
            return False
        if item is not None:
            self.market.heartbeat(f"w{number}", self._beat(number, item))
            self.later(BEAT_EVERY_MS, number, "beat", item)
        return what == "serve"

    def _ask(self, number: int) -> None:
        answer = self.market.volunteer(f"w{number}", VolunteerBody(max_experts=self.n_experts))
        if not answer["assigned"]:
            self.later(answer["retry_after_s"] * 1000, number, "ask")
            return
        self.download_ms = round(answer["bytes"] / DOWNLOAD_BYTES_S * 1000)
        self.later(self.download_ms, number, "serve", ExpertRange(answer["layer"], *answer["experts"]))

    def _beat(self, number: int, item: ExpertRange) -> CoverageBody:
        return CoverageBody(
            worker_id=f"w{number}",
            model=self.facts.name,
            n_layer=self.facts.n_layer,
            n_expert=self.facts.n_expert,
            segments=[[item.layer, item.start, item.stop]],
        )


def heal(client: Redis, facts: ModelFacts, market: MarketSettings, n_experts: int, seed: int = 0) -> Healed:
    """Fill the market, take half of the workers away, and wait."""
    client.flushdb()
    swarm = _Swarm(client, facts, market, n_experts)
    n_workers = int(market.targets.fewest * len(facts.moe_layers) * facts.n_expert) // n_experts
    rng = np.random.default_rng(seed)
    for number in range(n_workers):
        swarm.later(float(rng.uniform(0, BEAT_EVERY_MS)), number, "ask")
    _run_until_covered(swarm)
    before = snapshot_of(swarm.market.store, market.targets)
    vanish_ms = swarm.clock.ms
    swarm.gone = set(rng.choice(n_workers, n_workers // 2, replace=False).tolist())
    for number in range(n_workers, n_workers + n_workers // 2):
        swarm.later(float(rng.uniform(0, BEAT_EVERY_MS)), number, "ask")
    _run_until_covered(swarm, after_ms=vanish_ms + round(market.lease_s * 1000))
    after = snapshot_of(swarm.market.store, market.targets)
    totals = [shot.replicas + shot.pending - shot.targets for shot in (before, after)]
    covered = after.replicas[list(facts.moe_layers)]
    return Healed(
        heal_s=(swarm.clock.ms - vanish_ms) / 1000,
        download_s=swarm.download_ms / 1000,
        imbalance=float(covered.max() / covered.min()),
        beyond_target=int(sum((total > 0).sum() for total in totals)),
    )


def _run_until_covered(swarm: _Swarm, after_ms: int = 0) -> None:
    until = swarm.clock.ms + GIVE_UP_MS
    while swarm.clock.ms < until:
        began = swarm.step()
        if began and swarm.clock.ms >= after_ms and snapshot_of(swarm.market.store, swarm.targets).n_lacking == 0:
            return
    raise RuntimeError("coverage did not come back in time")
