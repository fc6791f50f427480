"""The dashboard's snapshot: its numbers are those of the market and the backbones, else it has the reason."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from frontend.live import feed as live_feed
from frontend.live.feed import LiveFeed
from frontend.live.snapshot import MOST_WORKERS, percentile, rounded
from market.coverage.pulse import Pulse, WorkerPulse, publish_pulse
from market.coverage.throughput import SERIES, append_work
from market.coverage.traffic import publish_traffic
from market.errors import MarketError
from market.nodes import trust_store
from market.nodes.trust_store import SavedTrust
from market.service import MarketService, redis_client, using
from tests.site.market_site import FACTS, MARKET, MarketSite, market_at
from tests.swarm.redis_fixture import RedisServer, running_redis


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def site(redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MarketSite]:
    monkeypatch.setattr(live_feed, "_feeds", [LiveFeed(10)])
    with market_at(tmp_path, redis.url) as site:
        yield site


def snapshot(site: MarketSite) -> Any:
    """A new one, even if one was built a moment ago."""
    live_feed._feeds[:] = [LiveFeed(10)]
    return site.get("/live/snapshot").json


def tell(site: MarketSite, backbone_id: str, **fields: Any) -> None:
    publish_pulse(site.service.client, FACTS.fingerprint, backbone_id, Pulse(at_s=site.now() / 1000, **fields))


def test_coverage_is_what_the_demand_says(site: MarketSite) -> None:
    ant, bee = site.node(), site.node()
    site.beat(ant, [[1, 0, 5], [2, 2, 8]])
    workers = site.beat(bee, [[1, 3, 6]], device_kind="cpu", backend="native", os="Linux", region="Java").json[
        "workers"
    ]
    lease = site.post("/api/expert-volunteer", {"max_experts": 4}, site.node()[1]).json
    seen = snapshot(site)
    coverage, shape = seen["coverage"], (FACTS.n_layer, FACTS.n_expert)
    replicas, targets = (np.reshape(coverage[name], shape) for name in ("replicas", "targets"))
    (model,) = site.get("/api/expert-demand", ant[1]).json["models"]
    for layer in model["layers"]:
        for segment in layer["segments"]:
            start, stop = segment["experts"]
            assert set(replicas[layer["layer"], start:stop]) == {segment["replicas"]}
            assert set(targets[layer["layer"], start:stop]) == {segment["target"]}
    assert [layer["layer"] for layer in model["layers"]] == seen["model"]["moe_layers"] == [1, 2, 3]
    assert targets[0].sum() == 0  # a dense layer
    assert seen["n_workers"] == workers == 2
    start, stop = lease["experts"]
    assert np.reshape(coverage["pending"], shape)[lease["layer"], start:stop].all()
    assert sum(coverage["pending"]) == stop - start
    assert (coverage["n_wanted"], coverage["n_covered"], coverage["n_at_target"]) == (24, 12, 2)
    assert coverage["n_lacking"] == 48 - 14
    assert seen["model"]["fingerprint"] == FACTS.fingerprint and seen["at"] == site.now()


def test_workers_are_what_they_and_the_backbones_say(site: MarketSite) -> None:
    ant, bee, cat = site.node(), site.node(), site.node()
    site.beat(ant, [[1, 0, 5], [2, 2, 4]], device_kind="cpu", backend="native", os="Linux", region="Java")
    came_ms = site.now.ms
    site.now.ms += 3000
    site.beat(bee, [[3, 0, 1]])
    trust_store.save(ant[0], SavedTrust(verified=5000))
    trust_store.save(bee[0], SavedTrust(failures=1, quarantined=True, evidence_id="e"))
    tell(site, "b1", workers={ant[0]: WorkerPulse(2.5, 10.0, True, True), cat[0]: WorkerPulse(None, 99.0, True)})
    tell(site, "b2", workers={ant[0]: WorkerPulse(1.5, 5.0, True, True)})
    seen = snapshot(site)
    assert [worker["id"] for worker in seen["workers"]] == [cat[0], ant[0], bee[0]]  # the busiest first
    first, second, third = seen["workers"]
    assert second == {
        "id": ant[0],
        "kind": "cpu",
        "backend": "native",
        "os": "Linux",
        "region": "Java",
        "ranges": [[1, 0, 5], [2, 2, 4]],
        "n_experts": 7,
        "bytes": 5 * 1000 + 2 * 1500,
        "round_trip_ms": 1.5,
        "rows_per_s": 15.0,
        "usable": True,
        "trust": "proven",
        "verified": 5000,
        "failures": 0,
        "since_ms": came_ms,
    }
    assert (first["ranges"], first["since_ms"], first["trust"]) == ([], None, "unproven")  # known to a backbone alone
    assert (third["trust"], third["usable"], third["failures"]) == ("quarantined", False, 1)


def test_the_service_is_the_sum_of_its_backbones(site: MarketSite) -> None:
    waits = {"queue_s": (0.1, 0.2), "first_token_s": (0.5,), "request_s": ()}
    tell(site, "b1", running=2, waiting=1, slots=4, queued=7, tokens=10, row_experts={"workers": 5, "fallback": 1})
    tell(site, "b2", running=1, slots=4, queued=7, tokens=5, row_experts={"workers": 3}, latencies=waits)
    seen = snapshot(site)
    assert seen["service"] == {
        "n_backbones": 2,
        "running": 3,
        "waiting": 1,
        "slots": 8,
        "queued": 7,
        "tokens": 15,
        "row_experts": {"workers": 8, "hot": 0, "fallback": 1},
    }
    assert seen["latency"]["queue_s"] == {"n": 2, "p50": 0.1, "p95": 0.2}
    assert seen["latency"]["request_s"] == {"n": 0, "p50": None, "p95": None}
    site.now.ms += 6000  # they say nothing any more
    assert snapshot(site)["service"]["n_backbones"] == 0
    assert snapshot(site)["service"]["queued"] is None


def test_traffic_and_throughput_are_what_backbones_told(site: MarketSite) -> None:
    client, now_s = cast(Any, site.service.client), site.now() / 1000
    rates = np.zeros((FACTS.n_layer, FACTS.n_expert), np.float32)
    rates[2, 3], rates[1, 0] = 1234.56, 0.0123456
    for backbone_id in ("b1", "b2"):
        publish_traffic(client, FACTS.fingerprint, backbone_id, rates, now_s)
    append_work(client, FACTS.fingerprint, {"tokens": 10, "workers": 50, "fallback": 5}, now_s - 6)
    seen = snapshot(site)
    assert seen["traffic"][2 * FACTS.n_expert + 3] == 2470.0  # three digits
    assert seen["traffic"][FACTS.n_expert] == pytest.approx(0.0247)
    assert sum(value > 0 for value in seen["traffic"]) == 2
    throughput = seen["throughput"]
    sums = {name: sum(throughput[name]) * throughput["step_s"] for name in SERIES}
    assert sums == {"tokens": 10.0, "workers": 50.0, "hot": 0.0, "fallback": 5.0}


def test_the_list_of_workers_is_bounded_and_the_count_is_not(site: MarketSite) -> None:
    many = {f"n{number:04}": WorkerPulse(1.0, float(number)) for number in range(MOST_WORKERS + 3)}
    tell(site, "b1", workers=many)
    seen = snapshot(site)
    assert (len(seen["workers"]), seen["n_workers"]) == (MOST_WORKERS, MOST_WORKERS + 3)
    assert seen["workers"][0]["id"] == f"n{MOST_WORKERS + 2:04}"


def test_a_site_without_a_model_says_why(site: MarketSite, redis: RedisServer) -> None:
    def no_facts() -> Any:
        raise MarketError(503, "no_model", "the site's model cannot be read: no such file")

    with using(MarketService(redis_client(redis.url), MARKET, no_facts, site.now)):
        seen = snapshot(site)
    assert seen["problem"] == {"code": "no_model", "message": "the site's model cannot be read: no such file"}
    assert seen["model"] is None


def test_a_lost_store_is_an_error_with_a_code(site: MarketSite) -> None:
    with using(MarketService(redis_client("redis://127.0.0.1:1/0"), MARKET, lambda: FACTS, site.now)):
        live_feed._feeds[:] = [LiveFeed(10)]
        reply = site.get("/live/snapshot")
    assert (reply.status, reply.error[0]) == (503, "redis_lost")


def test_one_snapshot_serves_all_who_ask_within_a_second(site: MarketSite) -> None:
    first = site.get("/live/snapshot", **{"Accept-Encoding": "gzip"})
    site.beat(site.node(), [[1, 0, 5]])
    assert site.get("/live/snapshot").json == json.loads(gzip.decompress(first.body))
    assert (first.headers["Content-Encoding"], first.headers["Cache-Control"]) == ("gzip", "no-store")
    assert snapshot(site)["n_workers"] == 1


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_it_is_only_read(site: MarketSite, method: str) -> None:
    from django.test import Client

    reply = getattr(Client(), method)("/live/snapshot")
    assert reply.status_code == 405


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([], 0.5) is None
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.95)] == [1.0, 2.0, 3.0]
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0


def test_rates_have_three_digits() -> None:
    cells = np.array([[0.0, 1.0, 0.012345], [98765.0, 9.995, 1e-9]], np.float32)
    assert rounded(cells) == pytest.approx([0.0, 1.0, 0.0123, 98800.0, 9.99, 1e-9], rel=1e-3)


def test_nothing_of_names_addresses_or_secrets_is_told(site: MarketSite) -> None:
    node = site.node("ann's attic")
    site.beat(node, [[1, 0, 5]], url="relay:7", owner="ann@example.org", accelerator="secret gpu")
    text = json.dumps(snapshot(site))
    assert node[0] in text
    for word in ("attic", "relay:", "ann@", "secret gpu", node[1]):
        assert word not in text
