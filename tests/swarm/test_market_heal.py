"""Half of a swarm vanishes: coverage is back within two leases and the download, and nothing was leased twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.market.heal import heal
from market.coverage.model_facts import ModelFacts
from market.service import redis_client
from market.settings import MarketSettings, TargetBounds
from tests.swarm.redis_fixture import running_redis

FACTS = ModelFacts("wide", "e" * 64, 5, 64, 64, 32, (0, 1_000_000, 1_500_000, 1_000_000, 1_000_000))


@pytest.mark.parametrize("n_experts", [16, 32])
def test_it_works(tmp_path: Path, n_experts: int) -> None:
    market = MarketSettings(targets=TargetBounds(3, 3))
    with running_redis(tmp_path) as server, redis_client(server.url) as client:
        healed = heal(client, FACTS, market, n_experts)
    assert healed.beyond_target == 0
    assert healed.imbalance == 1.0
    assert market.lease_s - 15 <= healed.heal_s <= 2 * market.lease_s + healed.download_s
