"""Whole replies of the API: their form, their usage, and what reaches the backbone."""

from __future__ import annotations

from typing import Any

import pytest

from backbone.api.chat.schemas import ChatReply, CompletionReply
from backbone.api.schemas import ModelList, ModelReply
from backbone.sampling_params import SamplingParams
from backbone.stream.events import End, Event, Started, Token
from backbone.stream.payloads import GenerationRequest, RequestKind
from tests.site.api_client import Site
from tests.site.fake_swarm import answer

HELLO = [{"role": "user", "content": "Hi"}]


def completion(site: Site, **fields: Any) -> Any:
    reply = site.post("/v1/completions", {"model": "demo", "prompt": "Once"} | fields)
    assert reply.status == 200, reply.body
    CompletionReply.model_validate(reply.json)
    return reply.json


def chat(site: Site, **fields: Any) -> Any:
    reply = site.post("/v1/chat/completions", {"model": "demo", "messages": HELLO} | fields)
    assert reply.status == 200, reply.body
    ChatReply.model_validate(reply.json)
    return reply.json


def test_a_completion(site: Site) -> None:
    reply = completion(site)
    (request,) = site.swarm.requests
    assert reply["id"] == f"cmpl-{request.request_id}"
    assert (reply["model"], reply["system_fingerprint"]) == ("demo", "fp_0123")
    assert reply["choices"] == [{"text": "Hé0", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert reply["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "kvasir": {
            "row_experts": 100,
            "workers": 0.75,
            "hot": 0.0,
            "fallback": 0.25,
            "flagged": False,
            "flagged_workers": [],
            "unconfirmed": [],
            "requests": [request.request_id],
            "n_drafted": 0,
            "n_accepted": 0,
        },
    }
    assert (request.kind, request.prompt, request.n, request.deadline_s) == (RequestKind.COMPLETION, "Once", 1, 600.0)
    assert request.sampling.max_tokens == 16
    assert site.swarm.cancelled == []


def test_a_chat(site: Site) -> None:
    reply = chat(site, n=2)
    (request,) = site.swarm.requests
    assert reply["id"] == f"chatcmpl-{request.request_id}"
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["Hé0", "Hé1"]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert (request.kind, request.messages, request.n) == (RequestKind.CHAT, ({"role": "user", "content": "Hi"},), 2)
    assert request.sampling.max_tokens is None


def test_choices_are_in_order_whoever_ends_first(site: Site) -> None:
    def mixed(request: GenerationRequest) -> list[Event]:
        tokens: list[Event] = [
            Token(1, 5, "b"),
            Token(0, 4, "a"),
            End(1, "length", 1),
            Token(0, 6, "c"),
            End(0, "stop", 2),
        ]
        return [Started(1, "demo", "fp", "b1"), *tokens, answer(request)[-1]]

    site.swarm.script = mixed
    assert [(c["text"], c["finish_reason"]) for c in completion(site, n=2)["choices"]] == [
        ("ac", "stop"),
        ("b", "length"),
    ]


def test_every_sampling_field_travels(site: Site) -> None:
    sampling: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.5, "seed": (1 << 64) - 1, "max_tokens": 7,
    }  # fmt: skip
    chat(site, **sampling, stop="\n", logit_bias={"5": -100, "0": 2.5}, logprobs=True, top_logprobs=2)
    expected = SamplingParams(**sampling, stop=["\n"], logit_bias={5: -100, 0: 2.5}, logprobs=2)
    assert site.swarm.requests[0].sampling == expected


@pytest.mark.parametrize(("stop", "told"), [(None, ()), ([], ()), (["a", "b"], ("a", "b")), ("x", ("x",))])
def test_stop_is_a_text_or_a_list(site: Site, stop: Any, told: Any) -> None:
    completion(site, stop=stop)
    assert site.swarm.requests[0].sampling.stop == told


def test_without_a_seed_each_request_gets_its_own(site: Site) -> None:
    completion(site)
    completion(site)
    first, second = (request.sampling.seed for request in site.swarm.requests)
    assert first != second


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
        ("", [""]),
    ],
)
def test_prompts_come_in_four_forms(site: Site, prompt: Any, told: Any) -> None:
    reply = completion(site, prompt=prompt, n=2, seed=5)
    assert [request.prompt for request in site.swarm.requests] == told
    assert [choice["index"] for choice in reply["choices"]] == list(range(2 * len(told)))
    assert [choice["text"] for choice in reply["choices"]] == ["Hé0", "Hé1"] * len(told)
    assert reply["usage"]["prompt_tokens"] == 3 * len(told)
    assert reply["usage"]["kvasir"]["row_experts"] == 100 * len(told)
    assert reply["usage"]["kvasir"]["workers"] == 0.75
    assert {request.sampling.seed for request in site.swarm.requests} == {5}


def test_logprobs_of_a_completion(site: Site) -> None:
    (choice,) = completion(site, logprobs=2)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["Hé0", "bytes:\\xe2\\x80"],
        "token_logprobs": [-0.25, -0.25],
        "top_logprobs": [{"Hé0": -0.25, "x": -2.0}, {"bytes:\\xe2\\x80": -0.25, "x": -2.0}],
        "text_offset": [0, 3],
    }


def test_logprobs_of_a_chat(site: Site) -> None:
    (choice,) = chat(site, logprobs=True, top_logprobs=1)["choices"]
    first, second = choice["logprobs"]["content"]
    assert first["bytes"] == list("Hé0".encode())
    assert first["top_logprobs"] == [{"token": "Hé0", "logprob": -0.25, "bytes": list("Hé0".encode())}]
    assert (second["token"], second["bytes"]) == ("bytes:\\xe2\\x80", [0xE2, 0x80])
    assert chat(site, logprobs=True)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_messages_are_flattened(site: Site) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": []},
    ]
    chat(site, messages=messages, max_completion_tokens=3)
    assert site.swarm.requests[0].messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ab", "name": "ann"},
        {"role": "assistant", "content": "c"},
    )
    assert site.swarm.requests[0].sampling.max_tokens == 3


def test_fields_that_ask_for_nothing_are_accepted(site: Site) -> None:
    completion(site, user="u", metadata={"a": "b"}, echo=False, best_of=1, suffix=None, service_tier="auto")
    chat(site, tools=[], tool_choice="auto", response_format={"type": "text"}, store=False, top_logprobs=None)
    nulls = ("temperature", "top_p", "n", "stop", "seed", "logit_bias", "stream", "stream_options", "max_tokens")
    chat(site, **dict.fromkeys(nulls))


def test_models(site: Site) -> None:
    reply = site.get("/v1/models")
    ModelList.model_validate(reply.json)
    (model,) = reply.json["data"]
    assert model["id"] == "demo" and model["kvasir"]["n_ctx"] == 512
    one = site.get("/v1/models/demo")
    ModelReply.model_validate(one.json)
    assert one.json == model


def test_a_model_with_a_slash_in_its_name(site: Site) -> None:
    site.swarm.entries = [type(site.swarm.entries[0])("org/m", "fp", 1, "a", 1)]
    assert site.get("/v1/models/org/m").json["id"] == "org/m"
