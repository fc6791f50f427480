"""The dashboard's socket inside the process: what watchers get, how many may watch, and that unwatched it is free."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from channels.layers import channel_layers
from channels.testing import WebsocketCommunicator

from frontend.live import feed as live_feed
from frontend.live.consumer import LiveConsumer
from frontend.live.feed import LiveFeed
from frontend.live.readings import read_swarm
from kvasir_site.channel_layers import channel_layers as layers_of
from market.service import MarketService
from tests.site.market_site import MarketSite, market_at, run
from tests.swarm.redis_fixture import RedisServer, running_redis

DEADLINE_S = 20
Watch = Callable[[], Awaitable[WebsocketCommunicator]]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def site(redis: RedisServer, tmp_path: Path) -> Iterator[MarketSite]:
    with market_at(tmp_path, redis.url) as site:
        yield site


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> LiveFeed:
    """One that two may watch, ten times a second."""
    monkeypatch.setattr(live_feed, "PERIOD_S", 0.1)
    feed = LiveFeed(2)
    monkeypatch.setattr(live_feed, "_feeds", [feed])
    channel_layers.backends.clear()  # a layer in memory belongs to its event loop
    return feed


async def watch() -> WebsocketCommunicator:
    """A new watcher that was let in."""
    socket = WebsocketCommunicator(LiveConsumer.as_asgi(), "/live")
    accepted, _ = await socket.connect(timeout=DEADLINE_S)
    assert accepted
    return socket


async def next_snapshot(socket: WebsocketCommunicator) -> Any:
    return json.loads(gzip.decompress(await socket.receive_from(timeout=DEADLINE_S)))


def scenario(work: Coroutine[Any, Any, None]) -> None:
    run(work)


def test_watchers_get_the_same_snapshots_and_each_is_newer(site: MarketSite, feed: LiveFeed) -> None:
    async def watching() -> None:
        first, second = await watch(), await watch()
        seen = {snapshot["at"] for snapshot in [await next_snapshot(first) for _ in range(4)]}
        also = {snapshot["at"] for snapshot in [await next_snapshot(second) for _ in range(4)]}
        assert seen & also
        for socket in (first, second):
            await socket.disconnect()

    site.service.clock = Ticking()
    scenario(watching())


def test_nothing_is_built_while_nobody_watches(site: MarketSite, feed: LiveFeed) -> None:
    async def watching() -> None:
        assert not feed.is_building
        first, second = await watch(), await watch()
        assert (feed.n_watchers, feed.is_building) == (2, True)
        await next_snapshot(first)
        await first.disconnect()
        assert (feed.n_watchers, feed.is_building) == (1, True)
        await next_snapshot(second)
        await second.disconnect()
        assert (feed.n_watchers, feed.is_building) == (0, False)

    scenario(watching())


def test_who_comes_when_it_is_full_is_told_to_try_later(site: MarketSite, feed: LiveFeed) -> None:
    async def watching() -> None:
        first, second = await watch(), await watch()
        third = await watch()
        assert await closing_code(third) == 1013
        assert feed.n_watchers == 2
        await first.disconnect()
        fourth = await watch()
        await next_snapshot(fourth)
        for socket in (second, fourth):
            await socket.disconnect()

    scenario(watching())


@pytest.mark.parametrize("words", [{"text_data": "{}"}, {"bytes_data": b"x"}])
def test_who_says_something_is_shown_out(site: MarketSite, feed: LiveFeed, words: dict[str, Any]) -> None:
    async def watching() -> None:
        socket = await watch()
        await socket.send_to(**words)
        assert await closing_code(socket) == 1008
        await socket.disconnect()
        assert feed.n_watchers == 0

    scenario(watching())


def test_a_lost_store_stops_nothing(site: MarketSite, feed: LiveFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [ConnectionError("away"), ConnectionError("away"), ValueError("a bug")]

    def fragile(market: MarketService) -> Any:
        if failures:
            raise failures.pop()
        return read_swarm(market)

    monkeypatch.setattr(live_feed, "read_swarm", fragile)

    async def watching() -> None:
        socket = await watch()
        assert (await next_snapshot(socket))["problem"] is None
        assert failures == []
        await socket.disconnect()

    scenario(watching())


def test_those_who_ask_at_once_share_one_building(
    site: MarketSite, feed: LiveFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []

    def counted(market: MarketService) -> Any:
        built.append(1)
        return read_swarm(market)

    monkeypatch.setattr(live_feed, "read_swarm", counted)

    async def asking() -> None:
        found = await asyncio.gather(*(feed.snapshot() for _ in range(20)))
        assert len(set(found)) == 1

    scenario(asking())
    assert len(built) == 1


class Ticking:
    """A clock whose every reading is later."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        self.ms += 1
        return self.ms


async def closing_code(socket: WebsocketCommunicator) -> int:
    """The code of the close, after any other messages."""
    while True:
        message = await socket.receive_output(timeout=DEADLINE_S)
        if message["type"] == "websocket.close":
            return int(message["code"])


def test_processes_share_watchers_where_there_is_a_redis() -> None:
    alone, shared = layers_of(""), layers_of("rediss://:secret@redis.internal:6379/0")
    assert alone["default"]["BACKEND"] == "channels.layers.InMemoryChannelLayer"
    assert shared["default"]["BACKEND"] == "channels_redis.core.RedisChannelLayer"
    assert shared["default"]["CONFIG"]["hosts"] == ["rediss://:secret@redis.internal:6379/0"]
    assert alone["default"]["CONFIG"]["capacity"] == shared["default"]["CONFIG"]["capacity"] == 4
