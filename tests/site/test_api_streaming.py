"""Streams of the API: their frames, their errors, heartbeats, and what happens when the client leaves."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from django.http import StreamingHttpResponse

from backbone.api.chat import replies as api_replies
from backbone.api.chat.generation import Generation
from backbone.api.chat.replies import EventStream, StreamWriter, stream_parts
from backbone.api.chat.requests import RequestMaker
from backbone.api.chat.schemas import CompletionBody
from backbone.stream.events import Event, Failed, Queued, Started, Token
from backbone.stream.payloads import GenerationRequest, RequestKind
from tests.site.api_client import Reply, Site
from tests.site.fake_swarm import answer

HELLO = [{"role": "user", "content": "Hi"}]
BEGUN: list[Event] = [Started(3, "demo", "fp", "b1"), Token(0, 1, "a")]


def stream(site: Site, path: str = "/v1/completions", **fields: Any) -> Reply:
    text: dict[str, Any] = {"messages": HELLO} if "chat" in path else {"prompt": "Once"}
    reply = site.post(path, {"model": "demo", "stream": True} | text | fields)
    assert reply.status == 200, reply.body
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    return reply


def test_a_completion_in_chunks(site: Site) -> None:
    reply = stream(site)
    frames = reply.frames
    assert [event for event, _ in frames] == [None, None, None]
    assert frames[-1][1] == "[DONE]"
    first, last = frames[0][1], frames[1][1]
    assert first["object"] == "text_completion" and first["system_fingerprint"] == "fp_0123"
    assert first["choices"] == [{"text": "Hé0", "index": 0, "logprobs": None, "finish_reason": None}]
    assert last["choices"] == [{"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert "usage" not in first
    assert first["id"] == reply.headers["X-Request-Id"] == f"cmpl-{site.swarm.requests[0].request_id}"
    assert reply.headers["Cache-Control"] == "no-cache, no-transform" and reply.headers["X-Accel-Buffering"] == "no"
    assert b": 1 in line\n\n" in reply.body
    assert site.swarm.cancelled == []


def test_a_chat_in_chunks(site: Site) -> None:
    frames = stream(site, "/v1/chat/completions", n=2, stream_options={"include_usage": True}).frames
    chunks = [data for _, data in frames[:-1]]
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    for index in range(2):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert [c["delta"] for c in own] == [{"role": "assistant", "content": ""}, {"content": f"Hé{index}"}, {}]
        assert [c["finish_reason"] for c in own] == [None, None, "stop"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 4
    assert chunks[-1]["usage"]["kvasir"]["fallback"] == 0.25


def test_logprobs_come_with_each_token_even_without_text(site: Site) -> None:
    chunks = [data for _, data in stream(site, logprobs=1).frames[:-2]]
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [logprobs["tokens"] for logprobs in found] == [["Hé0"], ["bytes:\\xe2\\x80"]]
    assert [logprobs["text_offset"] for logprobs in found] == [[0], [3]]


def test_several_prompts_share_a_stream(site: Site) -> None:
    frames = stream(site, prompt=["a", "b"], n=2).frames
    texts: dict[int, str] = {}
    for _, chunk in frames[:-1]:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "Hé0", 1: "Hé1", 2: "Hé0", 3: "Hé1"}


def test_a_failure_before_the_stream_is_a_status(site: Site) -> None:
    message = "the prompt has 600 tokens and 16 more are asked for; the context holds 512"
    site.swarm.script = lambda request: [Failed(400, "context_length_exceeded", message)]
    reply = site.post("/v1/completions", {"model": "demo", "prompt": "Once", "stream": True})
    assert reply.status == 400
    assert reply.error == {
        "message": message,
        "type": "invalid_request_error",
        "param": "prompt",
        "code": "context_length_exceeded",
    }


def test_a_failure_in_the_stream_is_an_event_and_the_end(site: Site) -> None:
    lost = Failed(502, "backbone_lost", "the backbone went away")
    site.swarm.script = lambda request: [*BEGUN, lost, Token(0, 2, "late")]
    frames = stream(site).frames
    assert frames[0][1]["choices"][0]["text"] == "a"
    event, data = frames[-1]
    assert event == "error"
    assert data["error"]["code"] == "backbone_lost" and data["error"]["type"] == "server_error"
    assert len(frames) == 2


def test_one_failed_prompt_ends_the_stream_and_the_other(site: Site) -> None:
    def script(request: GenerationRequest) -> list[Event]:
        return [*BEGUN, Failed(504, "deadline_exceeded", "too slow")] if request.prompt == "b" else BEGUN

    site.swarm.script = script
    frames = stream(site, prompt=["a", "b"]).frames
    assert frames[-1][0] == "error"
    assert site.swarm.cancelled == [site.swarm.requests[0].request_id]


async def parts_of(response: Any) -> AsyncIterator[bytes]:
    assert isinstance(response, StreamingHttpResponse)
    async for part in response:
        yield part


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "prompt": "Once", "stream": True} | fields


def test_heartbeats_while_nothing_comes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_replies, "HEARTBEAT_S", 0.01)
    site.swarm.script = lambda request: BEGUN

    async def work() -> bytes:
        response = await site.open("/v1/completions", body())
        parts = parts_of(response)
        assert b'"text":"a"' in await anext(parts)
        return await anext(parts)

    assert site.run(work) == b": heartbeat\n\n"


def test_headers_come_while_a_request_waits_for_a_backbone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_replies, "PATIENCE_S", 0.01)
    site.swarm.script = lambda request: []

    async def work() -> bytes:
        response = await site.open("/v1/completions", body())
        assert response.status_code == 200
        return await anext(parts_of(response))

    assert site.run(work) == b": heartbeat\n\n"


def test_a_client_that_leaves_cancels_its_generation(site: Site) -> None:
    site.swarm.script = lambda request: BEGUN

    async def work() -> None:
        response = await site.open("/v1/completions", body(prompt=["a", "b"]))
        parts = parts_of(response)
        await anext(parts)
        reading = asyncio.create_task(_read_all(parts))
        await site.swarm.has_hung.wait()
        await asyncio.sleep(0)  # it waits for the next event now
        reading.cancel()
        await site.swarm.was_cancelled.wait()
        with pytest.raises(asyncio.CancelledError):
            await reading

    site.run(work)
    assert sorted(site.swarm.cancelled) == sorted(request.request_id for request in site.swarm.requests)
    assert site.swarm.n_reading == 0


async def _read_all(parts: AsyncIterator[bytes]) -> None:
    async for _ in parts:
        pass


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_a_stream_that_was_never_read_is_cancelled(site: Site, how: str) -> None:
    site.swarm.script = lambda request: [Queued(1)]

    async def work() -> None:
        request = GenerationRequest("0" * 32, "demo", RequestKind.COMPLETION, 1.0, 0.0, prompt="a")
        generation = Generation(site.swarm, [request], patience_s=10.0)
        await generation.start()
        writer = StreamWriter(RequestMaker(1.0).completion(CompletionBody(model="demo", prompt="a")))
        response = EventStream(stream_parts(generation, writer, []), generation)
        if how == "closed":
            await asyncio.to_thread(response.close)
        else:
            del response
            gc.collect()
        await site.swarm.was_cancelled.wait()

    site.run(work)
    assert site.swarm.cancelled == ["0" * 32]


@pytest.mark.parametrize("is_stream", [True, False])
def test_leaving_before_the_headers_cancels_too(site: Site, is_stream: bool) -> None:
    site.swarm.script = lambda request: []

    async def work() -> None:
        asking = asyncio.create_task(site.open("/v1/completions", body(stream=is_stream)))
        await site.swarm.has_hung.wait()
        asking.cancel()
        await site.swarm.was_cancelled.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking

    site.run(work)
    assert site.swarm.cancelled == [site.swarm.requests[0].request_id]


def test_a_reader_that_breaks_is_an_error_and_a_cancel(site: Site) -> None:
    def script(request: GenerationRequest) -> list[Event]:
        raise ValueError("not for clients")

    site.swarm.script = script

    async def work() -> Reply:
        reply = await site.apost("/v1/completions", body())
        await site.swarm.was_cancelled.wait()
        return reply

    reply = site.run(work)
    assert reply.status == 500 and reply.error["code"] == "internal_error"
    assert b"not for clients" not in reply.body


def test_after_all_deadlines_the_generation_is_given_up(site: Site) -> None:
    now = [0.0]
    site.swarm.script = lambda request: []

    async def work() -> list[Event]:
        request = GenerationRequest("0" * 32, "demo", RequestKind.COMPLETION, 1.0, 0.0, prompt="a")
        generation = Generation(site.swarm, [request], patience_s=10.0, clock=lambda: now[0])
        await generation.start()
        assert await generation.next(0.01) == []
        now[0] = 10.0
        events = [event for _, event in await generation.next(60.0)]
        generation.close()
        await site.swarm.was_cancelled.wait()
        return events

    (event,) = site.run(work)
    assert isinstance(event, Failed) and (event.status, event.code) == (504, "deadline_exceeded")


def test_a_slow_client_stops_the_reading(site: Site) -> None:
    def script(request: GenerationRequest) -> list[Event]:
        return [*BEGUN, *(Token(0, 2, "x") for _ in range(5000)), *answer(request)[-2:]]

    site.swarm.script = script

    async def work() -> int:
        parts = parts_of(await site.open("/v1/completions", body()))
        n_chunks = [(await anext(parts)).count(b"data: ")]
        async for part in parts:
            n_chunks.append(part.count(b"data: "))
        assert max(n_chunks) <= 2 * 257
        return sum(n_chunks)

    assert site.run(work) == 1 + 5000 + 1 + 1
