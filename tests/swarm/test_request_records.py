"""Records of requests in a real Redis, and the whole way: a worker lies to a backbone process, which flags its text."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from backbone.engine.dispatch.counters import Served
from backbone.engine.serving.token_sources import LastTokens, SourceTable, TokenTrace, sources_of_rows
from backbone.engine.trust.exposure import ExposureBook, Flagged
from backbone.engine.trust.guard import WorkGuard
from backbone.engine.trust.standing import TrustPolicy
from backbone.process import market_link
from backbone.process.backbone_process import BackboneProcess, redis_connection
from backbone.process.event_mapping import MAX_NAMED, OPERATORS
from backbone.process.record_keeper import RecordKeeper
from backbone.service_settings import ServiceSettings
from backbone.stream.events import Done, Event, Failed, Started, SwarmShare, Usage, event_from_json
from backbone.stream.keys import RECORD_KEEP_S, RECORDS, TRACE_KEEP_S, record_key, stream_key, trace_key
from backbone.stream.payloads import GenerationRequest
from backbone.stream.request_record import RequestRecord, read_record
from backbone.stream.request_trace import WORKER, RequestTrace, TraceSource, read_trace
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.model_card import ModelCard
from kvasir.worker.serving.holdings import open_holdings
from market.coverage.traffic import total_traffic, traffic_key
from tests.site.database import database_at
from tests.swarm.backbone_service import MODEL, completion, write_model
from tests.swarm.liars import EveryNth
from tests.swarm.redis_fixture import RedisServer, running_redis
from tests.swarm.swarm import cut, lying, serving

DONE = Done(Usage(1, 2), SwarmShare(3, 1.0, 0.0, 0.0))
FAILED = Failed(504, "deadline_exceeded", "late")
N_ENTRY_ANSWERS = 2  # one question a layer
CHECKED_AFTER_USE = TrustPolicy(proven_after=0, first_share=1.0, least_share=1.0)
NEVER_CHECKED = TrustPolicy(proven_after=0, first_share=0.0, least_share=0.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(server: RedisServer) -> Iterator[Redis]:
    with redis_connection(server.url) as client:
        client.flushall()
        yield client


def read(server: RedisServer, request_id: str) -> RequestRecord | None:
    async def work() -> RequestRecord | None:
        async with AsyncRedis.from_url(server.url, decode_responses=True) as client:
            return await read_record(client, request_id)

    return asyncio.run(work())


def found(server: RedisServer, request_id: str) -> RequestRecord:
    record = read(server, request_id)
    assert record is not None
    return record


def ended(keeper: RecordKeeper, *, end: Event = DONE, is_strict: bool = False) -> GenerationRequest:
    request = replace(completion(), strict=is_strict, owner="k1")
    keeper.open(request)
    keeper.end([(request.request_id, end)])
    keeper.close(request.request_id)
    return request


def test_it_works(server: RedisServer, redis: Redis) -> None:
    keeper = RecordKeeper(redis, ExposureBook(), now=lambda: 1234.5)
    for end in (DONE, FAILED):
        request = ended(keeper, end=end, is_strict=True)
        assert read(server, request.request_id) == RequestRecord(
            request.request_id, "k1", MODEL, request.created, 1234.5, True, end
        )
        lives_s: object = redis.ttl(record_key(request.request_id))
        assert isinstance(lives_s, int) and RECORD_KEEP_S - 60 < lives_s <= RECORD_KEEP_S
    assert read(server, "f" * 32) is None


def test_a_lie_found_later_marks_the_record(server: RedisServer, redis: Redis) -> None:
    book = ExposureBook()
    keeper = RecordKeeper(redis, book)
    book.note("liar", ["not ended"])
    request = completion()
    book.note("liar", [request.request_id])
    book.note("10.0.0.1:7070", [request.request_id])
    keeper.open(request)
    keeper.end([(request.request_id, DONE)])
    before = found(server, request.request_id)
    assert (before.unconfirmed, before.flags) == (("liar", OPERATORS), {})
    keeper.flag(book.flag("liar", "e1"))
    keeper.flush()
    assert found(server, request.request_id).flags == {"e1": "liar"}
    keeper.flag(book.flag("10.0.0.1:7070", "e2"))
    keeper.flush()
    assert found(server, request.request_id).flags == {"e1": "liar", "e2": OPERATORS}
    assert read(server, "not ended") is None


def test_a_lie_told_before_the_end_is_written_is_not_lost(server: RedisServer, redis: Redis) -> None:
    keeper = RecordKeeper(redis, ExposureBook())  # one whose book is behind: the two threads crossed
    request = completion()
    keeper.open(request)
    keeper.flag(Flagged("liar", "e1", (request.request_id,), True))
    keeper.flush()
    keeper.end([(request.request_id, DONE)])
    assert found(server, request.request_id).flags == {"e1": "liar"}


def test_what_redis_did_not_take_is_written_later(server: RedisServer, redis: Redis, tmp_path: Path) -> None:
    with running_redis(tmp_path) as other, redis_connection(other.url) as client:
        book = ExposureBook()
        keeper = RecordKeeper(client, book)
        other.kill()
        requests = [completion() for _ in range(3)]
        for request in requests:
            book.note("liar", [request.request_id])
            keeper.open(request)
            keeper.end([(request.request_id, DONE)])
        keeper.flag(book.flag("liar", "e1"))
        keeper.flush()
        other.start()
        keeper.flush()
        assert [found(other, request.request_id).flags for request in requests] == [{"e1": "liar"}] * 3


def test_records_are_bounded(server: RedisServer, redis: Redis) -> None:
    seconds = iter(range(1000, 2000))
    book = ExposureBook()
    keeper = RecordKeeper(redis, book, max_records=3, now=lambda: next(seconds))
    requests = [ended(keeper) for _ in range(5)]
    assert [read(server, request.request_id) is not None for request in requests] == [False, False, True, True, True]
    assert redis.zcard(RECORDS) == 3
    crowded = completion()
    for number in range(MAX_NAMED + 9):
        book.note(f"node{number:03}", [crowded.request_id])
    keeper.open(crowded)
    keeper.end([(crowded.request_id, DONE)])
    assert len(found(server, crowded.request_id).unconfirmed) == MAX_NAMED


def traced(worker_id: str = "10.0.0.1:7070") -> TokenTrace:
    last, rows = LastTokens(8), np.array([0, 0], np.int32)
    (token,) = sources_of_rows(SourceTable(), [Served(0, worker_id, rows, "worker")], np.array([0]))
    last.add(token)
    return last.trace()


def trace(server: RedisServer, request_id: str) -> RequestTrace | None:
    async def work() -> RequestTrace | None:
        async with AsyncRedis.from_url(server.url, decode_responses=True) as client:
            return await read_trace(client, request_id)

    return asyncio.run(work())


def test_a_trace_is_there_with_the_record_and_expires_sooner(server: RedisServer, redis: Redis) -> None:
    nodes = {"relay:7": "n1"}
    keeper = RecordKeeper(redis, ExposureBook(), node_of=lambda worker_id: nodes.get(worker_id, worker_id))
    for end, worker_id, name in ((DONE, "10.0.0.1:7070", OPERATORS), (FAILED, "relay:7", "n1")):
        request = completion()
        keeper.open(request)
        keeper.trace(request.request_id, traced(worker_id))
        keeper.end([(request.request_id, end)])
        kept = trace(server, request.request_id)
        assert kept is not None and list(kept.tokens()) == [[(2,)]]
        assert kept.sources == (TraceSource(WORKER, name),)
        lives_s: object = redis.ttl(trace_key(request.request_id))
        assert isinstance(lives_s, int) and TRACE_KEEP_S - 60 < lives_s <= TRACE_KEEP_S
        assert found(server, request.request_id).end == end


def test_no_trace_is_kept_of_what_has_none_or_is_not_open(server: RedisServer, redis: Redis) -> None:
    keeper = RecordKeeper(redis, ExposureBook())
    plain, closed = completion(), completion()
    keeper.trace(plain.request_id, traced())  # too early: nobody would ever take it away again
    keeper.open(plain)
    keeper.trace(plain.request_id, TokenTrace())
    keeper.open(closed)
    keeper.trace(closed.request_id, traced())
    keeper.close(closed.request_id)
    keeper.open(closed)
    keeper.end([(plain.request_id, DONE), (closed.request_id, DONE)])
    assert trace(server, plain.request_id) is trace(server, closed.request_id) is None
    assert redis.zcard(RECORDS) == 2


@pytest.mark.parametrize(
    ("policy", "is_strict"),
    [(CHECKED_AFTER_USE, False), (NEVER_CHECKED, False), (CHECKED_AFTER_USE, True)],
    ids=["sampled", "unnoticed", "strict"],
)
def test_a_worker_lies_to_a_backbone_process(
    policy: TrustPolicy,
    is_strict: bool,
    server: RedisServer,
    redis: Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flagged in its last event, or at the latest in its record; never when it asked to be strict."""
    monkeypatch.setattr(market_link, "WorkGuard", partial(WorkGuard, policy=policy))
    model = write_model(tmp_path)
    (path,) = cut(model, [(0, 16)], tmp_path)
    answer = EveryNth(1, first=N_ENTRY_ANSWERS + 6)
    with database_at(tmp_path / "db.sqlite3"), serving([lying(open_holdings(path, "auto", 1), answer)]) as (address,):
        settings = ServiceSettings(
            model, MODEL, n_slot=1, n_ctx=64, n_threads=1, stop_s=0.0, workers=(address,),
            receipts_dir=tmp_path / "receipts",
        )  # fmt: skip
        process = BackboneProcess(settings, server.url, lambda: None)
        process.start()
        request = replace(completion(max_tokens=8), strict=is_strict)
        thread = threading.Thread(target=process.generate, args=(request.to_json(),))
        thread.start()
        thread.join(60)
        process.stop()
    assert answer.n_lies > 0
    assert traffic_seen(server, model) > 0  # of experts, for the market's targets
    done = last_event(redis, request.request_id)
    record = found(server, request.request_id)
    kept = trace(server, request.request_id)
    assert kept is not None and TraceSource(WORKER, OPERATORS) in kept.sources
    assert isinstance(done, Done) and done.kvasir.workers > 0
    assert record.end == done
    assert record.unconfirmed == done.kvasir.unconfirmed == (() if is_strict else (OPERATORS,))
    is_flagged = policy is CHECKED_AFTER_USE and not is_strict
    assert (set(record.flags.values()) == {OPERATORS}) is is_flagged
    assert done.kvasir.flagged <= is_flagged  # an audit may also end after the request


def traffic_seen(server: RedisServer, model: Path) -> float:
    with GGUFIndex.open(model) as index:
        card = ModelCard.from_index(index)
    with Redis.from_url(server.url) as client:  # bytes, which are no text
        fields: Any = client.hvals(traffic_key(card.fingerprint))
        return float(total_traffic(fields, card.n_layer, card.n_expert, time.time()).sum())


def last_event(redis: Redis, request_id: str) -> Event:
    entries: object = redis.xrange(stream_key(request_id))
    assert isinstance(entries, list)
    events = [event_from_json(fields["e"]) for _, fields in entries]
    assert any(isinstance(event, Started) for event in events)
    return events[-1]
