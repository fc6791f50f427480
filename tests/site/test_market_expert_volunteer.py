"""POST /api/expert-volunteer: the scarcest range that fits, leased once, with all that a worker needs next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from market.coverage.participation import rate_microcredits
from market.coverage.reading import snapshot_of
from market.ledger.quotes import quotes_of, record_quote
from market.ledger.rewards import Quote
from market.nodes.tokens import TokenScope, issue
from tests.site.market_site import FACTS, MARKET, MarketSite, Reply, market_at
from tests.swarm.redis_fixture import running_redis

CROWDED = "too many volunteers at this moment"


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def site(tmp_path: Path, redis_url: str) -> Iterator[MarketSite]:
    with market_at(tmp_path, redis_url) as market:
        yield market


def ask(site: MarketSite, node: tuple[str, str], **body: object) -> Reply:
    return site.post("/api/expert-volunteer", body, node[1])


def segment(answer: Any) -> list[int]:
    return [answer["layer"], *answer["experts"]]


def test_it_works(site: MarketSite) -> None:
    reply = ask(site, site.node(), budget_bytes=4500, model="tiny-moe")
    assert reply.status == 200
    answer = reply.json
    layer, (start, stop) = answer["layer"], answer["experts"]
    assert layer in {1, 3}  # four experts there, three in layer 2
    experts = f"{FACTS.fingerprint}?experts={layer}:{start}-{stop}"
    assert len(answer.pop("lease_id")) == 16
    assert answer == {
        "assigned": True,
        "model": "tiny-moe",
        "fingerprint": FACTS.fingerprint,
        "layer": layer,
        "experts": [start, start + 4],
        "scarcity": 1.0,
        "replicas": 0,
        "target": 2,
        "n_embd": 64,
        "n_ff": 32,
        "n_layer": 4,
        "n_expert": 8,
        "bytes": 4000,
        "slice_url": f"/api/slices/{experts}",
        "manifest_url": f"/api/manifests/{experts}",
        "relay_url": "ws://testserver/relay",
        "kernel": FACTS.kernels[layer],
        "rate_microcredits_per_row": 2000,
        "lease_s": 60.004,
    }


def test_the_operators_relay_is_named(site: MarketSite) -> None:
    with override_settings(RELAY_URL="ws://inside/relay", WORKER_RELAY_URL="wss://relay.example/relay"):
        assert ask(site, site.node(), max_experts=1).json["relay_url"] == "wss://relay.example/relay"


def test_the_backbones_address_of_the_relay_is_not_told_to_workers(site: MarketSite) -> None:
    with override_settings(RELAY_URL="ws://inside/relay"):
        assert ask(site, site.node(), max_experts=1).json["relay_url"] == "ws://testserver/relay"


def test_no_two_volunteers_get_the_same_gap(site: MarketSite) -> None:
    nodes = [site.node() for _ in range(13)]
    answers = [ask(site, node, max_experts=4).json for node in nodes]
    assert [answer["assigned"] for answer in answers] == [True] * 12 + [False]  # 3 layers of 8, twice, in fours
    pending = snapshot_of(site.store, MARKET.targets).pending
    assert (pending[1:] == 2).all() and pending[0].sum() == 0
    assert {answer["scarcity"] for answer in answers[:6]} == {1.0}
    assert {answer["scarcity"] for answer in answers[6:12]} == {0.5}
    assert {answer["rate_microcredits_per_row"] for answer in answers[6:12]} == {1500}


def test_200_volunteers_at_once_are_promised_nothing_beyond_its_target(site: MarketSite) -> None:
    waiting = [issue(TokenScope.WORKER, f"node {number}").text for number in range(200)]
    leased: Counter[tuple[int, int]] = Counter()
    reasons: set[str] = set()
    while waiting:  # a volunteer that met too many others retries, as its answer says
        replies = site.post_at_once("/api/expert-volunteer", {"max_experts": 1}, waiting)
        assert {reply.status for reply in replies} == {200}
        answers = [reply.json for reply in replies]
        leased.update((answer["layer"], answer["experts"][0]) for answer in answers if answer["assigned"])
        refused = [None if answer["assigned"] else answer["reason"] for answer in answers]
        waiting = [token for token, reason in zip(waiting, refused, strict=True) if reason == CROWDED]
        reasons |= {reason for reason in refused if reason not in {None, CROWDED}}
    assert leased == dict.fromkeys(((layer, expert) for layer in (1, 2, 3) for expert in range(8)), 2)
    assert reasons == {"expert coverage at target"}
    pending = snapshot_of(site.store, MARKET.targets).pending
    assert (pending[1:] == 2).all() and pending[0].sum() == 0


def test_a_worker_volunteers_until_its_budget_is_full(site: MarketSite) -> None:
    node = site.node()
    held: list[list[int]] = []
    while (answer := ask(site, node, budget_bytes=20_100).json)["assigned"]:
        held.append(segment(answer))
        site.beat(node, held)
    n_bytes = sum((stop - start) * FACTS.expert_bytes[layer] for layer, start, stop in held)
    assert 20_100 - 1500 < n_bytes <= 20_100
    assert answer["reason"] == "nothing that is wanted fits into the budget"
    cells = [(layer, expert) for layer, start, stop in held for expert in range(start, stop)]
    assert len(cells) == len(set(cells))


def test_promises_count_against_the_budget_too(site: MarketSite) -> None:
    node = site.node()
    first, second = ask(site, node, budget_bytes=8000).json, ask(site, node, budget_bytes=8000).json
    assert first["bytes"] == 8000
    assert second["assigned"] is False
    assert second["reason"] == "the budget is full"
    assert second["retry_after_s"] >= 60


def test_stated_ranges_stand_in_for_what_the_market_knows(site: MarketSite) -> None:
    node = site.node()
    site.beat(node, [[1, 0, 8]])
    assert ask(site, node, max_experts=8).json["reason"] == "the budget is full"
    answer = ask(site, node, max_experts=8, ranges=[]).json  # it has lost what it held
    assert answer["assigned"] is True
    assert answer["layer"] != 1  # until its lease has ended, that counts as covered by this worker
    full = ask(site, site.node(), max_experts=8, ranges=[[1, 0, 8]]).json
    assert full["reason"] == "the budget is full"
    reply = ask(site, site.node(), max_experts=8, ranges=[[1, 0, 9]])
    assert reply.error[0] == "malformed_segments"
    assert reply.error[1].startswith("ranges[0]: layer 1")


def test_when_nothing_is_wanted_it_says_why_and_when_to_ask_again(site: MarketSite) -> None:
    for node in (site.node(), site.node()):
        site.beat(node, [[layer, 0, 8] for layer in (1, 2, 3)])
    answer = ask(site, site.node(), budget_bytes=10**9).json
    assert set(answer) == {"assigned", "reason", "detail", "retry_after_s"}
    assert (answer["assigned"], answer["reason"]) == (False, "expert coverage at target")
    assert 15 <= answer["retry_after_s"] <= 22.5


def test_it_may_ask_sooner_when_a_promise_is_about_to_end(site: MarketSite) -> None:
    for _ in range(6):
        assert ask(site, site.node(), max_experts=8).json["assigned"]
    site.now.ms += 50_000
    answer = ask(site, site.node(), max_experts=8).json
    assert answer["reason"] == "expert coverage at target"
    assert 10 <= answer["retry_after_s"] <= 15.1
    site.now.ms += 10_020
    assert ask(site, site.node(), max_experts=8).json["assigned"]


def test_a_budget_too_small_for_any_expert(site: MarketSite) -> None:
    answer = ask(site, site.node(), budget_bytes=999).json
    assert answer["reason"] == "nothing that is wanted fits into the budget"
    assert answer["detail"] == "999 bytes of the budget are left; the smallest wanted expert has 1000"


def test_a_heartbeat_keeps_named_promises_while_they_are_fetched(site: MarketSite) -> None:
    node = site.node()
    lease_id = ask(site, node, max_experts=4).json["lease_id"]
    for _ in range(3):
        site.now.ms += 44_000
        site.beat(node, [], leases=[lease_id])
    assert snapshot_of(site.store, MARKET.targets).pending.sum() == 4
    site.beat(node, [], leaving=True)
    assert snapshot_of(site.store, MARKET.targets).pending.sum() == 0


def test_a_model_without_room_for_more_promises(tmp_path: Path, redis_url: str) -> None:
    facts = replace(FACTS, n_expert=100)
    with market_at(tmp_path, redis_url) as site:
        site.service._facts = lambda: facts
        node = site.node()
        replies = [ask(site, node, max_experts=number) for number in range(1, 66)]
    assert {reply.status for reply in replies[:64]} == {200}
    assert (replies[64].status, replies[64].error[0]) == (409, "too_many_leases")


def test_the_rate_is_recorded_before_the_worker_hears_of_it(site: MarketSite) -> None:
    site.service.on_quote = record_quote
    node = site.node()
    answer = ask(site, node, max_experts=2).json
    layer, start, stop = segment(answer)
    quote = Quote(FACTS.fingerprint, layer, start, stop, 2000, site.now.ms / 1000)
    assert quotes_of([node[0]]) == {node[0]: [quote]}

    def fail(_node_id: str, _quote: Quote) -> None:
        raise RuntimeError("the database is gone")

    site.service.on_quote = fail
    reply = ask(site, node, max_experts=4)
    assert (reply.status, reply.error[0]) == (500, "internal_error")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "no_budget"),
        ({"max_experts": 0}, "malformed"),
        ({"max_experts": 2.5}, "malformed"),
        ({"budget_bytes": -1}, "malformed"),
        ({"budget_bytes": 1 << 60}, "malformed"),
        ({"max_experts": 1, "model": "other"}, "unknown_model"),
        ({"max_experts": 1, "worker_id": "somebody"}, "wrong_worker"),
        ({"max_experts": 1, "ranges": {"1": 2}}, "malformed_segments"),
    ],
    ids=str,
)
def test_what_is_malformed_is_refused(site: MarketSite, body: dict[str, object], code: str) -> None:
    reply = ask(site, site.node(), **body)
    assert reply.status in {400, 403, 404}
    assert reply.error[0] == code
    assert snapshot_of(site.store, MARKET.targets).pending.sum() == 0


def test_the_rate_carries_the_scarcity() -> None:
    assert [rate_microcredits(1000, scarcity) for scarcity in (0.0, 0.5, 1.0)] == [1000, 1500, 2000]
