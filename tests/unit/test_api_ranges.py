"""The API's own limits are the engine's: both must take and refuse the same values."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from backbone.api.chat.requests import RequestMaker
from backbone.api.chat.schemas import MAX_MESSAGES, MAX_PROMPTS, ChatBody, CompletionBody
from backbone.sampling_params import SamplingParams
from backbone.stream.payloads import MAX_CHOICES, MAX_REQUEST_CHARS
from kvasir.errors import RequestError

VALUES: dict[str, list[Any]] = {
    "temperature": [0, 2, 2.0, 1e-9, -1e-9, 2.0000001, float("nan"), float("inf"), True, "1"],
    "top_p": [0, 1e-9, 1, 1.0000001, False],
    "top_k": [0, -1, 1 << 31, (1 << 31) + 1, 1.0],
    "min_p": [0, 1, -0.1, 1.1],
    "presence_penalty": [-2, 2, -2.1, 2.1],
    "frequency_penalty": [-2, 2, -2.1, 2.1],
    "repetition_penalty": [0, 1e-9, 10, 10.1],
    "seed": [0, -1, (1 << 64) - 1, 1 << 64],
    "max_tokens": [0, 1, 1 << 31, (1 << 31) + 1],
    "logprobs": [0, -1, 20, 21],
    "stop": [[], ["a"], [""], ["a" * 256], ["a" * 257], ["a"] * 16, ["a"] * 17, [5]],
    "logit_bias": [
        {}, {0: 100}, {0: -100}, {0: 100.1}, {(1 << 31) - 1: 1}, dict.fromkeys(range(4096), 1),
        dict.fromkeys(range(4097), 1), {0: float("nan")},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in VALUES.items() for value in values])
def test_web_and_engine_agree(name: str, value: Any) -> None:
    try:
        SamplingParams(**{name: value})
        engine = True
    except RequestError:
        engine = False
    told = {str(token): bias for token, bias in value.items()} if name == "logit_bias" else value
    try:
        CompletionBody.model_validate({"model": "m", "prompt": "p", name: told})
        web = True
    except ValidationError:
        web = False
    assert web == engine


def test_every_field_of_sampling_can_be_asked_for() -> None:
    assert set(VALUES) == set(SamplingParams.__dataclass_fields__) <= set(CompletionBody.model_fields)


def test_the_most_choices_are_the_seams() -> None:
    CompletionBody(model="m", prompt="p", n=MAX_CHOICES)
    with pytest.raises(ValidationError):
        CompletionBody(model="m", prompt="p", n=MAX_CHOICES + 1)


def test_a_largest_body_fits_between_web_and_backbone() -> None:
    """A body of 1 MiB grows most where two bytes of UTF-8 become six characters of JSON."""
    prompt = "é" * (1 << 19)
    (request,) = RequestMaker(1.0).completion(CompletionBody(model="m", prompt=prompt)).requests
    assert len(request.to_json()) < MAX_REQUEST_CHARS


def test_bodies_may_have_just_the_limits() -> None:
    many: dict[str, Any] = {"model": "m", "prompt": ["p"] * MAX_PROMPTS}
    CompletionBody(**many)
    CompletionBody(**many | {"prompt": [[1]] * MAX_PROMPTS})
    ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}] * MAX_MESSAGES})
    for prompts in (["p"] * (MAX_PROMPTS + 1), [[1]] * (MAX_PROMPTS + 1)):
        with pytest.raises(ValidationError):
            CompletionBody(**many | {"prompt": prompts})
