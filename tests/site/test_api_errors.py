"""Every way in which the API refuses a request: the status, the code, and the field by name."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from redis.exceptions import ConnectionError as RedisConnectionError

from backbone.api.chat.schemas import MAX_MESSAGES, MAX_PROMPTS
from backbone.sampling_params import MAX_STOPS
from backbone.stream.client import QueueFull, RedisLost
from backbone.stream.events import Failed
from kvasir.errors import RequestError
from tests.site.api_client import Site
from tests.site.fake_swarm import MODEL

COMPLETION: dict[str, Any] = {"model": "demo", "prompt": "Once"}
CHAT: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"guided_json": {}}, "unknown_parameter", "guided_json"),
        ({"Temperature": 1}, "unknown_parameter", "Temperature"),
        ({"echo": True}, "unsupported_parameter", "echo"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"suffix": "end"}, "unsupported_parameter", "suffix"),
        ({"prompt": None}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt.0"),
        ({"prompt": [1, "a"]}, "invalid_value", "prompt.1"),
        ({"prompt": [1, -1]}, "invalid_value", "prompt.1"),
        ({"prompt": ["a"] * (MAX_PROMPTS + 1)}, "invalid_value", "prompt"),
        ({"prompt": 5}, "invalid_value", "prompt"),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"temperature": "1"}, "invalid_value", "temperature"),
        ({"temperature": True}, "invalid_value", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"top_k": -1}, "invalid_value", "top_k"),
        ({"top_k": 1.5}, "invalid_value", "top_k"),
        ({"min_p": 1.1}, "invalid_value", "min_p"),
        ({"presence_penalty": 3}, "invalid_value", "presence_penalty"),
        ({"frequency_penalty": -3}, "invalid_value", "frequency_penalty"),
        ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
        ({"seed": -1}, "invalid_value", "seed"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"n": 9}, "invalid_value", "n"),
        ({"logprobs": 21}, "invalid_value", "logprobs"),
        ({"stop": 5}, "invalid_value", "stop"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"stop": ["a"] * (MAX_STOPS + 1)}, "invalid_value", "stop"),
        ({"stop": ["a", 5]}, "invalid_value", "stop.1"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias.x"),
        ({"logit_bias": {"5": 101}}, "invalid_value", "logit_bias.5"),
        ({"logit_bias": {"9999999999": 1}}, "invalid_value", "logit_bias"),
        ({"stream": "yes"}, "invalid_value", "stream"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"stream": True, "stream_options": {"every": 1}}, "unknown_parameter", "stream_options.every"),
        ({"metadata": {"a": 1}}, "invalid_value", "metadata.a"),
        ({"model": ""}, "invalid_value", "model"),
    ],
)
def test_a_completion_is_refused_by_the_fields_name(site: Site, fields: Any, code: str, param: str) -> None:
    reply = site.post("/v1/completions", COMPLETION | fields)
    assert reply.status == 400
    error = reply.error
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert param in error["message"]
    assert site.swarm.requests == []


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
        ({"tool_choice": "required"}, "unsupported_parameter", "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format.type"),
        ({"reasoning_effort": "low"}, "unsupported_parameter", "reasoning_effort"),
        ({"prompt": "x"}, "unknown_parameter", "prompt"),
        ({"logprobs": 5}, "invalid_value", "logprobs"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "invalid_value", "max_tokens"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)}, "invalid_value", "messages"),
        ({"messages": "Hi"}, "invalid_value", "messages"),
        ({"messages": [{"role": "user"}]}, "missing_parameter", "messages.0.content"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "invalid_value", "messages.0.role"),
        ({"messages": [{"role": "user", "content": None}]}, "invalid_value", "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "wait": 1}]}, "unknown_parameter", "messages.0.wait"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "invalid_value",
            "messages.0.content.0.type",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
            "unsupported_parameter",
            "messages.0.tool_calls",
        ),
    ],
)
def test_a_chat_is_refused_by_the_fields_name(site: Site, fields: Any, code: str, param: str) -> None:
    reply = site.post("/v1/chat/completions", CHAT | fields)
    assert reply.status == 400
    error = reply.error
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert site.swarm.requests == []


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_what_is_needed_is_named(site: Site, missing: str) -> None:
    reply = site.post("/v1/completions", {name: value for name, value in COMPLETION.items() if name != missing})
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "missing_parameter", missing)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("5", "invalid_value"),
        ("[]", "invalid_value"),
        ("null", "invalid_value"),
        ("{", "invalid_json"),
        ('{"model": "demo", "prompt": "a", "temperature": NaN}', "invalid_json"),
        ('{"model": "demo", "prompt": "a", "prompt": "b"}', "invalid_json"),
        ("[" * 100_000, "invalid_json"),
        (b"\xff", "invalid_json"),
        ('{"model": "demo", "prompt": "a", "temperature": 1e999}', "invalid_value"),
        ('{"model": "demo", "prompt": "\\ud800"}', "invalid_json"),
    ],
)
def test_a_body_that_is_no_request(site: Site, body: str | bytes, code: str) -> None:
    reply = site.post("/v1/completions", body)
    assert (reply.status, reply.error["code"]) == (400, code)


def test_whole_characters_in_escapes_are_fine(site: Site) -> None:
    assert site.post("/v1/completions", '{"model": "demo", "prompt": "\\ud83d\\ude00"}').status == 200
    assert site.swarm.requests[0].prompt == "😀"


def test_the_body_may_have_just_the_limit(site: Site) -> None:
    def body(n_bytes: int) -> bytes:
        text = json.dumps(COMPLETION | {"prompt": ""})
        return json.dumps(COMPLETION | {"prompt": "a" * (n_bytes - len(text))}).encode()

    with override_settings(KVASIR_BODY_LIMIT=2048):
        assert len(body(2048)) == 2048
        assert site.post("/v1/completions", body(2047)).status == 200
        assert site.post("/v1/completions", body(2048)).status == 200
        reply = site.post("/v1/completions", body(2049))
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")
    assert "2049" in reply.error["message"] and "2048" in reply.error["message"]


def test_the_largest_body_still_travels(site: Site) -> None:
    """Text grows in the JSON between web and backbone: two bytes become six characters."""
    site.swarm.script = lambda request: [Failed(400, "context_length_exceeded", "too long")]
    start, end = b'{"model": "demo", "prompt": "', b'"}'
    room = (1 << 20) - len(start) - len(end)
    reply = site.post("/v1/completions", start + "é".encode() * (room // 2) + end)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")


def test_a_length_is_required(site: Site) -> None:
    reply = site.post("/v1/completions", "")
    assert (reply.status, reply.error["code"]) == (411, "length_required")


@pytest.mark.parametrize(("path", "method"), [("/v1/completions", "get"), ("/v1/models", "post")])
def test_the_wrong_method(site: Site, path: str, method: str) -> None:
    reply = site.get(path) if method == "get" else site.post(path, {})
    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
    assert reply.headers["Allow"] == ("POST" if method == "get" else "GET")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat", "/v1/", "/v1/docs/other.js"])
def test_unknown_urls(site: Site, path: str) -> None:
    reply = site.get(path)
    assert (reply.status, reply.error["code"], reply.error["type"]) == (404, "unknown_url", "not_found_error")


def test_outside_the_api_a_line_of_text(site: Site) -> None:
    reply = site.get("/nothing")
    assert (reply.status, reply.body) == (404, b"there is nothing at this address\n")


def test_a_host_that_is_not_allowed(site: Site) -> None:
    with override_settings(ALLOWED_HOSTS=["other"]):
        reply = site.get("/v1/models")
    assert (reply.status, reply.error["code"]) == (400, "bad_request")


def test_an_unknown_model(site: Site) -> None:
    reply = site.post("/v1/completions", COMPLETION | {"model": "gpt"})
    assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")
    assert "'gpt'" in reply.error["message"] and MODEL.name in reply.error["message"]
    assert site.get("/v1/models/gpt").status == 404


def test_no_backbone(site: Site) -> None:
    site.swarm.entries = []
    reply = site.post("/v1/completions", COMPLETION)
    assert (reply.status, reply.error["code"], reply.headers["Retry-After"]) == (503, "no_backbone", "5")
    assert site.get("/v1/models").json["data"] == []


def test_the_queue_is_full(site: Site) -> None:
    site.swarm.enqueue_failures = [QueueFull(256, 256, 7)]
    reply = site.post("/v1/completions", COMPLETION)
    assert (reply.status, reply.error["code"], reply.headers["Retry-After"]) == (503, "queue_full", "7")
    assert "256" in reply.error["message"]
    assert site.swarm.cancelled == []


def test_the_queue_is_full_for_the_second_prompt(site: Site) -> None:
    site.swarm.enqueue_failures = [None, QueueFull(256, 256)]
    reply = site.post("/v1/completions", COMPLETION | {"prompt": ["a", "b"], "stream": True})
    assert (reply.status, reply.error["code"]) == (503, "queue_full")
    assert site.swarm.cancelled == [site.swarm.requests[0].request_id]


@pytest.mark.parametrize("failure", [RedisLost("host 10.0.0.1"), RedisConnectionError("host 10.0.0.1")])
def test_redis_is_away(site: Site, failure: Exception) -> None:
    site.swarm.failure = failure
    for reply in (site.post("/v1/completions", COMPLETION), site.get("/v1/models")):
        assert (reply.status, reply.error["code"]) == (503, "redis_lost")
        assert "10.0.0.1" not in reply.error["message"]
    site.swarm.failure, site.swarm.enqueue_failures = None, [failure]
    assert site.post("/v1/completions", COMPLETION).error["code"] == "redis_lost"


def test_a_request_that_cannot_travel(site: Site) -> None:
    site.swarm.enqueue_failures = [RequestError("the request has too many characters")]
    assert site.post("/v1/completions", COMPLETION).status == 400


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (499, "cancelled_error"),
        (500, "server_error"),
        (502, "server_error"),
        (503, "unavailable_error"),
        (504, "timeout_error"),
        (200, "server_error"),
    ],
)
def test_failures_of_the_backbone_keep_their_status(site: Site, status: int, kind: str) -> None:
    site.swarm.script = lambda request: [Failed(status, "some_code", "some words")]
    reply = site.post("/v1/chat/completions", CHAT)
    assert reply.status == (500 if status == 200 else status)
    assert reply.error == {"message": "some words", "type": kind, "param": None, "code": "some_code"}
    assert ("Retry-After" in reply.headers) == (status == 503)


def test_a_surprise_is_logged_and_told_without_details(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.swarm.enqueue_failures = [KeyError("secret place")]
    with caplog.at_level(logging.ERROR):
        reply = site.post("/v1/completions", COMPLETION)
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert b"secret place" not in reply.body and "secret place" in caplog.text


def test_every_code_is_in_the_documentation() -> None:
    root = Path(__file__).resolve().parents[2]
    sources = [
        *root.glob("backbone/api/**/*.py"),
        root / "backbone/process/event_mapping.py",
        *root.glob("backbone/stream/*.py"),
    ]
    codes = {
        code
        for source in sources
        for code in re.findall(r'(?:ApiError|Failed)?\(\s*[45]\d\d,\s*"([a-z_]+)"', source.read_text())
    }
    assert {"backbone_lost", "queue_full", "wrong_scope", "deadline_exceeded"} <= codes
    text = (root / "docs/use/api.md").read_text()
    assert sorted(code for code in codes if f"`{code}`" not in text) == []
