"""The backbone as a service, with real processes: the text of one process alone, and every way to end early."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from backbone.management.generation import generate
from backbone.sampling_params import SamplingParams
from backbone.stream import client as stream
from backbone.stream.directory import backbone_stats, models
from backbone.stream.events import Done, End, Event, Failed, Queued, Started, Token
from backbone.stream.payloads import GenerationRequest, RequestKind
from kvasir.worker.serving.holdings import open_holdings
from tests.swarm.backbone_service import (
    MODEL,
    SHAPE,
    Backbone,
    Client,
    alive,
    backbones,
    completion,
    endless,
    has_tokens,
    run,
    text_of,
    write_model,
)
from tests.swarm.redis_fixture import RedisServer, running_redis
from tests.swarm.swarm import cut, even_parts, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return write_model(folder)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One for each test that starts its own backbones: they all take from the same queue."""
    with running_redis(tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def served(model: Path, folder: Path) -> Iterator[Client]:
    """A backbone with two workers that hold all experts between them."""
    slices = cut(model, even_parts(SHAPE.n_expert, 2), folder / "slices")
    with (
        running_redis(folder) as redis,
        serving([open_holdings(path, "auto", 1) for path in slices]) as workers,
        backbones(redis, model, folder, KVASIR_WORKERS=",".join(workers)),
    ):
        yield Client(redis)


@pytest.fixture(scope="module")
def loaded(model: Path) -> Iterator[LoadedModel]:
    with LoadedModel.open(model, n_slot=1, n_ctx=8192, n_threads=1) as loaded:
        yield loaded


def alone(loaded: LoadedModel, request: GenerationRequest) -> str:
    """The text of the in-process engine."""
    prompt = request.prompt
    ids = loaded.tokenizer.encode(prompt, add_special=True, parse_special=False) if isinstance(prompt, str) else prompt
    assert ids is not None
    pieces: list[str] = []
    generate(loaded, NoWorkers(), [ids], request.sampling, on_text=lambda _, text: pieces.append(text))
    return "".join(pieces)


def failure(events: list[Event]) -> Failed:
    assert isinstance(events[-1], Failed), events[-3:]
    return events[-1]


def test_a_generation_streams_the_text_of_one_process(served: Client, loaded: LoadedModel) -> None:
    request = completion(max_tokens=20)
    events = run(lambda: served.ask(request))
    assert isinstance(events[0], Started)
    assert text_of(events) == alone(loaded, request)
    done = events[-1]
    assert isinstance(done, Done)
    assert done.usage.prompt_tokens == events[0].prompt_tokens
    assert done.usage.completion_tokens == sum(isinstance(event, Token) for event in events)
    assert done.kvasir.workers == 1.0 and done.kvasir.fallback == done.kvasir.hot == 0.0
    n_rows = done.usage.prompt_tokens + done.usage.completion_tokens - 1
    assert done.kvasir.row_experts == n_rows * SHAPE.n_layer * SHAPE.n_used


def test_many_at_once_equal_their_single_runs(served: Client, loaded: LoadedModel) -> None:
    requests = [completion(f"hello {n}", seed=n, max_tokens=8) for n in range(10)]

    async def work() -> list[list[Event]]:
        return await asyncio.gather(*(served.ask(request) for request in requests))

    assert [text_of(events) for events in run(work)] == [alone(loaded, request) for request in requests]


def test_messages_go_through_the_chat_template(served: Client, loaded: LoadedModel) -> None:
    messages = ({"role": "user", "content": "hello"},)
    chat = replace(completion(), kind=RequestKind.CHAT, prompt=None, messages=messages)
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    ids = tuple(loaded.tokenizer.encode(rendered, add_special=False, parse_special=True))
    events = run(lambda: served.ask(chat))
    assert text_of(events) == alone(loaded, replace(chat, kind=RequestKind.COMPLETION, prompt=ids, messages=None))
    broken = replace(chat, request_id=uuid.uuid4().hex, messages=({"content": "no role"},))
    assert failure(run(lambda: served.ask(broken))).status == 400


def test_choices_and_logprobs_travel(served: Client) -> None:
    events = run(lambda: served.ask(completion(n=3, logprobs=2, max_tokens=4)))
    assert sorted(event.choice for event in events if isinstance(event, End)) == [0, 1, 2]
    tokens = [event for event in events if isinstance(event, Token)]
    assert len(tokens) == 12
    assert all(t.logprob is not None and t.data is not None and len(t.top_logprobs) == 2 for t in tokens)


@pytest.mark.parametrize(
    ("changes", "status", "code", "words"),
    [
        ({"prompt": (1,) * 9000}, 400, "context_length_exceeded", "9000 tokens .* 8192"),
        ({"model": "other"}, 404, "model_not_found", "'tiny'"),
        (
            {"sampling": SamplingParams(logit_bias={10**6: 1.0})},
            400,
            "invalid_request",
            "logit_bias names token 1000000",
        ),
        ({"prompt": (100000,)}, 400, "invalid_request", "token id 100000"),
        ({"prompt": ()}, 400, "invalid_request", "empty"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    served: Client, changes: dict[str, Any], status: int, code: str, words: str
) -> None:
    refused = failure(run(lambda: served.ask(replace(completion(), **changes))))
    assert (refused.status, refused.code) == (status, code)
    assert re.search(words, refused.message)


def test_a_dropped_reader_resumes(served: Client, loaded: LoadedModel) -> None:
    request = completion(max_tokens=30)

    async def work() -> list[Event]:
        request_id = await served.send(request)
        first = await served.events(request_id, until=has_tokens(5))
        return first + await served.events(request_id, f"{len(first)}-0")

    assert text_of(run(work)) == alone(loaded, request)


def test_the_directory_and_the_counters_are_kept(served: Client) -> None:
    async def work() -> tuple[Any, Any, Any]:
        events = await served.ask(completion(max_tokens=2))
        client = stream.redis_client(served.settings.redis_url)
        return events[0], await models(client), await backbone_stats(client)

    started, listed, stats = run(work)
    (entry,) = listed
    assert (entry.name, entry.n_ctx, entry.architecture, entry.has_chat) == (MODEL, 8192, "qwen3moe", True)
    assert started.model == MODEL and started.fingerprint == entry.fingerprint
    counters = stats[started.backbone]
    assert counters["slots"] == 4 and counters["workers"] == 2


def test_a_deadline_ends_a_generation(served: Client) -> None:
    events = run(lambda: served.ask(replace(endless(), deadline_s=0.3)))
    assert (failure(events).status, failure(events).code) == (504, "deadline_exceeded")


def test_cancelling_frees_the_slot_and_works_on_the_queue_too(redis: RedisServer, model: Path, tmp_path: Path) -> None:
    client, early = Client(redis), endless()

    async def before() -> None:
        await client.send(early)
        await stream.cancel(early.request_id, client.settings)

    async def work() -> tuple[list[Event], list[Event]]:
        first = await client.send(endless())
        await client.events(first, until=has_tokens(3))
        second = await client.send(completion(max_tokens=3))
        waiting = await client.events(second, until=lambda events: True)
        assert waiting == [Queued(1)]
        await stream.cancel(first, client.settings)
        return await client.events(first), await client.events(second)

    run(before)
    with backbones(redis, model, tmp_path, KVASIR_SLOTS="1"):
        never_started = run(lambda: client.events(early.request_id))
        first, second = run(work)
    assert len(never_started) == 1 and failure(never_started).code == "cancelled"
    assert failure(first).code == "cancelled"
    assert isinstance(second[1], Started) and isinstance(second[-1], Done)


@pytest.mark.long
def test_two_backbones_share_a_queue_and_one_is_killed(
    redis: RedisServer, model: Path, tmp_path: Path, loaded: LoadedModel
) -> None:
    """The killed one's reader gets a typed error, and the survivor refuses to generate the same request again."""
    client, lost = Client(redis), endless()
    requests = [completion(f"hello {n}", seed=n, max_tokens=40) for n in range(8)]

    async def share() -> list[list[Event]]:
        return await asyncio.gather(*(client.ask(request) for request in requests))

    async def until_killed(both: list[Backbone]) -> list[Event]:
        request_id = await client.send(lost)
        found: list[Event] = []
        async for entry in stream.read(request_id, streams=client.settings):
            found.append(entry.event)
            if len(found) == 5 and isinstance(found[0], Started):
                next(one for one in both if one.id == found[0].backbone).kill()
        return found

    async def redeliver() -> list[Event]:
        request_id = await client.send(lost)  # as the queue would, with the same id
        assert isinstance((await client.ask(completion(max_tokens=2)))[-1], Done)  # it came later: that one is handled
        return await client.events(request_id)

    sizes = {"KVASIR_SLOTS": "2", "KVASIR_MAX_WAITING": "0"}
    with backbones(redis, model, tmp_path, n_processes=2, **sizes) as both:
        answers = run(share)
        events = run(lambda: until_killed(both))
        again = run(redeliver)
    assert [text_of(answer) for answer in answers] == [alone(loaded, request) for request in requests]
    served_by = {event.backbone for answer in answers for event in answer if isinstance(event, Started)}
    assert served_by == {one.id for one in both}
    assert (failure(events).status, failure(events).code) == (502, "backbone_lost")
    assert failure(again).code == "backbone_lost"
    assert [event for event in again if isinstance(event, Token)] == [e for e in events if isinstance(e, Token)]


@pytest.mark.long
def test_redis_killed_in_mid_generation(redis: RedisServer, model: Path, tmp_path: Path, loaded: LoadedModel) -> None:
    client = Client(redis)

    async def until_killed() -> list[Event]:
        request_id = await client.send(endless())
        found: list[Event] = []
        async for entry in stream.read(request_id, streams=client.settings):
            found.append(entry.event)
            if len(found) == 5:
                redis.kill()
        return found

    with backbones(redis, model, tmp_path):
        assert failure(run(until_killed)).code == "redis_lost"
        redis.start()
        request = completion()
        events = run(lambda: client.ask(request))  # the backbone has come back by itself
    assert text_of(events) == alone(loaded, request)


def test_a_backbone_that_is_asked_to_leave_finishes_first(
    redis: RedisServer, model: Path, tmp_path: Path, loaded: LoadedModel
) -> None:
    client, request = Client(redis), completion(max_tokens=60)

    async def work(leaving: Backbone) -> list[Event]:
        request_id = await client.send(request)
        await client.events(request_id, until=has_tokens(1))
        status = await asyncio.to_thread(leaving.stop)
        assert status == 0, leaving.log.read_text()[-2000:]
        return await client.events(request_id)

    with backbones(redis, model, tmp_path, KVASIR_STOP_S="30") as (leaving,):
        events = run(lambda: work(leaving))
    assert text_of(events) == alone(loaded, request)
    assert alive(redis) == []


def test_a_model_that_cannot_be_opened_stops_the_start(redis: RedisServer, tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    with (
        pytest.raises(AssertionError, match=r"the backbone cannot start: .*missing\.gguf does not exist"),
        backbones(redis, missing, tmp_path),
    ):
        pass
