"""The operator's page: for staff alone, and what it does to nodes is what the command line does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client

from market.coverage.reading import snapshot_of
from market.models.nodes import NodeToken
from market.nodes import tokens, trust_store
from market.nodes.trust_store import SavedTrust
from market.service import MarketService, redis_client, using
from tests.site.market_site import FACTS, MARKET, MarketSite, market_at
from tests.swarm.redis_fixture import RedisServer, running_redis

PASSWORD = "correct horse battery"  # noqa: S105 - of a user that lives as long as the test
EVIDENCE = {
    "evidence_id": "e" * 16, "worker_id": "w", "fingerprint": "f" * 64, "kernel": "kx1", "layer": 3,
    "expert_ids": [4, 7], "n_pairs": 32, "n_wrong": 3, "rows_hash": "a", "expected_hash": "b", "answered_hash": "c",
    "found_by": "audit", "at": 1_700_000_000.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def site(redis: RedisServer, tmp_path: Path) -> Iterator[MarketSite]:
    with market_at(tmp_path, redis.url) as site:
        yield site


@pytest.fixture
def staff(site: MarketSite) -> Client:
    User.objects.create_user("olga", password=PASSWORD, is_staff=True, is_superuser=True)
    client = Client()
    assert client.login(username="olga", password=PASSWORD)
    return client


def page(client: Client, query: str = "") -> str:
    reply = client.get(f"/operator{query}")
    assert reply.status_code == 200
    return reply.content.decode()


@pytest.mark.parametrize("user", ["nobody", "a visitor with an account"])
def test_others_are_sent_to_sign_in_and_change_nothing(site: MarketSite, user: str) -> None:
    node_id, _ = site.node()
    client = Client()
    if user != "nobody":
        User.objects.create_user("vera", password=PASSWORD)
        assert client.login(username="vera", password=PASSWORD)
    for reply in (
        client.get("/operator"),
        client.post(f"/operator/nodes/{node_id}/revoke"),
        client.post(f"/operator/nodes/{node_id}/release"),
    ):
        assert (reply.status_code, reply["Location"].partition("?")[0]) == (302, "/admin/login/")
    assert NodeToken.objects.get(public_id=node_id).revoked is None


def test_forms_of_other_sites_change_nothing(site: MarketSite, staff: Client) -> None:
    node_id, _ = site.node()
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = staff.cookies
    assert strict.post(f"/operator/nodes/{node_id}/revoke").status_code == 403
    assert staff.get(f"/operator/nodes/{node_id}/revoke").status_code == 405
    assert NodeToken.objects.get(public_id=node_id).revoked is None


def test_nodes_are_listed_with_what_they_do(site: MarketSite, staff: Client) -> None:
    ant, bee = site.node("ant's attic"), site.node("bee")
    site.beat(ant, [[1, 0, 5], [2, 0, 1]])
    text = page(staff)
    assert ant[0] in text and bee[0] in text and "ant&#x27;s attic" in text
    assert text.count(">live<") == 1 and text.count(">offline<") == 1
    assert bee[0] not in page(staff, f"?q={ant[0][:6]}")
    assert ant[0] not in page(staff, "?q=bee")
    assert "No node matches." in page(staff, "?q=%3Cscript%3E")
    assert "<script>" not in page(staff, "?q=%3Cscript%3E").partition("<main")[2]


def test_a_node_that_is_taken_back_is_out_at_once(site: MarketSite, staff: Client) -> None:
    node = site.node()
    site.beat(node, [[1, 0, 5]])
    reply = staff.post(f"/operator/nodes/{node[0]}/revoke", {"next": "/operator?page=1"})
    assert (reply.status_code, reply["Location"]) == (302, f"/operator?done=revoked&node={node[0]}")
    assert f"Node {node[0]} was revoked." in page(staff, f"?done=revoked&node={node[0]}")
    assert snapshot_of(site.store, MARKET.targets).replicas.sum() == 0
    assert site.beat(node, [[1, 0, 5]]).status == 401
    assert staff.post("/operator/nodes/nobody/revoke").status_code == 404


def test_quarantine_shows_its_evidence_and_ends_by_a_release(site: MarketSite, staff: Client) -> None:
    node_id, _ = site.node()
    trust_store.save(node_id, SavedTrust(failures=1, quarantined=True, evidence_id="e" * 16), EVIDENCE)
    text = page(staff)
    for shown in (node_id, "1 proven lie", "e" * 16, "audit", "4, 7", "3 / 32", "Nov. 14, 2023"):
        assert shown in text
    released = staff.post(f"/operator/nodes/{node_id}/release", {"next": "/operator"})
    assert released["Location"] == f"/operator?done=released&node={node_id}"
    assert trust_store.load(node_id) == SavedTrust(failures=1, evidence_id="e" * 16)
    assert "No node is in quarantine." in page(staff)
    again = staff.post(f"/operator/nodes/{node_id}/release", {"next": "/operator"})
    assert again["Location"] == f"/operator?done=not_quarantined&node={node_id}"


@pytest.mark.parametrize("place", ["https://evil.example/", "//evil.example", "javascript:alert(1)", ""])
def test_a_form_leads_back_to_this_site_only(site: MarketSite, staff: Client, place: str) -> None:
    node_id, _ = site.node()
    reply = staff.post(f"/operator/nodes/{node_id}/revoke", {"next": place})
    assert reply["Location"].startswith("/?done=revoked")


def test_the_model_is_described(site: MarketSite, staff: Client) -> None:
    text = page(staff)
    for shown in ("kvasir-demo-moe", "qwen3moe", "Q4_K / Q6_K", "kx1", "6 / 6"):
        assert shown in text


def test_it_is_shown_while_redis_is_away(site: MarketSite, staff: Client) -> None:
    node_id, _ = site.node()
    with using(MarketService(redis_client("redis://127.0.0.1:1/0"), MARKET, lambda: FACTS, site.now)):
        text = page(staff)
    assert node_id in text and "The live state cannot be read now." in text


def test_the_admin_shows_every_table_and_changes_none_of_ours(site: MarketSite, staff: Client) -> None:
    node_id, _ = site.node()
    tokens.revoke(node_id)
    ours = [model for model in admin.site._registry if model._meta.app_label in {"market", "relay", "backbone"}]
    assert {model.__name__ for model in ours} >= {
        "Account",
        "NodeToken",
        "Evidence",
        "LedgerEntry",
        "EdgeUsage",
        "ApiKey",
    }
    for model in ours:
        listing = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        assert staff.get(listing).status_code == 200
        assert staff.get(f"{listing}add/").status_code == 403
    row = NodeToken.objects.get(public_id=node_id)
    shown = staff.get(f"/admin/market/nodetoken/{row.pk}/change/").content.decode()
    assert node_id in shown and "digest" not in shown.lower()
    assert staff.post(f"/admin/market/nodetoken/{row.pk}/change/", {"name": "other"}).status_code == 403
