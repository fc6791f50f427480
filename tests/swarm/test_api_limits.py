"""Token buckets in a real Redis: bursts, refill, and that they forget themselves. Time is the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from backbone.stream import client as stream
from market.rate_limits import Rate, take
from tests.swarm.redis_fixture import RedisServer, running_redis

T = TypeVar("T")
RATE = Rate(per_minute=60, burst=3)  # one a second


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(autouse=True)
def empty(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def guarded() -> T:
        try:
            return await asyncio.wait_for(work(), 30)
        finally:
            await stream.close_clients()

    return asyncio.run(guarded())


def waits(server: RedisServer, times: list[float], rate: Rate = RATE, bucket: str = "key:a") -> list[float]:
    async def work() -> list[float]:
        return [
            await take(stream.redis_client(server.url), bucket, rate, 1_000_000 + int(1000 * time)) for time in times
        ]

    return run(work)


def test_a_burst_then_the_wait_until_there_is_one(server: RedisServer) -> None:
    assert waits(server, [0, 0, 0, 0, 0.25]) == [0, 0, 0, 1.0, 0.75]


def test_buckets_fill_up_to_the_burst_and_no_further(server: RedisServer) -> None:
    assert waits(server, [0, 0, 0, 1, 1.5]) == [0, 0, 0, 0, 0.5]
    assert waits(server, [100, 100, 100, 100]) == [0, 0, 0, 1.0]


def test_who_is_refused_pays_nothing(server: RedisServer) -> None:
    assert waits(server, [0, 0, 0, *[0.5] * 5, 1.0]) == [0, 0, 0, *[0.5] * 5, 0]


def test_a_clock_that_goes_back_gives_nothing_away(server: RedisServer) -> None:
    assert waits(server, [50, 50, 50, 0, 0]) == [0, 0, 0, 1.0, 1.0]


def test_buckets_are_apart(server: RedisServer) -> None:
    assert waits(server, [0, 0, 0, 0])[-1] > 0
    assert waits(server, [0], bucket="key:b") == [0]


def test_many_at_once_get_the_burst_exactly(server: RedisServer) -> None:
    async def work() -> list[float]:
        client = stream.redis_client(server.url)
        return await asyncio.gather(*(take(client, "key:a", Rate(60, 20), 1_000_000) for _ in range(50)))

    assert sum(wait == 0 for wait in run(work)) == 20


@pytest.mark.parametrize("rate", [RATE, Rate(1, 1), Rate(1_000_000, 1), Rate(600, 256)])
def test_a_bucket_forgets_itself_once_it_would_be_full(server: RedisServer, rate: Rate) -> None:
    assert waits(server, [0], rate) == [0]
    with server.client() as client:
        left_ms: Any = client.pttl("rate:key:a")
    assert left_ms <= rate.burst * 60_000 / rate.per_minute + 1


def test_refilling_in_small_steps_loses_nothing(server: RedisServer) -> None:
    times = [0.0, 0.0, 0.0, *[step / 10 for step in range(1, 41)]]
    assert sum(wait == 0 for wait in waits(server, times)) == 3 + 4
