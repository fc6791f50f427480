"""Requests and events survive their JSON, and what is wrong is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.sampling_params import SamplingParams
from backbone.stream.events import (
    Done,
    End,
    Event,
    EventError,
    Failed,
    Queued,
    Started,
    SwarmShare,
    Token,
    TopLogprob,
    Usage,
    event_from_json,
    event_to_json,
    is_last,
)
from backbone.stream.payloads import MAX_REQUEST_CHARS, GenerationRequest, RequestKind
from kvasir.errors import RequestError

REQUEST_ID = "0123456789abcdef" * 2


def request(**changes: Any) -> GenerationRequest:
    values: dict[str, Any] = {
        "request_id": REQUEST_ID,
        "model": "demo",
        "kind": RequestKind.COMPLETION,
        "deadline_s": 60.0,
        "created": 1.5,
        "prompt": "Once",
    }
    return GenerationRequest(**values | changes)


@given(st.one_of(st.text(), st.lists(st.integers(0, 2**31)).map(tuple)), st.integers(1, 8), st.booleans())
@settings(max_examples=40)
def test_a_completion_survives_its_json(prompt: Any, n: int, strict: bool) -> None:
    made = request(
        prompt=prompt, n=n, strict=strict, owner="k1", sampling=SamplingParams(seed=3, stop=["a"], logit_bias={5: -1.0})
    )
    assert GenerationRequest.from_json(made.to_json()) == made


RECORDED = (  # written by a web process that kept sampling as a dict
    '{"request_id":"0123456789abcdef0123456789abcdef","model":"demo","kind":"completion","n":2,"sampling":{'
    '"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"presence_penalty":0.5,"frequency_penalty":-0.5,'
    '"repetition_penalty":1.1,"seed":7,"max_tokens":16,"stop":["a","b"],"logit_bias":{"5":-1.0},"logprobs":2},'
    '"created":1.5,"deadline_s":60.0,"strict":true,"owner":"k1","prompt":"Once","messages":null}'
)


def test_a_recorded_request_is_read_and_written_alike() -> None:
    sampling = SamplingParams(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, presence_penalty=0.5, frequency_penalty=-0.5,
        repetition_penalty=1.1, seed=7, max_tokens=16, stop=["a", "b"], logit_bias={5: -1.0}, logprobs=2,
    )  # fmt: skip
    made = request(n=2, sampling=sampling, strict=True, owner="k1")
    assert GenerationRequest.from_json(RECORDED) == made
    assert json.loads(made.to_json()) == json.loads(RECORDED)


def test_sampling_is_written_without_defaults_and_null_stands_for_one() -> None:
    assert SamplingParams(seed=0, temperature=1.0).to_values() == {"seed": 0}
    assert SamplingParams.from_values({"top_k": None, "stop": ["x"]}) == SamplingParams(stop=["x"])


def test_a_chat_survives_its_json() -> None:
    messages = ({"role": "user", "content": "hi", "extra": [1, {"x": None}]},)
    made = request(kind=RequestKind.CHAT, prompt=None, messages=messages)
    assert GenerationRequest.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"request_id": "nothex"}, "32 lower-case hex"),
        ({"n": 0}, "n is 0"),
        ({"n": 9}, "n is 9"),
        ({"n": True}, "n is 'True'"),
        ({"model": ""}, "model is empty"),
        ({"deadline_s": 0}, "deadline_s is 0"),
        ({"deadline_s": "1"}, "deadline_s is '1'"),
        ({"kind": "image"}, "kind is 'image'"),
        ({"kind": "chat"}, "a completion has a prompt"),
        ({"prompt": [1, "2"]}, "list of token ids"),
        ({"prompt": None}, "a completion has a prompt"),
        ({"messages": ["hi"]}, "list of objects"),
        ({"sampling": {"temprature": 1}}, "'temprature'"),
        ({"sampling": []}, "must be dict"),
        ({"sampling": {"temperature": 9.0}}, "temperature is 9.0"),
        ({"sampling": {"logit_bias": {"-7": 1}}}, "logit_bias has the key '-7'"),
        ({"sampling": {"logit_bias": 3}}, "logit_bias is 3"),
        ({"colour": 1}, "'colour' is unknown"),
    ],
)
def test_what_is_wrong_in_a_request_is_named(changes: dict[str, Any], words: str) -> None:
    values = json.loads(request().to_json()) | changes
    with pytest.raises(RequestError, match=words):
        GenerationRequest.from_json(json.dumps(values))


def test_a_missing_field_and_broken_json_are_named() -> None:
    values = json.loads(request().to_json())
    del values["created"]
    with pytest.raises(RequestError, match="'created' is missing"):
        GenerationRequest.from_json(json.dumps(values))
    with pytest.raises(RequestError, match="not valid JSON"):
        GenerationRequest.from_json("{")
    with pytest.raises(RequestError, match="must be an object"):
        GenerationRequest.from_json("[]")


def test_what_is_no_json_or_too_large_does_not_travel() -> None:
    with pytest.raises(RequestError, match="cannot be written as JSON"):
        request(kind=RequestKind.CHAT, prompt=None, messages=({"content": float("nan")},)).to_json()
    with pytest.raises(RequestError, match="at most"):
        request(prompt="x" * (MAX_REQUEST_CHARS + 1)).to_json()


EVENTS: list[Event] = [
    Queued(3),
    Started(7, "demo", "fp_1", "node-1"),
    Token(0, 5, "caf\u00e9\u2028"),
    Token(1, 5, "", b"\xc3", -0.5, (TopLogprob(5, b"\xc3", -0.5), TopLogprob(6, b"", -3.0))),
    Token(0, 5, "x", b"x", 0.0),
    End(0, "stop", 4),
    Done(Usage(7, 9), SwarmShare(100, 0.75, 0.0, 0.25)),
    Done(Usage(7, 9), SwarmShare(100, 1.0, 0.0, 0.0, True, ("liar",), ("ann", "liar"), 8, 3)),
    Failed(400, "context_overflow", "too long"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_its_json(event: Event) -> None:
    text = event_to_json(event)
    assert "\n" not in text
    assert event_from_json(text) == event
    assert is_last(event) == isinstance(event, Done | Failed)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"kind":"new"}', '{"kind":"end"}', '{"kind":"queued","position":1,"x":2}']
)
def test_an_entry_that_is_no_event_is_an_error(text: str) -> None:
    with pytest.raises(EventError, match="not an event"):
        event_from_json(text)
