"""The web's side over a real Redis, with a backbone that the test plays: order, resuming, and each way to lose one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redis.asyncio import Redis

from backbone.stream import client as stream
from backbone.stream.client import StreamSettings
from backbone.stream.directory import ModelEntry, backbone_stats, models
from backbone.stream.events import Done, Event, Failed, Queued, SwarmShare, Token, Usage, event_to_json
from backbone.stream.keys import (
    BACKBONES,
    CANCEL_CHANNEL,
    MODEL_NAMES,
    QUEUE,
    cancelled_key,
    entry_id,
    lease_key,
    model_key,
    owner_key,
    queued_key,
    stats_key,
    stream_key,
)
from backbone.stream.payloads import GenerationRequest, RequestKind
from backbone.stream.reader import StreamReader
from backbone.stream.silence import ReadLimits
from tests.swarm.redis_fixture import RedisServer, running_redis

T = TypeVar("T")
TOKENS: list[Event] = [Token(0, number, f"t{number}") for number in range(4)]
DONE = Done(Usage(2, 4), SwarmShare(8, 1.0, 0.0, 0.0))
LIMITS = ReadLimits(queue_wait_s=5.0, no_backbone_s=2.0, block_s=0.05)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(autouse=True)
def empty(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()


def request() -> GenerationRequest:
    return GenerationRequest(uuid.uuid4().hex, "demo", RequestKind.COMPLETION, 60.0, 0.0, prompt="Once")


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def guarded() -> T:
        try:
            return await asyncio.wait_for(work(), 30)
        finally:
            await stream.close_clients()

    return asyncio.run(guarded())


def write(server: RedisServer, request_id: str, events: list[Event], first: int = 1) -> None:
    with server.client() as client:
        for number, event in enumerate(events, first):
            client.xadd(stream_key(request_id), {"e": event_to_json(event)}, id=entry_id(number))


def own(server: RedisServer, request_id: str, *, alive: bool) -> None:
    with server.client() as client:
        client.set(owner_key(request_id), "b1")
        if alive:
            client.set(lease_key("b1"), "1")
            client.sadd(BACKBONES, "b1")


def read_all(server: RedisServer, request_id: str, last_id: str = "0", **limits: Any) -> list[tuple[str, Event]]:
    async def work() -> list[tuple[str, Event]]:
        reader = StreamReader(stream.redis_client(server.url), replace(LIMITS, **limits))
        return [entry async for entry in reader.read(request_id, last_id)]

    return run(work)


def test_a_stream_is_read_in_order_to_its_end(server: RedisServer) -> None:
    request_id = request().request_id
    write(server, request_id, [*TOKENS, DONE])
    entries = read_all(server, request_id)
    assert [event for _, event in entries] == [*TOKENS, DONE]
    assert [entry for entry, _ in entries] == [entry_id(number) for number in range(1, 6)]


def test_a_dropped_reader_resumes_where_it_was(server: RedisServer) -> None:
    request_id = request().request_id
    write(server, request_id, [*TOKENS, DONE])
    assert [event for _, event in read_all(server, request_id, "3-0")] == [TOKENS[3], DONE]
    with pytest.raises(ValueError, match="not an id of this stream"):
        read_all(server, request_id, "3-7")


def test_a_reader_waits_for_what_comes_later(server: RedisServer) -> None:
    request_id = request().request_id
    own(server, request_id, alive=True)

    async def work() -> list[Event]:
        found = []
        async for entry in StreamReader(stream.redis_client(server.url), LIMITS).read(request_id):
            found.append(entry[1])
            if len(found) == 1:
                write(server, request_id, TOKENS[1:], 2)
            if len(found) == 4:
                write(server, request_id, [DONE], 5)
        return found

    write(server, request_id, TOKENS[:1])
    assert run(work) == [*TOKENS, DONE]


def test_many_readers_share_one_read(server: RedisServer) -> None:
    requests = [request().request_id for _ in range(12)]
    for request_id in requests:
        own(server, request_id, alive=True)
        write(server, request_id, TOKENS[:1])

    async def work() -> list[list[Event]]:
        reader = StreamReader(stream.redis_client(server.url), LIMITS)
        begun = 0

        async def follow(request_id: str, last_id: str) -> list[Event]:
            nonlocal begun
            found = []
            async for entry in reader.read(request_id, last_id):
                found.append(entry.event)
                begun += len(found) == 1
                if begun == len(requests) and len(found) == 1:  # all wait now, but for this one
                    with server.client() as client:
                        info: Any = client.info("clients")
                        assert info["blocked_clients"] <= 1
                    for other in requests:
                        write(server, other, [*TOKENS[1:], DONE], 2)
            return found

        late = follow(requests[0], "1-0")  # two readers of one stream, at different places
        return await asyncio.gather(*(follow(request_id, "0") for request_id in requests), late)

    *found, late = run(work)
    assert found == [[*TOKENS, DONE]] * len(requests)
    assert late == [*TOKENS[1:], DONE]


def test_a_new_reader_interrupts_the_read_of_the_others(server: RedisServer) -> None:
    silent, new = request().request_id, request().request_id
    write(server, silent, TOKENS[:1])
    write(server, new, [*TOKENS, DONE])

    async def work() -> list[Event]:
        async with Redis.from_url(server.url, decode_responses=True, socket_timeout=None) as client:
            reader = StreamReader(client, replace(LIMITS, block_s=1000.0))
            first = reader.read(silent)
            assert (await anext(first)).event == TOKENS[0]
            found = [entry.event async for entry in reader.read(new)]
            await first.aclose()
            await reader.close()
            return found

    assert run(work) == [*TOKENS, DONE]


def test_a_slow_reader_holds_nobody_up_and_loses_nothing(server: RedisServer) -> None:
    slow, quick = request().request_id, request().request_id
    many: list[Event] = [Token(0, number, "") for number in range(1500)]
    write(server, slow, [*many, DONE])
    write(server, quick, [*many, DONE])

    async def work() -> tuple[list[Event], list[Event]]:
        reader = StreamReader(stream.redis_client(server.url), LIMITS)
        waiting = reader.read(slow)
        first = (await anext(waiting)).event
        others = [entry.event async for entry in reader.read(quick)]
        return [first, *[entry.event async for entry in waiting]], others

    assert run(work) == ([*many, DONE], [*many, DONE])


def failure(entries: list[tuple[str, Event]]) -> tuple[str, str, int]:
    last_id, event = entries[-1]
    assert isinstance(event, Failed)
    return last_id, event.code, event.status


def test_a_backbone_without_a_lease_is_lost(server: RedisServer) -> None:
    request_id = request().request_id
    own(server, request_id, alive=False)
    write(server, request_id, TOKENS)
    entries = read_all(server, request_id)
    assert [event for _, event in entries[:-1]] == TOKENS
    assert failure(entries) == ("4-0", "backbone_lost", 502)


def test_nobody_takes_the_request(server: RedisServer) -> None:
    request_id = request().request_id
    assert failure(read_all(server, request_id)) == ("0", "redis_lost", 503)  # it is not even on the queue
    with server.client() as client:
        client.set(queued_key(request_id), "1")
    assert failure(read_all(server, request_id, no_backbone_s=0.1)) == ("0", "no_backbone", 503)
    own(server, "other", alive=True)
    assert failure(read_all(server, request_id, queue_wait_s=0.1)) == ("0", "queue_timeout", 503)


def test_a_lost_store_and_a_gap_are_errors(server: RedisServer) -> None:
    request_id = request().request_id
    assert failure(read_all(server, request_id, "3-0")) == ("3-0", "redis_lost", 503)
    write(server, request_id, TOKENS[2:], 3)
    assert failure(read_all(server, request_id))[1] == "stream_gap"
    other = request().request_id
    with server.client() as client:
        client.xadd(stream_key(other), {"e": "nonsense"}, id="1-0")
    assert failure(read_all(server, other))[1] == "stream_gap"


def test_without_redis_everything_is_a_typed_error(tmp_path: Path) -> None:
    with running_redis(tmp_path) as gone:
        settings = StreamSettings(gone.url, 4, 5.0)

    async def work() -> list[Event]:
        assert not await stream.cancel(request().request_id, settings)
        with pytest.raises(stream.RedisLost, match="could not be queued"):
            await stream.enqueue(request(), settings)
        return [entry.event async for entry in stream.read(request().request_id, streams=settings)]

    (event,) = run(work)
    assert isinstance(event, Failed) and event.code == "redis_lost"


def test_a_request_reaches_the_queue_and_a_full_queue_refuses(server: RedisServer) -> None:
    settings = StreamSettings(server.url, 2, 5.0)

    async def work() -> None:
        assert await stream.enqueue(request(), settings) == 0
        assert await stream.enqueue(request(), settings) == 1
        with pytest.raises(stream.QueueFull, match="2 requests are waiting") as caught:
            await stream.enqueue(request(), settings)
        assert caught.value.retry_after_s > 0

    run(work)
    with server.client() as client:
        assert client.llen(QUEUE) == 2


def test_the_sender_survives_an_outage(tmp_path: Path) -> None:
    with running_redis(tmp_path) as server:
        settings = StreamSettings(server.url, 9, 5.0)
        run(lambda: stream.enqueue(request(), settings))
        server.kill()
        server.start()
        run(lambda: stream.enqueue(request(), settings))
        with server.client() as client:
            assert client.llen(QUEUE) == 1


def test_cancelling_is_heard_now_and_later(server: RedisServer) -> None:
    request_id = request().request_id
    with server.client() as client, client.pubsub() as listener:
        listener.subscribe(CANCEL_CHANNEL)
        assert listener.get_message(timeout=5) is not None
        assert run(lambda: stream.cancel(request_id, StreamSettings(server.url, 1, 1.0)))
        message = listener.get_message(timeout=5)
        assert message is not None and message["data"] == request_id
        assert client.exists(cancelled_key(request_id))


def test_the_directory_lists_what_lives(server: RedisServer) -> None:
    entry = ModelEntry("demo", "fp_1", 512, "qwen3moe", 7, has_chat=True)
    own(server, "any", alive=True)
    with server.client() as client:
        client.sadd(MODEL_NAMES, "demo", "expired")
        client.hset(model_key("demo"), mapping=dict(entry.to_fields()))
        client.sadd(BACKBONES, "expired")
        client.hset(stats_key("b1"), mapping={"tokens": 5, "running": 1})

    async def work() -> tuple[Any, Any]:
        client = stream.redis_client(server.url)
        return await models(client), await backbone_stats(client)

    assert run(work) == ([entry], {"b1": {"tokens": 5.0, "running": 1.0}})


def test_queued_events_travel(server: RedisServer) -> None:
    request_id = request().request_id
    write(server, request_id, [Queued(2), Queued(1), DONE])
    assert [event for _, event in read_all(server, request_id)] == [Queued(2), Queued(1), DONE]
