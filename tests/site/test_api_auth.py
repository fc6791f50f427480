"""API keys and rates: what is stored, who is let in, how often, and what the command prints."""

from __future__ import annotations

import hashlib
import logging
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from backbone.api.keys import auth as api_auth
from backbone.api.keys.store import KeyHolder, KeyRefusedError, KeyScope, check, issue, revoke
from backbone.models import ApiKey
from kvasir.errors import ConfigError
from market.rate_limits import Rate, client_address, network_of
from tests.site.api_client import Reply, Site


def ask(site: Site, key: str) -> Reply:
    return site.get("/v1/models", Authorization=f"Bearer {key}")


def test_only_the_hash_is_stored_and_nothing_shows_the_secret(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = issue([KeyScope.GENERATE], "ann")
    secret = key.text.split("-", 2)[2]
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM backbone_apikey WHERE public_id = %s", [key.public_id])
        stored = [bytes(v) if isinstance(v, bytes | memoryview) else str(v).encode() for v in cursor.fetchone()]
    assert hashlib.sha256(key.text.encode()).digest() in stored
    assert not any(secret.encode() in value for value in stored)
    reply = ask(site, key.text[:-1] + ("A" if key.text[-1] != "A" else "B"))
    assert reply.status == 401
    for shown in (repr(key), str(ApiKey.objects.get(public_id=key.public_id)), reply.body.decode(), caplog.text):
        assert secret[:-1] not in shown


def test_secrets_have_256_bits_and_differ(site: Site) -> None:
    secrets = {issue([KeyScope.GENERATE], "w").text.split("-", 2)[2] for _ in range(20)}
    assert len(secrets) == 20
    assert {len(secret) for secret in secrets} == {43}


@pytest.mark.parametrize("change", ["id", "shorter", "longer", "node token", "unicode"])
def test_any_other_text_is_401(site: Site, change: str) -> None:
    wrong = {
        "id": "kvk-0123456789abcdef" + site.key[20:],
        "shorter": site.key[:-1],
        "longer": site.key + "A",
        "node token": "kvs" + site.key[3:],
        "unicode": "clé",
    }[change]
    reply = ask(site, wrong)
    assert (reply.status, reply.error["type"], reply.error["code"]) == (
        401,
        "authentication_error",
        "invalid_api_key",
    )
    assert reply.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer  ", "Basic abc"])
def test_no_key_is_401_and_says_how(site: Site, header: str) -> None:
    reply = site.post("/v1/completions", "{", Authorization=header)
    assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
    assert "Authorization: Bearer" in reply.error["message"]


def test_expired_and_revoked_keys_are_refused(site: Site) -> None:
    short, gone = issue([KeyScope.GENERATE], "short", days=1), issue([KeyScope.GENERATE], "gone")
    assert check(short.text).name == "short"
    ApiKey.objects.filter(public_id=short.public_id).update(expires=timezone.now() - timedelta(seconds=1))
    revoke(gone.public_id)
    assert "expired at" in ask(site, short.text).error["message"]
    assert "revoked at" in ask(site, gone.text).error["message"]


def test_a_revoked_key_is_forgotten_after_seconds(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(api_auth, "MEMORY", api_auth.KeyMemory(lambda: now[0]))
    key = issue([KeyScope.GENERATE], "gone")
    assert ask(site, key.text).status == 200
    revoke(key.public_id)
    assert ask(site, key.text).status == 200
    now[0] += api_auth.REMEMBERED_S
    assert ask(site, key.text).status == 401


def holder(**fields: Any) -> KeyHolder:
    values: dict[str, Any] = {"per_minute": None, "expires": None, "scopes": frozenset([KeyScope.GENERATE])}
    return KeyHolder(public_id="a", name="a", **values | fields)


def test_the_memory_is_bounded_and_knows_the_end_of_a_key() -> None:
    memory = api_auth.KeyMemory(lambda: 0.0)
    for number in range(api_auth.MOST_REMEMBERED + 1):
        memory.put(f"key {number}", holder())
    assert memory.get("key 0") is None and memory.get("key 1") is not None
    memory.put("short", holder(expires=timezone.now() - timedelta(seconds=1)))
    assert memory.get("short") is None
    assert memory.get("another") is None


def test_scopes(site: Site) -> None:
    metrics = issue([KeyScope.METRICS], "prometheus").text
    reply = ask(site, metrics)
    assert (reply.status, reply.error["code"], reply.error["type"]) == (403, "wrong_scope", "permission_error")
    both = issue([KeyScope.METRICS, KeyScope.GENERATE], "both").text
    assert ask(site, both).status == 200
    assert site.get("/metrics", Authorization=f"Bearer {both}").status == 200


@pytest.mark.parametrize(("bucket", "whose"), [("key:", "this key"), ("address:", "this address")])
def test_too_many_requests(site: Site, bucket: str, whose: str) -> None:
    site.swarm.waits = {bucket: 2.4}
    reply = site.post("/v1/completions", {"model": "demo", "prompt": "a"})
    assert (reply.status, reply.error["type"], reply.error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert reply.headers["Retry-After"] == "3"
    assert reply.error["message"].startswith(whose)
    assert site.swarm.requests == []


def test_an_address_pays_before_its_key_is_looked_at(site: Site) -> None:
    assert ask(site, "wrong").status == 401
    assert [bucket for bucket, _ in site.swarm.taken] == ["address:127.0.0.1"]


def test_a_key_may_have_its_own_rate(site: Site) -> None:
    ask(site, issue([KeyScope.GENERATE], "slow", per_minute=3).text)
    ask(site, issue([KeyScope.GENERATE], "fast", per_minute=10_000).text)
    with override_settings(KVASIR_KEY_RATE=77, KVASIR_KEY_BURST=11):
        ask(site, site.key)
    rates = [rate for bucket, rate in site.swarm.taken if bucket.startswith("key:")]
    assert rates == [Rate(3, 3), Rate(10_000, 256), Rate(77, 11)]


def test_addresses_behind_proxies(site: Site) -> None:
    forwarded = {"X-Forwarded-For": "1.1.1.1, 2.2.2.2, 3.3.3.3"}
    for hops, seen in ((0, "127.0.0.1"), (1, "3.3.3.3"), (2, "2.2.2.2")):
        with override_settings(KVASIR_PROXY_HOPS=hops):
            site.get("/v1/models", **forwarded)
        assert site.swarm.taken[-2][0] == f"address:{seen}"


@pytest.mark.parametrize(
    ("remote", "forwarded", "hops", "address"),
    [
        ("9.9.9.9", "1.1.1.1", 0, "9.9.9.9"),
        ("9.9.9.9", "1.1.1.1", 1, "1.1.1.1"),
        ("9.9.9.9", "", 1, "9.9.9.9"),
        ("9.9.9.9", " , 1.1.1.1 ", 2, "9.9.9.9"),
    ],
)
def test_who_asks(remote: str, forwarded: str, hops: int, address: str) -> None:
    assert client_address(remote, forwarded, hops) == address


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("<script>", "unknown"),
        ("", "unknown"),
    ],
)
def test_networks_of_addresses(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "  "},
        {"name": "n" * 101},
        {"days": 0},
        {"days": 3651},
        {"per_minute": 0},
        {"scopes": []},
    ],
)
def test_values_that_cannot_be_are_errors(site: Site, wrong: dict[str, Any]) -> None:
    values: dict[str, Any] = {"name": "n", "scopes": [KeyScope.GENERATE]} | wrong
    with pytest.raises(ConfigError):
        issue(values.pop("scopes"), values.pop("name"), **values)


def test_the_command_prints_the_key_once_and_alone(site: Site) -> None:
    out, err = StringIO(), StringIO()
    call_command("issue_key", name="ann", days=3, per_minute=5, stdout=out, stderr=err)
    text = out.getvalue().strip()
    assert out.getvalue() == text + "\n" and text not in err.getvalue()
    found = check(text)
    assert found.public_id in err.getvalue()
    assert (found.scopes, found.per_minute) == (frozenset([KeyScope.GENERATE]), 5)
    assert found.expires is not None and timedelta(days=2) < found.expires - timezone.now() <= timedelta(days=3)


def test_the_command_takes_scopes_and_revokes(site: Site) -> None:
    out = StringIO()
    call_command("issue_key", "--name", "m", "--scope", "metrics", "--scope", "generate", stdout=out, stderr=StringIO())
    text = out.getvalue().strip()
    assert check(text).scopes == {KeyScope.METRICS, KeyScope.GENERATE}
    call_command("issue_key", revoke=text[4:20], stdout=StringIO())
    call_command("issue_key", revoke=text[4:20], stdout=StringIO())
    with pytest.raises(KeyRefusedError, match="revoked"):
        check(text)


def test_the_command_says_what_is_missing(site: Site) -> None:
    with pytest.raises(CommandError, match="--name is needed"):
        call_command("issue_key")
    with pytest.raises(CommandError, match="no API key with id"):
        call_command("issue_key", revoke="0" * 16)
    with pytest.raises(CommandError, match="0 requests a minute"):
        call_command("issue_key", name="n", per_minute=0)
