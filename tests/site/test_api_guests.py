"""Visitors of the playground: who gets a key, how long it counts, what it allows, and that it can be turned off."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from backbone.api.keys.auth import GUEST_KEY_MINUTES, GUEST_KEYS_OF_ADDRESS, GUEST_KEYS_OF_ALL
from backbone.api.keys.store import KeyRefusedError, KeyScope, check, issue
from backbone.api.schemas import GuestKeyReply
from backbone.models import ApiKey
from market.rate_limits import Rate
from tests.site.api_client import Reply, Site

CHAT: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}


def visitor(site: Site) -> str:
    reply = site.post("/v1/playground/key", {}, Authorization="")
    assert reply.status == 200
    return str(reply.json["key"])


def ask(site: Site, key: str, path: str = "/v1/chat/completions", **body: Any) -> Reply:
    return site.post(path, CHAT | body, Authorization=f"Bearer {key}")


def test_it_works(site: Site) -> None:
    reply = site.post("/v1/playground/key", {}, Authorization="")
    GuestKeyReply.model_validate(reply.json)
    holder = check(reply.json["key"])
    assert holder.scopes == {KeyScope.GENERATE, KeyScope.GUEST}
    assert holder.expires is not None and int(holder.expires.timestamp()) == reply.json["expires"]
    left = holder.expires - timezone.now()
    assert timedelta(minutes=GUEST_KEY_MINUTES - 1) < left <= timedelta(minutes=GUEST_KEY_MINUTES)
    assert ask(site, reply.json["key"]).status == 200


def test_an_address_gets_few_keys_and_all_together_not_many(site: Site) -> None:
    visitor(site)
    assert site.swarm.taken == [
        ("guest-keys:address:127.0.0.1", GUEST_KEYS_OF_ADDRESS),
        ("guest-keys:all", GUEST_KEYS_OF_ALL),
    ]
    for bucket in ("guest-keys:address", "guest-keys:all"):
        site.swarm.waits = {bucket: 30.0}
        refused = site.post("/v1/playground/key", {}, Authorization="")
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["Retry-After"] == "30"


def test_more_keys_give_an_address_no_more_requests(site: Site) -> None:
    keys = [visitor(site), visitor(site)]
    site.swarm.taken.clear()
    with override_settings(KVASIR_PLAYGROUND_RATE=3):
        assert [ask(site, key).status for key in keys] == [200, 200]
        own = [taken for taken in site.swarm.taken if not taken[0].startswith("address:")]
        assert own == [("guests:address:127.0.0.1", Rate(3, 3))] * 2
        site.swarm.waits = {"guests:": 9.0}
        assert ask(site, keys[0]).status == 429
    assert ask(site, site.key).status == 200  # one that was issued has a bucket of its own


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("/v1/chat/completions", {"n": 2}),
        ("/v1/chat/completions", {"strict": True}),
        ("/v1/completions", {"messages": None, "prompt": ["a", "b"]}),
    ],
)
def test_a_guest_gets_one_answer_to_one_prompt(site: Site, path: str, change: dict[str, Any]) -> None:
    body = {name: value for name, value in (CHAT | change).items() if value is not None}
    refused = site.post(path, body, Authorization=f"Bearer {visitor(site)}")
    assert (refused.status, refused.error["code"]) == (403, "guest_limit")
    assert site.swarm.requests == []
    assert site.post(path, body).status == 200


def test_turned_off_nobody_gets_a_key_and_none_counts(site: Site) -> None:
    key = visitor(site)
    with override_settings(KVASIR_PLAYGROUND="off"):
        for refused in (site.post("/v1/playground/key", {}, Authorization=""), ask(site, key)):
            assert (refused.status, refused.error["code"]) == (403, "playground_off")
        assert ask(site, site.key).status == 200
    assert ask(site, key).status == 200


def test_keys_that_have_ended_are_forgotten(site: Site) -> None:
    old, other = visitor(site), issue([KeyScope.GENERATE], "ann", days=1)
    ApiKey.objects.filter(public_id=other.public_id).update(expires=timezone.now() - timedelta(hours=2))
    ApiKey.objects.filter(public_id=old.split("-")[1]).update(expires=timezone.now() - timedelta(seconds=1))
    new = visitor(site)
    with pytest.raises(KeyRefusedError, match="unknown"):
        check(old)
    with pytest.raises(KeyRefusedError, match="expired"):
        check(other.text)  # somebody's own: he is told why
    assert check(new).name == "playground guest"


def test_guests_read_no_metrics(site: Site) -> None:
    assert site.get("/metrics", Authorization=f"Bearer {visitor(site)}").status == 403


def test_only_post_gives_a_key(site: Site) -> None:
    refused = site.get("/v1/playground/key", Authorization="")
    assert (refused.status, refused.headers["Allow"]) == (405, "POST")
