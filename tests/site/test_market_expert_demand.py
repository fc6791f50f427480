"""GET /api/expert-demand: runs of experts, exact at every call, the same bytes while nothing changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.coverage.demand import layer_json
from tests.site.market_site import FACTS, MarketSite, market_at
from tests.swarm.redis_fixture import running_redis


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def site(tmp_path: Path, redis_url: str) -> Iterator[MarketSite]:
    with market_at(tmp_path, redis_url) as market:
        yield market


def test_it_works(site: MarketSite) -> None:
    node = site.node()
    site.beat(node, [[1, 0, 4]])
    reply = site.get("/api/expert-demand?model=tiny-moe", node[1])
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json"
    empty = {"experts": [0, 8], "replicas": 0, "target": 2, "scarcity": 1.0}
    assert reply.json == {
        "target_replicas": 2,
        "recruiting": True,
        "models": [
            {
                "model": "tiny-moe",
                "fingerprint": FACTS.fingerprint,
                "n_layer": 4,
                "n_expert": 8,
                "target_replicas": 2,
                "recruiting": True,
                "layers": [
                    {
                        "layer": 1,
                        "segments": [
                            {"experts": [0, 4], "replicas": 1, "target": 2, "scarcity": 0.5},
                            {"experts": [4, 8], "replicas": 0, "target": 2, "scarcity": 1.0},
                        ],
                    },
                    {"layer": 2, "segments": [empty]},
                    {"layer": 3, "segments": [empty]},
                ],
            }
        ],
    }


def test_the_model_may_be_left_out_and_another_is_not_found(site: MarketSite) -> None:
    _, token = site.node()
    assert site.get("/api/expert-demand", token).body == site.get("/api/expert-demand?model=tiny-moe", token).body
    reply = site.get("/api/expert-demand?model=other", token)
    assert (reply.status, reply.error[0]) == (404, "unknown_model")


def test_it_is_exact_after_every_change_and_the_same_bytes_without(site: MarketSite) -> None:
    node, other = site.node(), site.node()
    first = site.get("/api/expert-demand", node[1])
    assert site.get("/api/expert-demand", node[1]).headers["ETag"] == first.headers["ETag"]
    site.beat(node, [[2, 0, 8]])
    second = site.get("/api/expert-demand", node[1])
    assert second.json["models"][0]["layers"][1]["segments"][0]["replicas"] == 1
    site.beat(node, [[2, 0, 8]])  # a heartbeat that states the same changes nothing
    third = site.get("/api/expert-demand", other[1], **{"If-None-Match": second.headers["ETag"]})
    assert (third.status, third.body) == (304, b"")
    site.now.ms += 45_000
    gone = site.get("/api/expert-demand", node[1], **{"If-None-Match": second.headers["ETag"]})
    assert gone.status == 200
    assert gone.json == first.json


def test_recruiting_ends_when_all_have_their_target(site: MarketSite) -> None:
    nodes = [site.node(), site.node()]
    for node in nodes:
        site.beat(node, [[layer, 0, 8] for layer in (1, 2, 3)])
    demand = site.get("/api/expert-demand", nodes[0][1]).json
    assert demand["recruiting"] is demand["models"][0]["recruiting"] is False
    assert {s["scarcity"] for layer in demand["models"][0]["layers"] for s in layer["segments"]} == {0.0}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_runs_spell_out_every_expert_and_are_as_long_as_they_can_be(cells: list[tuple[int, int]]) -> None:
    replicas, targets = (np.array(values) for values in zip(*cells, strict=True))
    segments = json.loads(layer_json(7, replicas, targets))["segments"]
    spelled = [(s["replicas"], s["target"]) for s in segments for _ in range(*s["experts"])]
    assert spelled == cells
    pairs = [(s["replicas"], s["target"]) for s in segments]
    assert all(a != b for a, b in pairwise(pairs))
    for s in segments:
        expected = round(max(0, s["target"] - s["replicas"]) / s["target"], 3) if s["target"] else 0.0
        assert s["scarcity"] == expected
