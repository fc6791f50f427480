"""POST /api/expert-coverage: what a heartbeat states counts exactly, what is malformed is refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from market.coverage.reading import snapshot_of
from market.models.work import NodeTrust
from tests.site.market_site import MARKET, MarketSite, market_at
from tests.swarm.redis_fixture import running_redis


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def site(tmp_path: Path, redis_url: str) -> Iterator[MarketSite]:
    with market_at(tmp_path, redis_url) as market:
        yield market


def replicas(site: MarketSite) -> Any:
    return snapshot_of(site.store, MARKET.targets).replicas


def test_it_works(site: MarketSite) -> None:
    node = site.node()
    reply = site.beat(node, [[1, 0, 4], [2, 4, 8]], url="relay:7")
    assert (reply.status, reply.json) == (200, {"ok": True, "lease_s": 45.0, "workers": 1})
    assert replicas(site)[1].tolist() == [1] * 4 + [0] * 4
    assert replicas(site)[2].tolist() == [0] * 4 + [1] * 4


def test_a_heartbeat_replaces_the_one_before(site: MarketSite) -> None:
    node, other = site.node(), site.node()
    site.beat(node, [[1, 0, 8]])
    assert site.beat(other, [[1, 2, 3], [1, 1, 4], [1, 2, 4]]).json["workers"] == 2  # what overlaps counts once
    site.beat(node, [[1, 3, 4]])
    assert replicas(site)[1].tolist() == [0, 1, 1, 2, 0, 0, 0, 0]
    site.beat(node, [])
    assert replicas(site).sum() == 3


def test_silence_past_the_lease_is_gone(site: MarketSite) -> None:
    node, other = site.node(), site.node()
    site.beat(node, [[1, 0, 8]])
    site.now.ms += 44_999
    assert replicas(site).sum() == 8
    site.beat(other, [[2, 0, 1]])
    site.now.ms += 1
    assert replicas(site).sum() == 1
    assert site.beat(node, [[1, 0, 8]]).json["workers"] == 2  # and it may come back


def test_leaving_is_at_once(site: MarketSite) -> None:
    node = site.node()
    site.beat(node, [[1, 0, 8]])
    assert site.beat(node, [], leaving=True).json == {"ok": True, "lease_s": 0, "workers": 0}
    assert replicas(site).sum() == 0


def test_what_it_says_of_itself_is_kept(site: MarketSite) -> None:
    node = site.node()
    said = {"url": "relay:7", "os": "linux", "device_kind": "cpu", "region": "Java", "rows_per_s": 688.5}
    site.beat(node, [[1, 0, 1]], **said, unheard_of={"x": 1})
    (worker,) = snapshot_of(site.store, MARKET.targets, with_workers=True).workers
    assert worker.worker_id == node[0]
    assert worker.facts == said
    assert site.beat(node, [[1, 0, 1]], region="x" * 41).status == 400


def test_since_when_a_worker_is_there(site: MarketSite) -> None:
    def since() -> int | None:
        return snapshot_of(site.store, MARKET.targets, with_workers=True).workers[0].since_ms

    node, came_ms = site.node(), site.now.ms
    site.beat(node, [[1, 0, 1]])
    site.now.ms += 30_000
    site.beat(node, [[1, 0, 2]])
    assert since() == came_ms  # heartbeats in time go on with what began
    site.now.ms += 46_000
    site.beat(node, [[1, 0, 2]])
    assert since() == site.now.ms  # silent for longer than its lease: it came again
    site.beat(node, [], leaving=True)
    site.now.ms += 1
    site.beat(node, [[1, 0, 2]])
    assert since() == site.now.ms


MALFORMED: list[tuple[object, str]] = [
    ([[4, 0, 1]], "segments[0]: layer 4 is not decoded; layers are 0 to 3"),
    ([[-1, 0, 1]], "segments[0]: layer -1 is not decoded; layers are 0 to 3"),
    ([[0, 0, 1]], "segments[0]: layer 0 has no experts"),
    (
        [[1, 0, 4], [1, 4, 9]],
        "segments[1]: layer 1 has experts 0 to 7; begin 4 and end 9 must be 0 <= begin < end <= 8",
    ),
    ([[1, 4, 4]], "segments[0]: layer 1 has experts 0 to 7; begin 4 and end 4 must be 0 <= begin < end <= 8"),
    ([[1, -1, 4]], "segments[0]: layer 1 has experts 0 to 7; begin -1 and end 4 must be 0 <= begin < end <= 8"),
    ([{"layer": 1, "begin": 0, "end": 8}], "it must be [layer, begin, end]"),
    ([[1, 0]], "segments[0] is [1, 0]; it must be [layer, begin, end]"),
    ([["1", 0, 8]], "segments[0] (layer '1'): layer is '1'; it must be a whole number"),
    ([[2, 0, 8.0]], "segments[0] (layer 2): end is 8.0; it must be a whole number"),
    ([[2, True, 8]], "segments[0] (layer 2): begin is True; it must be a whole number"),
    ([[2, None, 8]], "segments[0] (layer 2): begin is None; it must be a whole number"),
    ({"1": [0, 8]}, "it must be a list of [layer, begin, end]"),
    (None, "segments is None; it must be a list of [layer, begin, end]"),
    ([[1, 0, 1]] * 8193, "segments has 8193 items; 8192 are allowed"),
    ([[10**30, 0, 1]], f"layer {10**30} is not decoded"),
]


@pytest.mark.parametrize(("segments", "reason"), MALFORMED, ids=lambda value: str(value)[:40])
def test_malformed_segments_are_refused_with_layer_and_value(site: MarketSite, segments: object, reason: str) -> None:
    node = site.node()
    site.beat(node, [[3, 0, 2]])
    reply = site.beat(node, segments)
    code, message = reply.error
    assert (reply.status, code) == (400, "malformed_segments")
    assert reason in message
    assert replicas(site).sum() == 2  # nothing of it was taken


def test_the_model_and_its_shape_must_be_this_sites(site: MarketSite) -> None:
    node = site.node()
    assert site.beat(node, [], model="other").error == ("unknown_model", "this site serves tiny-moe, not 'other'")
    assert site.beat(node, [], model="f" * 64).status == 200
    assert site.beat(node, [], model="general.name of the file").status == 200
    code, message = site.beat(node, [], n_layer=5).error
    assert code == "wrong_shape"
    assert "n_layer 5 and n_expert 8 are not tiny-moe's: it has 4 decoding layers of 8 experts" in message


def test_a_node_speaks_for_itself_alone(site: MarketSite) -> None:
    node, other = site.node(), site.node()
    reply = site.beat((other[0], node[1]), [[1, 0, 8]])
    assert (reply.status, reply.error[0]) == (403, "wrong_worker")
    assert replicas(site).sum() == 0


def test_a_node_in_quarantine_covers_nothing_and_is_promised_nothing(site: MarketSite) -> None:
    node = site.node()
    site.beat(node, [[1, 0, 8]])
    NodeTrust.objects.create(node_id=node[0], quarantined=True, evidence_id="proof-7")
    assert site.beat(node, [[1, 0, 8]]).status == 200  # it is remembered for some seconds
    site.service.memory.forget_node(node[0])
    reply = site.beat(node, [[1, 0, 8]])
    assert (reply.status, reply.error[0]) == (403, "quarantined")
    assert "proof-7" in reply.error[1]
    assert replicas(site).sum() == 0
    assert site.post("/api/expert-volunteer", {"max_experts": 1}, node[1]).error[0] == "quarantined"
    assert site.get("/api/expert-demand", node[1]).status == 200
    NodeTrust.objects.update(quarantined=False)
    site.service.memory.forget_node(node[0])
    assert site.beat(node, [[1, 0, 8]]).status == 200


@pytest.mark.parametrize(
    "fields",
    [{"worker_id": ""}, {"worker_id": "x" * 65}, {"n_layer": "4"}, {"n_layer": None}, {"url": "u" * 201},
     {"rows_per_s": -1}, {"leases": ["zz"]}, {"leases": "0" * 16}, {"leaving": "perhaps"}],
    ids=str,
)  # fmt: skip
def test_other_malformed_fields_are_named(site: MarketSite, fields: dict[str, object]) -> None:
    reply = site.beat(site.node(), [], **fields)
    code, message = reply.error
    assert (reply.status, code) == (400, "malformed")
    assert message.startswith(next(iter(fields)))


def test_a_missing_field_is_named(site: MarketSite) -> None:
    node = site.node()
    reply = site.post("/api/expert-coverage", {"worker_id": node[0]}, node[1])
    assert reply.error[0] == "malformed"
    assert reply.error[1].startswith("model: ")


def test_redis_that_is_gone_is_said_and_comes_back(tmp_path: Path) -> None:
    with running_redis(tmp_path) as server, market_at(tmp_path, server.url) as site:
        node = site.node()
        assert site.beat(node, [[1, 0, 8]]).status == 200
        server.kill()
        reply = site.beat(node, [[1, 0, 8]])
        assert (reply.status, reply.error[0], reply.headers["Retry-After"]) == (503, "redis_lost", "5")
        server.start()
        assert site.beat(node, [[1, 0, 8]]).status == 200
        assert replicas(site).sum() == 8
