"""Signing in to the staff's pages: attempts of an address are counted, looks at the form are not, Redis must count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from frontend.views import ATTEMPTS
from market.service import MarketService, redis_client, using
from tests.site.market_site import FACTS, MARKET, MarketSite, market_at
from tests.swarm.redis_fixture import RedisServer, running_redis

PATH = "/admin/login/?next=/operator"
RIGHT = {"username": "olga", "password": "correct horse battery"}
WRONG = {"username": "olga", "password": "wrong"}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def site(redis: RedisServer, tmp_path: Path) -> Iterator[MarketSite]:
    with market_at(tmp_path, redis.url) as site:
        User.objects.create_user(RIGHT["username"], password=RIGHT["password"], is_staff=True)
        yield site


def attempt(form: dict[str, str], address: str) -> Any:
    return Client(REMOTE_ADDR=address).post(PATH, form)


def test_staff_signs_in_and_is_sent_where_it_wanted(site: MarketSite) -> None:
    reply = attempt(RIGHT, "192.0.2.1")
    assert (reply.status_code, reply["Location"]) == (302, "/operator")


def test_an_address_has_few_attempts_and_then_not_even_the_right_one(site: MarketSite) -> None:
    for _ in range(ATTEMPTS.burst):
        assert attempt(WRONG, "192.0.2.2").status_code == 200  # the form again
    refused = attempt(RIGHT, "192.0.2.2")
    assert (refused.status_code, refused["Retry-After"]) == (429, str(60 // ATTEMPTS.per_minute))
    assert "too many attempts" in refused.content.decode() and "Set-Cookie" not in refused
    assert attempt(RIGHT, "192.0.2.3").status_code == 302
    site.now.ms += 60_000 // ATTEMPTS.per_minute
    assert attempt(RIGHT, "192.0.2.2").status_code == 302


def test_the_form_itself_is_shown_as_often_as_asked(site: MarketSite) -> None:
    client = Client(REMOTE_ADDR="192.0.2.4")
    assert [client.get(PATH).status_code for _ in range(2 * ATTEMPTS.burst)] == [200] * 2 * ATTEMPTS.burst
    assert attempt(RIGHT, "192.0.2.4").status_code == 302


def test_nobody_signs_in_while_attempts_cannot_be_counted(site: MarketSite) -> None:
    with using(MarketService(redis_client("redis://127.0.0.1:1/0"), MARKET, lambda: FACTS, site.now)):
        refused = attempt(RIGHT, "192.0.2.5")
    assert refused.status_code == 503 and refused["Retry-After"] == "5"
    assert "cannot be counted" in refused.content.decode()


def test_the_refusal_is_in_the_visitors_language(site: MarketSite) -> None:
    for _ in range(ATTEMPTS.burst):
        attempt(WRONG, "192.0.2.6")
    reply = Client(REMOTE_ADDR="192.0.2.6", headers={"accept-language": "id"}).post(PATH, WRONG)
    assert "Coba lagi dalam 10 detik." in reply.content.decode()
