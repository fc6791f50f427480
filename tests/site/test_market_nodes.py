"""POST /api/nodes, /api/nodes/rotate and /api/nodes/revoke: registration, revocation and rate limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from kvasir.errors import ConfigError
from market.models.nodes import Account, Invite, NodeToken
from market.nodes.identity import issue_invite
from market.nodes.tokens import TokenScope, issue
from market.rate_limits import Rate, client_address, network_of
from market.settings import Registration
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


def test_it_works(site: MarketSite) -> None:
    reply = site.post("/api/nodes", {"name": "attic"})
    assert reply.status == 201
    made = reply.json
    assert set(made) == {"node_id", "token", "expires", "account_id", "account_key"}
    expires = datetime.fromisoformat(made["expires"])
    assert timedelta(days=29) < expires - datetime.now(UTC) <= timedelta(days=30)
    row = NodeToken.objects.select_related("account").get()
    assert row.account is not None
    assert (row.public_id, row.name, row.account.public_id) == (made["node_id"], "attic", made["account_id"])
    assert site.get("/api/expert-demand", made["token"]).status == 200


def test_only_hashes_are_stored(site: MarketSite) -> None:
    made = site.post("/api/nodes", {}).json
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM market_nodetoken, market_account")
        stored = str([bytes(v) if isinstance(v, memoryview) else v for v in cursor.fetchone()])
    for text in (made["token"], made["account_key"]):
        assert text.split("-", 2)[2] not in stored


def test_an_accounts_key_registers_further_nodes(site: MarketSite) -> None:
    first = site.post("/api/nodes", {}).json
    second = site.post("/api/nodes", {}, first["account_key"]).json
    assert set(second) == {"node_id", "token", "expires", "account_id"}
    assert second["account_id"] == first["account_id"]
    assert Account.objects.count() == 1
    code, _ = site.post("/api/nodes", {}, first["account_key"][:-1] + "-").error
    assert code == "account_unknown"
    Account.objects.update(closed=timezone.now())
    reply = site.post("/api/nodes", {}, first["account_key"])
    assert (reply.status, reply.error[0]) == (401, "account_closed")


def test_a_nodes_token_is_no_accounts_key(site: MarketSite) -> None:
    _, token = site.node()
    reply = site.post("/api/nodes", {}, token)
    assert (reply.status, reply.error[0]) == (401, "account_unknown")


def test_by_invite(tmp_path: Path, redis_url: str) -> None:
    with market_at(tmp_path, redis_url, replace(MARKET, registration=Registration.INVITE)) as site:
        reply = site.post("/api/nodes", {})
        assert (reply.status, reply.error[0]) == (403, "invite_needed")
        invite = issue_invite("friends", n_nodes=2)
        made = site.post("/api/nodes", {"invite": invite.text})
        assert made.status == 201
        assert site.post("/api/nodes", {"invite": invite.text}).status == 201
        assert site.post("/api/nodes", {"invite": invite.text}).error[0] == "invite_used"
        assert site.post("/api/nodes", {"invite": invite.text[:-1] + "-"}).error[0] == "invite_unknown"
        assert site.post("/api/nodes", {"invite": made.json["account_key"]}).error[0] == "invite_unknown"
        late = issue_invite("late")
        Invite.objects.filter(public_id=late.public_id).update(expires=timezone.now() - timedelta(seconds=1))
        assert site.post("/api/nodes", {"invite": late.text}).error[0] == "invite_expired"
        assert site.post("/api/nodes", {}, made.json["account_key"]).status == 201


def test_an_invite_is_not_used_up_by_a_registration_that_fails(tmp_path: Path, redis_url: str) -> None:
    with market_at(tmp_path, redis_url, replace(MARKET, nodes_per_account=1)) as site:
        invite = issue_invite("one")
        account = site.post("/api/nodes", {"invite": invite.text}).json
        reply = site.post("/api/nodes", {}, account["account_key"])
        assert (reply.status, reply.error[0]) == (409, "too_many_nodes")
        owned = issue_invite("owned")
        Invite.objects.filter(public_id=owned.public_id).update(account=Account.objects.get())
        assert site.post("/api/nodes", {"invite": owned.text}).status == 409
        assert Invite.objects.get(public_id=owned.public_id).n_left == 1


def test_closed(tmp_path: Path, redis_url: str) -> None:
    with market_at(tmp_path, redis_url, replace(MARKET, registration=Registration.CLOSED)) as site:
        reply = site.post("/api/nodes", {})
        assert (reply.status, reply.error[0]) == (403, "registration_closed")
        by_hand = issue(TokenScope.WORKER, "by hand")
        assert site.get("/api/expert-demand", by_hand.text).status == 200


def test_rotate(site: MarketSite) -> None:
    node_id, old = site.node()
    assert site.get("/api/expert-demand", old).status == 200  # so that it is remembered
    reply = site.post("/api/nodes/rotate", {}, old)
    assert set(reply.json) == {"token", "expires"}
    assert reply.json["token"].split("-")[1] == node_id
    assert site.get("/api/expert-demand", reply.json["token"]).status == 200
    refused = site.get("/api/expert-demand", old)
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert site.post("/api/nodes/rotate", {}, old).status == 401


def test_revoke_by_the_node_itself_takes_its_coverage(site: MarketSite) -> None:
    node, other = site.node(), site.node()
    site.beat(node, [[1, 0, 8]])
    assert site.post("/api/nodes/revoke", {"node_id": other[0]}, node[1]).error[0] == "wrong_worker"
    assert site.post("/api/nodes/revoke", {"node_id": node[0]}, node[1]).json == {"ok": True}
    reply = site.get("/api/expert-demand", node[1])
    assert (reply.status, reply.error[0]) == (401, "token_refused")
    assert "revoked" in reply.error[1]
    demand = site.get("/api/expert-demand", other[1]).json
    assert all(segment["replicas"] == 0 for layer in demand["models"][0]["layers"] for segment in layer["segments"])


def test_revoke_by_the_account(site: MarketSite) -> None:
    made = site.post("/api/nodes", {}).json
    stranger = site.post("/api/nodes", {}).json
    reply = site.post("/api/nodes/revoke", {"node_id": made["node_id"]}, stranger["account_key"])
    assert (reply.status, reply.error[0]) == (404, "node_unknown")
    assert site.post("/api/nodes/revoke", {"node_id": made["node_id"]}, made["account_key"]).status == 200
    assert site.get("/api/expert-demand", made["token"]).status == 401


def test_a_closed_account_has_no_nodes_and_makes_none(site: MarketSite) -> None:
    made, stranger = site.post("/api/nodes", {}).json, site.post("/api/nodes", {}).json
    account = Account.objects.get(public_id=made["account_id"])
    invite = issue_invite("for its owner")
    Invite.objects.filter(public_id=invite.public_id).update(account=account)
    for n_nodes in (1, 0):
        call_command("close_account", made["account_id"], stdout=(out := StringIO()))
        assert f"{n_nodes} nodes were revoked" in out.getvalue()
    assert "revoked" in site.get("/api/expert-demand", made["token"]).error[1]
    for body, key in (({}, made["account_key"]), ({"invite": invite.text}, "")):
        assert site.post("/api/nodes", body, key).error[0] == "account_closed"
    assert site.get("/api/rewards", made["account_key"]).error[0] == "account_closed"
    assert site.get("/api/expert-demand", stranger["token"]).status == 200
    with pytest.raises(CommandError, match="no account"):
        call_command("close_account", "nobody")


def test_an_expired_token_is_refused_even_when_it_is_remembered(site: MarketSite) -> None:
    node_id, token = site.node()
    NodeToken.objects.filter(public_id=node_id).update(expires=timezone.now() + timedelta(milliseconds=1))
    reply = site.get("/api/expert-demand", token)
    while reply.status == 200:
        reply = site.get("/api/expert-demand", token)
    assert "expired" in reply.error[1]


@pytest.mark.parametrize("token", ["", "password", "kvs-0123456789abcdef-" + "A" * 43])
def test_other_tokens_are_refused_before_the_body_is_read(site: MarketSite, token: str) -> None:
    for path in ("/api/expert-coverage", "/api/expert-volunteer", "/api/nodes/rotate"):
        reply = site.post(path, "{not json", token)
        assert (reply.status, reply.error[0]) == (401, "token_refused")


def test_a_backbones_token_takes_no_part(site: MarketSite) -> None:
    reply = site.get("/api/expert-demand", issue(TokenScope.BACKBONE, "b").text)
    assert "for scope backbone, worker is needed" in reply.error[1]


def test_an_address_registers_only_so_often(tmp_path: Path, redis_url: str) -> None:
    with market_at(tmp_path, redis_url, replace(MARKET, register_rate=Rate(per_minute=6, burst=2))) as site:
        assert [site.post("/api/nodes", {}).status for _ in range(3)] == [201, 201, 429]
        reply = site.post("/api/nodes", {})
        assert reply.error[0] == "rate_limit_exceeded"
        assert reply.headers["Retry-After"] == "10"
        site.now.ms += 10_000
        assert site.post("/api/nodes", {}).status == 201


def test_an_account_asks_only_so_often_and_others_do_not_pay_for_it(tmp_path: Path, redis_url: str) -> None:
    with market_at(tmp_path, redis_url, replace(MARKET, account_rate=Rate(per_minute=60, burst=3))) as site:
        one, other = site.node()[1], site.node()[1]
        assert [site.get("/api/expert-demand", one).status for _ in range(4)] == [200, 200, 200, 429]
        reply = site.get("/api/expert-demand", one)
        assert "this account may send 60 requests a minute" in reply.error[1]
        assert reply.headers["Retry-After"] == "1"
        assert site.get("/api/expert-demand", other).status == 200


def test_an_address_that_tries_tokens_is_slowed(tmp_path: Path, redis_url: str) -> None:
    with market_at(tmp_path, redis_url, replace(MARKET, address_rate=Rate(per_minute=60, burst=3))) as site:
        assert [site.get("/api/expert-demand", "guess").status for _ in range(4)] == [401, 401, 401, 429]


def test_malformed_bodies_name_the_field(site: MarketSite) -> None:
    assert site.post("/api/nodes", "{").status == 400
    reply = site.post("/api/nodes", {"name": "n" * 101})
    assert (reply.status, reply.error[0]) == (400, "malformed")
    assert reply.error[1].startswith("name: ")


def test_addresses_are_told_apart_as_customers_are() -> None:
    assert network_of("2001:db8:1:2:3::4") == network_of("2001:db8:1:2::9") != network_of("2001:db8:1:3::9")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("nonsense") == "unknown"
    assert client_address("10.0.0.1", "6.6.6.6, 192.0.2.7", 1) == "192.0.2.7"
    assert client_address("10.0.0.1", "6.6.6.6", 0) == "10.0.0.1"
    assert client_address("10.0.0.1", "", 1) == "10.0.0.1"


def test_the_command_prints_an_invite_once_and_alone(site: MarketSite) -> None:
    out, err = StringIO(), StringIO()
    call_command("issue_invite", name="friends", nodes=1, stdout=out, stderr=err)
    text = out.getvalue().strip()
    assert out.getvalue() == text + "\n" and text not in err.getvalue()
    assert site.post("/api/nodes", {"invite": text}).status == 201
    with pytest.raises(CommandError, match="invite for 0 nodes"):
        call_command("issue_invite", name="x", nodes=0)


@pytest.mark.parametrize(("name", "n_nodes", "days"), [(" ", 1, 1), ("n" * 101, 1, 1), ("n", 0, 1), ("n", 1, 0)])
def test_invites_that_cannot_be_are_errors(site: MarketSite, name: str, n_nodes: int, days: int) -> None:
    with pytest.raises(ConfigError):
        issue_invite(name, n_nodes, days)
