"""GET /api/rewards: an owner's days of work, what was not paid and why, and the evidence against its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from backbone.engine.trust.standing import TrustState, after_lie
from backbone.process.trust_keeper import SqlTrustKeeper
from market.ledger.receipts import record
from market.ledger.work_batch import DAY_S, WorkBatch, WorkReceipt
from market.nodes import trust_store
from market.nodes.tokens import TokenScope, issue
from market.nodes.trust_store import SavedTrust
from tests.site.ledger_evidence import MODEL, evidence
from tests.site.market_site import MarketSite, Reply, market_at
from tests.swarm.redis_fixture import running_redis

DAY = 20_423  # 2025-12-01
LIE = "a wrong answer was proven (evidence e1)"


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def site(tmp_path: Path, redis_url: str) -> Iterator[MarketSite]:
    with market_at(tmp_path, redis_url) as market:
        yield market


def work(node_id: str, row_experts: int, *, day: int = DAY, layer: int = 3, reason: str = "") -> WorkReceipt:
    return WorkReceipt(node_id, MODEL, layer, 0, 8, row_experts, day * DAY_S + 1.0, reason)


def ask(site: MarketSite, token: str, query: str = "") -> Reply:
    return site.get(f"/api/rewards{query}", token)


def owner(site: MarketSite) -> tuple[str, str, str]:
    """(account's key, id of its node, the node's token)."""
    made = site.post("/api/nodes", {}).json
    return made["account_key"], made["node_id"], made["token"]


def test_it_works(site: MarketSite) -> None:
    key, node_id, _ = owner(site)
    record(WorkBatch("b:1", (work(node_id, 5), work(node_id, 2, day=DAY + 1), work(node_id, 3, reason=LIE))))
    reply = ask(site, key)
    assert (reply.status, reply.headers["Cache-Control"]) == (200, "no-store")
    answer = reply.json
    place = {"node_id": node_id, "fingerprint": MODEL, "layer": 3, "experts": [0, 8]}
    items = answer.pop("items")
    assert items[0] == place | {"day": "2025-12-02", "row_experts": 2, "microcredits": 2000, "paid": True, "reason": ""}
    assert sorted(items[1:], key=lambda item: item["paid"]) == [
        place | {"day": "2025-12-01", "row_experts": 3, "microcredits": 3000, "paid": False, "reason": LIE},
        place | {"day": "2025-12-01", "row_experts": 5, "microcredits": 5000, "paid": True, "reason": ""},
    ]
    assert answer == {
        "scope": "account",
        "id": node_account_id(site, key),
        "balance_microcredits": 7000,
        "earned_microcredits": 7000,
        "paid_row_experts": 7,
        "withheld_microcredits": 3000,
        "unpaid_row_experts": 3,
        "next": None,
        "nodes": [],
    }


def node_account_id(_site: MarketSite, key: str) -> str:
    return key.split("-")[1]


def test_who_has_done_nothing_has_nothing(site: MarketSite) -> None:
    answer = ask(site, owner(site)[0]).json
    assert (answer["items"], answer["earned_microcredits"], answer["balance_microcredits"]) == ([], 0, 0)


def test_a_nodes_token_shows_that_node_and_not_the_accounts_balance(site: MarketSite) -> None:
    key, first, token = owner(site)
    second = site.post("/api/nodes", {}, key).json["node_id"]
    record(WorkBatch("b:1", (work(first, 5), work(second, 9))))
    answer = ask(site, token).json
    assert (answer["scope"], answer["id"], answer["earned_microcredits"]) == ("node", first, 5000)
    assert [item["node_id"] for item in answer["items"]] == [first]
    assert "balance_microcredits" not in answer
    assert ask(site, key).json["earned_microcredits"] == 14_000


def test_a_node_without_owner_sees_its_balance(site: MarketSite) -> None:
    node = issue(TokenScope.WORKER, "by hand")
    record(WorkBatch("b:1", (work(node.public_id, 5),)))
    assert ask(site, node.text).json["balance_microcredits"] == 5000


def test_nobody_sees_what_is_another_owners(site: MarketSite) -> None:
    node_id, other = owner(site)[1], owner(site)
    record(WorkBatch("b:1", (work(node_id, 5),)))
    trust_store.save(node_id, SavedTrust(failures=1, quarantined=True), evidence(node_id).as_json())
    for token in (other[0], other[2]):
        for query in ("", f"?node={node_id}"):
            answer = ask(site, token, query).json
            assert (answer["items"], answer["nodes"], answer["earned_microcredits"]) == ([], [], 0)


@pytest.mark.parametrize("token", ["", "kva-0123456789abcdef-" + "A" * 43, "kvs-0123456789abcdef-" + "A" * 43])
def test_who_is_unknown_is_refused(site: MarketSite, token: str) -> None:
    reply = ask(site, token)
    assert reply.status == 401
    assert reply.error[0] in {"token_refused", "account_unknown"}


def test_work_of_a_node_that_was_taken_back_is_still_shown(site: MarketSite) -> None:
    key, node_id, _ = owner(site)
    record(WorkBatch("b:1", (work(node_id, 5),)))
    assert site.post("/api/nodes/revoke", {"node_id": node_id}, key).status == 200
    assert ask(site, key).json["earned_microcredits"] == 5000


def test_pages_show_every_item_once_while_work_goes_on(site: MarketSite) -> None:
    key, node_id, _ = owner(site)
    record(WorkBatch("b:0", tuple(work(node_id, 1, day=DAY + d, layer=layer) for d in range(3) for layer in (1, 2))))
    seen, query, n_pages = [], "?limit=4", 0
    while query:
        answer = ask(site, key, query).json
        seen += [(item["day"], item["layer"]) for item in answer["items"]]
        n_pages += 1
        record(WorkBatch(f"b:{n_pages}", (work(node_id, 1, day=DAY + 3, layer=n_pages),)))
        query = f"?limit=4&cursor={answer['next']}" if answer["next"] else ""
    assert n_pages == 2
    assert sorted(seen) == [(f"2025-12-0{d}", layer) for d in (1, 2, 3) for layer in (1, 2)]
    assert [day for day, _ in seen] == sorted((day for day, _ in seen), reverse=True)


def test_filters(site: MarketSite) -> None:
    key, first, _ = owner(site)
    second = site.post("/api/nodes", {}, key).json["node_id"]
    items = (work(first, 1), work(first, 2, day=DAY + 1), work(first, 3, reason=LIE), work(second, 4))
    record(WorkBatch("b:1", items))

    def shown(query: str) -> list[int]:
        return sorted(item["row_experts"] for item in ask(site, key, query).json["items"])

    assert shown("?since=2025-12-02") == [2]
    assert shown("?until=2025-12-01") == [1, 3, 4]
    assert shown("?since=2025-12-01&until=2025-12-01&paid=false") == [3]
    assert shown("?paid=true") == [1, 2, 4]
    assert shown(f"?node={second}") == [4]
    assert shown("?until=1900-01-01") == []


@pytest.mark.parametrize(
    ("query", "word"),
    [("?limit=0", "limit"), ("?limit=1001", "limit"), ("?since=yesterday", "since"), ("?cursor=1.x", "cursor")],
)
def test_what_is_malformed_is_named(site: MarketSite, query: str, word: str) -> None:
    reply = ask(site, owner(site)[0], query)
    assert reply.status == 400
    assert reply.error[0] == "malformed"
    assert reply.error[1].startswith(word)


def test_quarantine_and_its_evidence_are_shown_to_the_owner(site: MarketSite) -> None:
    key, node_id, token = owner(site)
    keeper = SqlTrustKeeper()
    keeper.save(node_id, after_lie(TrustState(verified=70), "e1"), evidence(node_id))
    for answer in (ask(site, key).json, ask(site, token).json):
        (node,) = answer["nodes"]
        (shown,) = node.pop("evidence")
        assert node == {"node_id": node_id, "verified_row_experts": 0, "failures": 1, "quarantined": True}
        assert shown["at"] == "2025-12-01T00:00:00Z"
        expected: dict[str, Any] = asdict(evidence(node_id))
        assert shown.pop("expert_ids") == [1, 5]
        assert {name: value for name, value in shown.items() if name != "at"} == {
            name: value for name, value in expected.items() if name not in {"worker_id", "expert_ids", "at"}
        }
