"""The dashboard's feed over real web processes: they share one feed through Redis, and it outlives a lost Redis."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from frontend.live.feed import TURN_KEY
from tests.swarm.redis_fixture import RedisServer, running_redis
from tests.swarm.web_process import WebProcess, web_process

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def two(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WebProcess, WebProcess]]:
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    with web_process(redis, first) as one, web_process(redis, second, KVASIR_LIVE_SOCKETS="2") as other:
        yield one, other


def live(web: WebProcess) -> Any:
    return websockets.connect(web.url.replace("http", "ws") + "/live", max_size=None)


async def next_snapshot(socket: ClientConnection) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        data = await socket.recv()
    assert isinstance(data, bytes)
    return json.loads(gzip.decompress(data))


def bounded(work: Any) -> Any:
    async def whole() -> Any:
        async with asyncio.timeout(2 * DEADLINE_S):
            return await work

    return asyncio.run(whole())


def test_all_processes_tell_one_feed(two: tuple[WebProcess, WebProcess], redis: RedisServer) -> None:
    async def watching() -> tuple[list[int], list[int]]:
        async with live(two[0]) as one, live(two[1]) as other:
            return [(await next_snapshot(one))["at"] for _ in range(4)], [
                (await next_snapshot(other))["at"] for _ in range(4)
            ]

    mine, theirs = bounded(watching())
    assert mine == sorted(set(mine)) and theirs == sorted(set(theirs))
    # each builds only when it has the turn, so what one process built is what both told
    assert set(mine) & set(theirs)
    with redis.client() as client:
        assert client.pttl(TURN_KEY) <= 900


def test_the_socket_and_the_route_say_the_same(two: tuple[WebProcess, WebProcess]) -> None:
    async def watching() -> Any:
        async with live(two[0]) as socket:
            return await next_snapshot(socket)

    told, asked = bounded(watching()), httpx.get(f"{two[1].url}/live/snapshot", timeout=DEADLINE_S).json()
    moving = {"at", "throughput"}
    assert {name: value for name, value in told.items() if name not in moving} == {
        name: value for name, value in asked.items() if name not in moving
    }
    assert told["model"]["n_expert"] == 16


def test_as_many_watch_as_may(two: tuple[WebProcess, WebProcess]) -> None:
    async def watching() -> None:
        async with live(two[1]) as one, live(two[1]) as other, live(two[1]) as third:
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await next_snapshot(third)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013
            await next_snapshot(one)
            await other.send("hello")
            with pytest.raises(websockets.ConnectionClosed) as shown_out:
                while True:
                    await next_snapshot(other)
            assert shown_out.value.rcvd is not None and shown_out.value.rcvd.code == 1008

    bounded(watching())


def test_it_comes_back_with_redis(two: tuple[WebProcess, WebProcess], redis: RedisServer) -> None:
    async def asked(status: int) -> None:
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            while (await client.get(f"{two[0].url}/live/snapshot")).status_code != status:
                await asyncio.sleep(0.1)

    async def watched() -> bool:
        """Whether a new line brings snapshots: the first one may meet a connection of the old Redis, as a page does."""
        try:
            async with live(two[0]) as socket:
                return (await next_snapshot(socket))["problem"] is None
        except websockets.WebSocketException:
            return False

    async def watching() -> None:
        async with live(two[0]) as socket:
            await next_snapshot(socket)
            redis.kill()
            await asked(503)
        redis.start()
        await asked(200)
        while not await watched():
            await asyncio.sleep(0.1)

    bounded(watching())


def test_a_page_may_connect_to_it(two: tuple[WebProcess, WebProcess]) -> None:
    page = httpx.get(f"{two[0].url}/dashboard", timeout=DEADLINE_S)
    assert page.status_code == 200
    host = two[0].url.removeprefix("http://")
    assert f"ws://{host}" in page.headers["content-security-policy"]
