"""GET /api/rewards/entries and /api/leaderboard: what moved on an account, and who has earned the most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from market.ledger import posting as ledger
from market.ledger.receipts import record
from market.ledger.rewards_report import REMEMBERED_S, Leaderboard, top_earners
from market.ledger.work_batch import WorkBatch, WorkReceipt
from market.models.nodes import NodeToken
from market.nodes.tokens import TokenScope, issue
from tests.site.ledger_evidence import DAY_ONE, MODEL
from tests.site.market_site import MarketSite, market_at
from tests.swarm.redis_fixture import running_redis


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def site(tmp_path: Path, redis_url: str) -> Iterator[MarketSite]:
    with market_at(tmp_path, redis_url) as market:
        yield market


def work(node_id: str, row_experts: int, reason: str = "") -> WorkReceipt:
    return WorkReceipt(node_id, MODEL, 3, 0, 8, row_experts, DAY_ONE + 1.0, reason)


def owner(site: MarketSite) -> tuple[str, str, str]:
    """(account's key, id of its node, the node's token)."""
    made = site.post("/api/nodes", {}).json
    return made["account_key"], made["node_id"], made["token"]


def test_entries_are_an_accounts_own_the_newest_first(site: MarketSite) -> None:
    (key, node_id, _), (_, other_node, _) = owner(site), owner(site)
    record(WorkBatch("b:1", (work(node_id, 5), work(other_node, 9))))
    record(WorkBatch("b:2", (work(node_id, 2),)))
    ledger.reverse("earned:b:1", "a trial")
    reply = site.get("/api/rewards/entries", key)
    assert (reply.status, reply.headers["Cache-Control"], reply.json["next"]) == (200, "no-store", None)
    items = reply.json["items"]
    assert [(item["event"], item["type"], item["microcredits"], item["note"]) for item in items] == [
        ("reversed:earned:b:1", "reversed", -5000, "a trial"),
        ("earned:b:2", "earned", 2000, ""),
        ("earned:b:1", "earned", 5000, ""),
    ]
    assert all(item["at"].endswith("Z") for item in items)
    assert sum(item["microcredits"] for item in items) == site.get("/api/rewards", key).json["balance_microcredits"]


def test_entries_come_in_pages_that_meet(site: MarketSite) -> None:
    key, node_id, _ = owner(site)
    for number in range(5):
        record(WorkBatch(f"b:{number}", (work(node_id, number + 1),)))
    found, cursor = [], ""
    while True:
        page = site.get(f"/api/rewards/entries?limit=2&cursor={cursor}", key).json
        found += [item["microcredits"] for item in page["items"]]
        assert len(page["items"]) <= 2
        if page["next"] is None:
            break
        cursor = page["next"]
    assert found == [5000, 4000, 3000, 2000, 1000]


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "9223372036854775808", "²"])
def test_a_foreign_cursor_is_refused(site: MarketSite, cursor: str) -> None:
    reply = site.get(f"/api/rewards/entries?cursor={cursor}", owner(site)[0])
    assert (reply.status, reply.error[0]) == (400, "malformed")


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
def test_a_page_has_its_bounds(site: MarketSite, limit: str) -> None:
    assert site.get(f"/api/rewards/entries?limit={limit}", owner(site)[0]).status == 400


def test_whose_entries_a_nodes_token_shows(site: MarketSite) -> None:
    owned = site.get("/api/rewards/entries", owner(site)[2])
    assert (owned.status, owned.error[0]) == (403, "account_needed")
    node = issue(TokenScope.WORKER, "by hand")
    record(WorkBatch("b:1", (work(node.public_id, 5),)))
    assert [item["microcredits"] for item in site.get("/api/rewards/entries", node.text).json["items"]] == [5000]


def test_entries_need_a_key(site: MarketSite) -> None:
    assert site.get("/api/rewards/entries").status == 401


def test_the_leaderboard_sums_an_accounts_nodes_and_names_nobody(site: MarketSite) -> None:
    key, first, _ = owner(site)
    second = site.post("/api/nodes", {"name": "ann's laptop"}, key).json["node_id"]
    _, rival, _ = owner(site)
    by_hand = issue(TokenScope.WORKER, "by hand").public_id
    lie = "a wrong answer was proven (evidence e1)"
    record(WorkBatch("b:1", (work(first, 5), work(second, 4), work(rival, 7), work(by_hand, 8), work(rival, 90, lie))))
    assert top_earners() == [
        {"rank": 1, "kind": "account", "id": key.split("-")[1], "microcredits": 9000, "row_experts": 9},
        {"rank": 2, "kind": "node", "id": by_hand, "microcredits": 8000, "row_experts": 8},
        {"rank": 3, "kind": "account", "id": account_of(rival), "microcredits": 7000, "row_experts": 7},
    ]


def account_of(node_id: str) -> str:
    account = NodeToken.objects.get(public_id=node_id).account
    assert account is not None
    return account.public_id


def test_anybody_may_see_the_top(site: MarketSite) -> None:
    reply = site.get("/api/leaderboard?limit=1")
    assert (reply.status, reply.headers["Cache-Control"]) == (200, "public, max-age=10")
    assert len(reply.json["items"]) <= 1
    assert site.get("/api/leaderboard?limit=101").status == 400


def test_sql_is_asked_now_and_then_only(site: MarketSite) -> None:
    now = [0.0]
    board = Leaderboard(lambda: now[0])
    assert board.top(10) == {"items": []}
    record(WorkBatch("b:1", (work(owner(site)[1], 5),)))
    now[0] = REMEMBERED_S - 0.001
    assert board.top(10) == {"items": []}
    now[0] = REMEMBERED_S
    assert [item["microcredits"] for item in board.top(10)["items"]] == [5000]
    assert board.top(0) == {"items": []}
