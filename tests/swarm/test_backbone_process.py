"""The parts of a backbone process against a real Redis: writing once, taking once, signs of life, hearing cancels."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from backbone.engine.sampling.choice import Sampled, TokenLogprob
from backbone.engine.serving.jobs import NewToken
from backbone.process.backbone_process import BackboneProcess, redis_connection
from backbone.process.cancel_listener import CancelListener
from backbone.process.event_writer import EventWriter
from backbone.process.heartbeat import Heartbeat
from backbone.process.request_intake import Claim, claim, refuse_redelivery
from backbone.service_settings import ServiceSettings
from backbone.stream import keys
from backbone.stream.directory import ModelEntry
from backbone.stream.events import Done, End, Event, Failed, Queued, Started, SwarmShare, Token, Usage, event_from_json
from backbone.stream.payloads import GenerationRequest
from kvasir.errors import ConfigError
from tests.swarm.backbone_service import MODEL, completion, endless, write_model
from tests.swarm.redis_fixture import RedisServer, running_redis

DEADLINE_S = 30.0
DONE = Done(Usage(1, 2), SwarmShare(3, 0.0, 0.0, 1.0))
ENTRY = ModelEntry("demo", "fp_1", 64, "qwen3moe", 7)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(server: RedisServer) -> Iterator[Redis]:
    with redis_connection(server.url) as client:
        client.flushall()
        yield client


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.005)


def new_id() -> str:
    return uuid.uuid4().hex


def entries(client: Redis, request_id: str) -> list[tuple[str, Event]]:
    found: Any = client.xrange(keys.stream_key(request_id))
    return [(entry_id, event_from_json(fields["e"])) for entry_id, fields in found]


class Flaky:
    """A client whose scripts fail after they were carried out, as when a connection breaks under the reply."""

    def __init__(self, client: Redis, n_failures: int) -> None:
        self.client = client
        self.n_failures = n_failures
        self.n_executed = 0

    def register_script(self, text: str) -> Any:
        script = self.client.register_script(text)

        def failing(*arguments: Any) -> Any:
            reply = script(*arguments)
            self.n_executed += 1
            if self.n_executed <= self.n_failures:
                raise RedisConnectionError("the connection broke")
            return reply

        return failing


def writer(client: Any, lost: list[str], **options: Any) -> EventWriter:
    return EventWriter(client, lost.append, **options)


def test_events_are_written_in_order_and_expire(redis: Redis) -> None:
    lost: list[str] = []
    writing, request_id = writer(redis, lost), new_id()
    stream = writing.open(request_id, 60.0)
    writing.start()
    writing.put([(request_id, Queued(1)), ("not open here", Queued(1))])
    writing.put([(request_id, Token(0, 5, "a"))])
    until(lambda: redis.exists(keys.stream_key(request_id)))
    assert 60 < int(str(redis.ttl(keys.stream_key(request_id)))) <= 60 + keys.KEEP_S
    writing.put([(request_id, DONE)])
    assert stream.finished.wait(DEADLINE_S)
    writing.put([(request_id, Queued(9))])  # nothing follows the last event
    writing.stop(DEADLINE_S)
    assert entries(redis, request_id) == [("1-0", Queued(1)), ("2-0", Token(0, 5, "a")), ("3-0", DONE)]
    assert int(str(redis.ttl(keys.stream_key(request_id)))) <= keys.KEEP_S
    assert not redis.exists(keys.stream_key("not open here")) and lost == []


def test_what_piles_up_is_one_write(redis: Redis) -> None:
    flaky, request_id = Flaky(redis, 0), new_id()
    writing = writer(flaky, [])
    writing.open(request_id, 60.0)
    for number in range(50):
        writing.put([(request_id, Token(0, number, "x"))])
    writing.start()
    writing.stop(DEADLINE_S)
    assert len(entries(redis, request_id)) == 50 and flaky.n_executed == 1


def test_a_stream_keeps_no_more_than_its_bound(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis drops the oldest in whole nodes of 100 entries, so up to one node more than the bound stays."""
    monkeypatch.setattr("backbone.process.event_writer.MAX_EVENTS", 100)
    request_id = new_id()
    writing = writer(redis, [])
    writing.open(request_id, 60.0)
    writing.put([(request_id, Token(0, number, "x")) for number in range(1000)])
    writing.start()
    writing.stop(DEADLINE_S)
    kept = entries(redis, request_id)
    assert 100 <= len(kept) <= 200
    assert kept[-1] == ("1000-0", Token(0, 999, "x"))


def test_a_write_that_is_repeated_doubles_nothing(redis: Redis) -> None:
    lost: list[str] = []
    request_id = new_id()
    writing = writer(Flaky(redis, 2), lost)
    stream = writing.open(request_id, 60.0)
    writing.start()
    writing.put([(request_id, Token(0, 1, "a")), (request_id, DONE)])
    assert stream.finished.wait(DEADLINE_S)
    writing.stop(DEADLINE_S)
    assert entries(redis, request_id) == [("1-0", Token(0, 1, "a")), ("2-0", DONE)] and lost == []


def test_after_a_lost_event_nothing_but_a_failure_follows(redis: Redis) -> None:
    lost: list[str] = []
    flaky, request_id, other = Flaky(redis, 4), new_id(), new_id()
    writing = writer(flaky, lost)
    stream, second = writing.open(request_id, 60.0), writing.open(other, 60.0)
    writing.start()
    writing.put([(request_id, Token(0, 1, "a")), (other, DONE)])
    until(lambda: lost)
    assert "cannot be reached" in lost[0]
    assert second.finished.wait(DEADLINE_S)  # its last event is lost, its task must end all the same
    writing.put([(request_id, Token(0, 2, "b")), (request_id, DONE)])
    assert stream.finished.wait(DEADLINE_S)
    writing.stop(DEADLINE_S)
    last = entries(redis, request_id)[-1][1]
    assert isinstance(last, Failed) and last.code == "redis_lost"
    assert Token(0, 2, "b") not in [event for _, event in entries(redis, request_id)]


def test_a_full_queue_loses_requests_and_never_blocks(redis: Redis) -> None:
    lost: list[str] = []
    writing, request_id = writer(redis, lost, max_batches=1), new_id()
    stream = writing.open(request_id, 60.0)
    writing.put([(request_id, Queued(1))])
    writing.put([(request_id, Token(0, 1, "a"))])
    assert lost == ["the message store is too slow for the generated tokens"] and stream.is_lost
    writing.put([(request_id, DONE)])
    assert stream.finished.is_set()


def test_a_request_is_taken_once(redis: Redis) -> None:
    request_id = new_id()
    assert claim(redis, request_id, "b1", 60.0) is Claim.OURS
    assert claim(redis, request_id, "b1", 60.0) is claim(redis, request_id, "b2", 60.0) is Claim.TAKEN
    cancelled = new_id()
    redis.set(keys.cancelled_key(cancelled), "1")
    assert claim(redis, cancelled, "b1", 60.0) is Claim.CANCELLED


def test_a_redelivery_is_refused_unless_the_owner_lives(redis: Redis) -> None:
    request_id = new_id()
    claim(redis, request_id, "b1", 60.0)
    redis.set(keys.lease_key("b1"), "1")
    assert not refuse_redelivery(redis, request_id, "b2")
    redis.delete(keys.lease_key("b1"))
    redis.xadd(keys.stream_key(request_id), {"e": '{"kind":"queued","position":1}'}, id="1-0")
    assert refuse_redelivery(redis, request_id, "b2")
    (_, (entry_id, event)) = entries(redis, request_id)
    assert entry_id == "2-0" and isinstance(event, Failed) and event.code == "backbone_lost"
    assert not refuse_redelivery(redis, request_id, "b2")  # it has its end


def test_signs_of_life_come_and_go(redis: Redis) -> None:
    healthy, sick = [True], threading.Event()
    heart = Heartbeat(redis, "b1", ENTRY, stats=lambda: {"tokens": 3}, is_healthy=lambda: healthy[0], on_sick=sick.set)
    heart.start()
    assert redis.exists(keys.lease_key("b1"))
    model: Any = redis.hgetall(keys.model_key("demo"))
    assert model["fingerprint"] == "fp_1"
    assert redis.hgetall(keys.stats_key("b1")) == {"tokens": "3"}
    healthy[0] = False
    assert sick.wait(DEADLINE_S)
    assert not redis.exists(keys.lease_key("b1"))
    heart.stop()


def test_a_heart_beats_on_when_redis_is_away(server: RedisServer, redis: Redis) -> None:
    with redis_connection("redis://127.0.0.1:1/0") as nowhere:
        Heartbeat(
            nowhere, "b1", ENTRY, stats=lambda: {"tokens": 3}, is_healthy=lambda: True, on_sick=lambda: None
        ).beat()
    assert not redis.exists(keys.lease_key("b1"))


def test_cancels_are_heard_and_caught_up_with(redis: Redis) -> None:
    heard: list[str] = []
    missed = new_id()
    redis.set(keys.cancelled_key(missed), "1")
    listener = CancelListener(redis, heard.append, lambda: [missed, new_id()])
    listener.start()
    until(lambda: heard == [missed])
    redis.publish(keys.CANCEL_CHANNEL, "now")
    until(lambda: heard == [missed, "now"])
    listener.stop()


@pytest.fixture(scope="module")
def process(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackboneProcess]:
    model = write_model(tmp_path_factory.mktemp("model"))
    settings = ServiceSettings(model, MODEL, n_slot=2, n_ctx=2048, max_waiting=2, n_threads=1, stop_s=0.0)
    started = BackboneProcess(settings, server.url, lambda: None)
    started.start()
    yield started
    started.stop()


def serve(process: BackboneProcess, request: GenerationRequest) -> threading.Thread:
    thread = threading.Thread(target=process.generate, args=(request.to_json(),))
    thread.start()
    return thread


def finish(thread: threading.Thread) -> None:
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_leaving_is_no_sickness(server: RedisServer, tmp_path: Path) -> None:
    sick: list[bool] = []
    settings = ServiceSettings(write_model(tmp_path), MODEL, n_slot=1, n_ctx=64, n_threads=1, stop_s=0.0)
    process = BackboneProcess(settings, server.url, lambda: sick.append(True))
    process.start()
    process.drain()
    assert process._is_healthy()  # its lease stands until its last events are written
    process.stop()
    assert not sick
    with server.client() as client:
        assert not client.exists(keys.lease_key(process.id))


def test_a_process_serves_a_request_once(process: BackboneProcess, redis: Redis) -> None:
    request = completion(max_tokens=3, logprobs=1)
    finish(serve(process, request))
    events = [event for _, event in entries(redis, request.request_id)]
    assert isinstance(events[0], Started) and isinstance(events[-2], End) and isinstance(events[-1], Done)
    assert events[-1].kvasir.fallback == 1.0
    finish(serve(process, request))  # delivered again
    assert len(entries(redis, request.request_id)) == len(events)
    assert redis.get(keys.owner_key(request.request_id)) == process.id


def test_what_is_hot_is_told_in_usage_and_stats(server: RedisServer, redis: Redis, tmp_path: Path) -> None:
    settings = ServiceSettings(write_model(tmp_path), MODEL, n_slot=1, n_ctx=64, n_threads=1, stop_s=0.0, hot_bytes=1)
    process = BackboneProcess(settings, server.url, lambda: None)
    assert process._hot is not None
    process._hot._plan = (frozenset(range(16)), frozenset())  # as a plan that found the first layer worth it
    process.start()
    request = completion(max_tokens=3)
    finish(serve(process, request))
    done = entries(redis, request.request_id)[-1][1]
    stats = process._stats()
    process.stop()
    assert isinstance(done, Done) and (done.kvasir.hot, done.kvasir.fallback) == (0.5, 0.5)
    assert stats["row_experts_hot"] == stats["row_experts_fallback"] > 0
    assert stats["hot_experts"] == 16 and stats["hot_bytes"] > 0


def test_a_running_request_that_comes_again_is_left_alone(process: BackboneProcess, redis: Redis) -> None:
    request = replace(endless(), sampling=replace(endless().sampling, max_tokens=1900))
    running = serve(process, request)
    until(lambda: redis.exists(keys.stream_key(request.request_id)))
    finish(serve(process, request))
    redis.publish(keys.CANCEL_CHANNEL, request.request_id)
    finish(running)
    last = entries(redis, request.request_id)[-1][1]
    assert isinstance(last, Failed) and last.code == "cancelled"


def test_a_process_refuses_with_words(process: BackboneProcess, redis: Redis) -> None:
    request = completion(max_tokens=5000)
    finish(serve(process, request))
    ((_, event),) = entries(redis, request.request_id)
    assert isinstance(event, Failed) and (event.status, event.code) == (400, "context_length_exceeded")
    process.generate("{}")  # nothing that can be answered


def test_a_bug_in_reading_a_request_is_an_answer(
    process: BackboneProcess, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: GenerationRequest) -> None:
        raise ArithmeticError("a bug")

    monkeypatch.setattr(process._intake, "job", broken)
    request = completion()
    finish(serve(process, request))
    ((_, event),) = entries(redis, request.request_id)
    assert isinstance(event, Failed) and event.status == 500 and "bug" not in event.message


def test_outputs_without_a_token_have_no_bytes(process: BackboneProcess) -> None:
    beyond = process._loaded.tokenizer.n_vocab
    sampled = Sampled(5, -1.0, (TokenLogprob(beyond, -0.5),))
    event = process._mapper.event("r", NewToken(0, sampled, "x"))
    assert isinstance(event, Token) and event.top_logprobs[0].data == b"" and event.data


def test_a_request_is_not_taken_while_redis_is_away(model_process: BackboneProcess) -> None:
    finish(serve(model_process, completion()))
    assert model_process._writer.request_ids == []


@pytest.fixture
def model_process(tmp_path: Path) -> Iterator[BackboneProcess]:
    """A process whose Redis has gone."""
    model = write_model(tmp_path)
    settings = ServiceSettings(model, MODEL, n_slot=1, n_ctx=64, n_threads=1, stop_s=0.0)
    process = BackboneProcess(settings, "redis://127.0.0.1:1/0", lambda: None)
    process._writer.start()
    process._service.start()
    yield process
    process._service.stop(0.0)
    process._writer.stop(5.0)
    process._stack.close()


def test_settings_that_cannot_be_served_say_so(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    settings = ServiceSettings(model, MODEL, n_threads=1)
    with pytest.raises(ConfigError, match="budget is 1000 B"):
        BackboneProcess(replace(settings, kv_budget_bytes=1000), "redis://127.0.0.1:1/0", lambda: None)
    with pytest.raises(ConfigError, match="KVASIR_RELAYS"):
        BackboneProcess(
            replace(settings, n_slot=1, n_ctx=64, relays=("wss://a",)), "redis://127.0.0.1:1/0", lambda: None
        )
