"""The unmodified `openai` client against the real thing: Daphne, Redis, and a backbone with a tiny chat model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from backbone.engine.text.chat_template import ChatTemplate
from backbone.management.generation import generate
from backbone.sampling_params import SamplingParams
from backbone.stream.events import Failed, event_from_json
from backbone.stream.keys import EVENT_FIELD, stream_key
from tests.swarm.backbone_service import MODEL, NEVER_ENDING, backbones, write_model
from tests.swarm.redis_fixture import RedisServer, running_redis
from tests.swarm.web_process import WebProcess, web_process

N_STREAMS = 64
N_DIFFERENT = 16
PROMPT = "hello world"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
CANCEL_DEADLINE_S = 20.0
FREED_WITHIN_S = 0.25  # promised; the best of some tries, as other programs disturb any single one
N_TRIES = 10
ASKED: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_tokens": 12, "logit_bias": NEVER_ENDING}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def web(redis: RedisServer, model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    directory = tmp_path_factory.mktemp("web")
    with (
        web_process(redis, directory) as web,
        backbones(redis, model_path, directory, KVASIR_SLOTS="16", KVASIR_MAX_WAITING="64"),
    ):
        yield web


@pytest.fixture
def client(web: WebProcess) -> Iterator[OpenAI]:
    with client_of(web, web.key) as client:
        yield client


def client_of(web: WebProcess, key: str) -> OpenAI:
    return OpenAI(base_url=f"{web.url}/v1", api_key=key, max_retries=0, timeout=60)


def completion(client: OpenAI, **fields: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": PROMPT} | ASKED | fields)


def chat(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": HELLO} | ASKED | fields)


@pytest.fixture(scope="module")
def loaded(model_path: Path) -> Iterator[LoadedModel]:
    with LoadedModel.open(model_path, n_slot=1, n_ctx=512, n_threads=1) as loaded:
        yield loaded


def in_process(loaded: LoadedModel, prompt_ids: list[int]) -> str:
    bias = {int(token): value for token, value in NEVER_ENDING.items()}
    pieces: list[str] = []
    params = SamplingParams(**ASKED | {"logit_bias": bias})
    generate(loaded, NoWorkers(), [prompt_ids], params, on_text=lambda _, text: pieces.append(text))
    return "".join(pieces)


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "kvasir"


def test_a_completion_is_the_engine_s_own_text(client: OpenAI, loaded: LoadedModel) -> None:
    reply = completion(client)
    (choice,) = reply.choices
    prompt_ids = loaded.tokenizer.encode(PROMPT, add_special=True, parse_special=False)
    assert choice.text == in_process(loaded, prompt_ids)
    assert (choice.finish_reason, reply.usage.completion_tokens) == ("length", 12)
    assert reply.usage.prompt_tokens == len(prompt_ids)
    swarm = reply.usage.kvasir
    assert swarm["row_experts"] > 0 and swarm["workers"] + swarm["hot"] + swarm["fallback"] == pytest.approx(1)
    assert reply.system_fingerprint.startswith("fp_")
    assert (swarm["flagged"], swarm["unconfirmed"]) == (False, [])
    for request_id in (reply.id, *swarm["requests"]):
        record: Any = client.get(f"/requests/{request_id}", cast_to=object)
        assert (record["id"], record["error_code"], record["flagged"]) == (swarm["requests"][0], None, False)
        assert record["usage"]["completion_tokens"] == 12
    assert completion(client, prompt=prompt_ids).choices[0].text == choice.text


def test_a_streamed_completion_is_the_same(client: OpenAI) -> None:
    chunks = list(completion(client, stream=True, stream_options={"include_usage": True}))
    whole = completion(client)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == 12 and chunks[-2].choices[0].finish_reason == "length"
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_chat_whole_and_streamed(client: OpenAI, loaded: LoadedModel) -> None:
    template = ChatTemplate.from_metadata(loaded.index.metadata, loaded.tokenizer)
    prompt_ids = loaded.tokenizer.encode(template.render(HELLO), add_special=False, parse_special=True)
    reply = chat(client)
    assert reply.choices[0].message.content == in_process(loaded, prompt_ids)
    assert reply.choices[0].message.role == "assistant"
    chunks = list(chat(client, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == reply.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def test_two_choices(client: OpenAI) -> None:
    reply = completion(client, n=2, temperature=1.5)
    first, second = (choice.text for choice in reply.choices)
    assert first == completion(client, temperature=1.5).choices[0].text != second
    texts = {0: "", 1: ""}
    for chunk in completion(client, n=2, temperature=1.5, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == {0: first, 1: second}
    assert reply.usage.completion_tokens == 24


def test_several_prompts(client: OpenAI) -> None:
    prompts = [PROMPT, "hello", "world"]
    together = completion(client, prompt=prompts)
    assert [choice.text for choice in together.choices] == [
        completion(client, prompt=prompt).choices[0].text for prompt in prompts
    ]


def test_logprobs_of_completions(client: OpenAI) -> None:
    (choice,) = completion(client, logprobs=3, temperature=0).choices
    found = choice.logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset) == 12
    for logprob, tops in zip(found.token_logprobs, found.top_logprobs, strict=True):
        assert 1 <= len(tops) <= 3
        assert logprob <= 0 and max(tops.values()) >= logprob
    assert found.text_offset[0] == 0 and sorted(found.text_offset) == found.text_offset
    chunks = list(completion(client, logprobs=3, temperature=0, stream=True))
    streamed = [lp for chunk in chunks if chunk.choices[0].logprobs for lp in chunk.choices[0].logprobs.token_logprobs]
    assert streamed == found.token_logprobs


def test_logprobs_of_chats(client: OpenAI) -> None:
    (choice,) = chat(client, logprobs=True, top_logprobs=2).choices
    content = choice.logprobs.content
    assert len(content) == 12
    assert b"".join(bytes(token.bytes) for token in content).decode(errors="replace") == choice.message.content
    assert all(len(token.top_logprobs) == 2 for token in content)


def test_stop(client: OpenAI) -> None:
    text = completion(client).choices[0].text
    stop = text[4]
    (choice,) = completion(client, stop=[stop, "never there"]).choices
    assert choice.text == text[: text.index(stop)]
    assert choice.finish_reason == "stop"


def test_a_seed_gives_the_same_text_and_none_another(client: OpenAI) -> None:
    fields: dict[str, Any] = {"temperature": 2.0, "max_tokens": 24}
    assert completion(client, **fields).choices[0].text == completion(client, **fields).choices[0].text
    without = [completion(client, **fields, seed=None).choices[0].text for _ in range(2)]
    assert without[0] != without[1]


def test_64_streams_are_as_if_each_were_alone(web: WebProcess) -> None:
    async def text(client: AsyncOpenAI, number: int) -> str:
        asked: Any = ASKED | {"seed": number, "max_tokens": 6 + number % 5, "temperature": 1.2}
        prompt = f"hello world {number}" * (1 + number % 3)
        stream: Any = await client.completions.create(model=MODEL, prompt=prompt, stream=True, **asked)
        return "".join([choice.text async for chunk in stream for choice in chunk.choices])

    async def work() -> None:
        async with AsyncOpenAI(base_url=f"{web.url}/v1", api_key=web.key, max_retries=0, timeout=60) as client:
            alone = [await text(client, number) for number in range(N_DIFFERENT)]
            together = await asyncio.gather(*(text(client, number % N_DIFFERENT) for number in range(N_STREAMS)))
        assert together == alone * (N_STREAMS // N_DIFFERENT)
        assert len(set(alone)) == N_DIFFERENT

    asyncio.run(asyncio.wait_for(work(), 120))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"extra_body": {"guided_json": {}}}, "unknown_parameter"),
        ({"temperature": 3.0}, "invalid_value"),
        ({"echo": True}, "unsupported_parameter"),
        ({"logit_bias": {"100000": 1}}, "invalid_request"),
    ],
)
def test_bad_requests(client: OpenAI, fields: dict[str, Any], code: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        completion(client, **fields)
    assert refused.value.code == code


@pytest.mark.parametrize("is_stream", [True, False])
def test_too_long_for_the_context(client: OpenAI, is_stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        completion(client, prompt=[5] * 8000, max_tokens=500, stream=is_stream)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")
    assert "8000" in refused.value.message and "8192" in refused.value.message


def test_other_refusals_have_the_client_s_own_classes(web: WebProcess, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="is not served"):
        completion(client, model="gpt")
    with client_of(web, "kvk-wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with (
        client_of(web, web.metrics_key) as other,
        pytest.raises(openai.PermissionDeniedError, match="generate is needed"),
    ):
        other.models.list()
    with client_of(web, web.slow_key) as slow:
        slow.models.list()
        with pytest.raises(openai.RateLimitError) as refused:
            slow.models.list()
    assert 1 <= int(refused.value.response.headers["Retry-After"]) <= 60


def test_without_a_backbone_503(redis: RedisServer, tmp_path: Path) -> None:
    with running_redis(tmp_path) as empty, web_process(empty, tmp_path) as web, client_of(web, web.key) as client:
        assert httpx.get(f"{web.url}/readyz", timeout=30).json()["reason"] == "no backbone"
        with pytest.raises(openai.InternalServerError, match="no backbone is running") as refused:
            completion(client)
        assert refused.value.status_code == 503 and refused.value.response.headers["Retry-After"]
        empty.kill()
        assert httpx.get(f"{web.url}/readyz", timeout=30).json()["reason"] == "redis"
        assert httpx.get(f"{web.url}/healthz", timeout=30).status_code == 200
        with pytest.raises(openai.InternalServerError, match="message store cannot be reached"):
            completion(client)


ENDLESS: dict[str, Any] = {"max_tokens": 8000, "logit_bias": NEVER_ENDING}


def wait_cancelled(redis: RedisServer, request_id: str) -> None:
    """Until the backbone has ended this request because its client left."""
    until = time.monotonic() + CANCEL_DEADLINE_S
    with redis.client() as store:
        while time.monotonic() < until:
            entries: Any = store.xrevrange(stream_key(request_id), count=1)
            event = event_from_json(entries[0][1][EVENT_FIELD]) if entries else None
            if isinstance(event, Failed):
                assert event.code == "cancelled"
                return
            time.sleep(0.01)
    raise AssertionError(f"request {request_id} was not cancelled")


def test_leaving_a_stream_frees_its_slot_within_a_quarter_of_a_second(client: OpenAI, redis: RedisServer) -> None:
    took: list[float] = []
    while len(took) < N_TRIES and min(took, default=1.0) > FREED_WITHIN_S:
        with closing(completion(client, **ENDLESS, stream=True)) as stream:
            first = next(stream)
            left = time.monotonic()
        wait_cancelled(redis, first.id.removeprefix("cmpl-"))
        took.append(time.monotonic() - left)
    assert min(took) <= FREED_WITHIN_S, took


def test_leaving_before_a_whole_reply_frees_its_slot(web: WebProcess, redis: RedisServer) -> None:
    async def work() -> str:
        async with AsyncOpenAI(base_url=f"{web.url}/v1", api_key=web.key, max_retries=0, timeout=60) as client:
            asked: Any = ASKED | ENDLESS
            asking = asyncio.create_task(client.completions.create(model=MODEL, prompt=PROMPT, **asked))
            with redis.client() as store:
                while not (found := set(store.scan_iter("gen:*:owner")) - owned):
                    await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        return str(found.pop()).split(":")[1]

    with redis.client() as store:
        owned = set(store.scan_iter("gen:*:owner"))
    wait_cancelled(redis, asyncio.run(asyncio.wait_for(work(), 60)))


def test_bodies_through_daphne(web: WebProcess) -> None:
    def post(content: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {web.key}", "Content-Type": "application/json"}
        return httpx.post(f"{web.url}/v1/completions", content=content, headers=headers, timeout=30)

    too_large = post(b" " * ((1 << 20) + 1))
    assert (too_large.status_code, too_large.json()["error"]["code"]) == (413, "request_too_large")
    just_fits = post(b" " * (1 << 20))
    assert (just_fits.status_code, just_fits.json()["error"]["code"]) == (400, "invalid_json")
    chunked = post(iter([b"{", b"}"]))
    assert (chunked.status_code, chunked.json()["error"]["code"]) == (411, "length_required")


def test_operators_pages(web: WebProcess) -> None:
    assert httpx.get(f"{web.url}/readyz", timeout=30).json() == {"status": "ready"}
    found = httpx.get(f"{web.url}/metrics", headers={"Authorization": f"Bearer {web.metrics_key}"}, timeout=30).text
    assert "kvasir_backbones 1.0" in found
    assert 'kvasir_api_requests_total{endpoint="completions",status="200"}' in found
    assert "kvasir_backbone_tokens_total{" in found
    assert httpx.get(f"{web.url}/v1/docs/swagger-ui-bundle.js", timeout=30).status_code == 200
