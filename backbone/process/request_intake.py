"""From a request to a job of the engine: the chat template, the tokens, the sampling parameters, the deadline.

Runs on a task's thread in the backbone process, so that a long prompt costs no step any time. It never generates.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from backbone.engine.sampling.params import SamplingParams
from backbone.engine.serving.jobs import JobSpec
from backbone.engine.text.chat_template import ChatTemplate
from backbone.engine.text.tokenizer import Tokenizer
from backbone.process.event_mapping import ModelNotFound
from backbone.stream.payloads import GenerationRequest
from kvasir.errors import RequestError


class RequestIntake:
    """One model's way from text to tokens. May be used from several threads."""

    def __init__(
        self, model_name: str, tokenizer: Tokenizer, metadata: Mapping[str, object], max_deadline_s: float
    ) -> None:
        self._model_name = model_name
        self._tokenizer = tokenizer
        self._max_deadline_s = max_deadline_s
        self._template: ChatTemplate | None = None
        self._template_problem = ""
        try:
            self._template = ChatTemplate.from_metadata(metadata, tokenizer)
        except RequestError as error:  # the model can still complete prompts
            self._template_problem = str(error)

    @property
    def has_chat(self) -> bool:
        """Whether the model can answer messages; without a template it goes on from prompts alone."""
        return self._template is not None

    def job(self, request: GenerationRequest) -> JobSpec:
        """What the engine is to do. Raises RequestError for whatever the client can change."""
        if request.model != self._model_name:
            raise ModelNotFound(f"model {request.model[:200]!r} is not served here; {self._model_name!r} is")
        deadline_s = min(request.deadline_s, self._max_deadline_s)
        params = sampling_params(request.sampling)
        return JobSpec(request.request_id, self._prompt_ids(request), params, deadline_s, request.n, request.strict)

    def _prompt_ids(self, request: GenerationRequest) -> tuple[int, ...]:
        if request.messages is not None:
            if self._template is None:
                raise RequestError(self._template_problem)
            prompt = self._template.render(request.messages)
            return tuple(self._tokenizer.encode(prompt, add_special=False, parse_special=True))
        if isinstance(request.prompt, tuple):
            return request.prompt
        return tuple(self._tokenizer.encode(request.prompt or "", add_special=True, parse_special=False))


def sampling_params(sampling: Mapping[str, Any]) -> SamplingParams:
    """From JSON; null leaves a value at its default. A missing seed is drawn here. Raises RequestError."""
    values = {name: value for name, value in sampling.items() if value is not None}
    if values.get("seed") is None:
        values["seed"] = secrets.randbits(63)
    bias = values.get("logit_bias")
    if isinstance(bias, dict):
        values["logit_bias"] = {_token_id(token): value for token, value in bias.items()}
    return SamplingParams(**values)


def _token_id(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise RequestError(f"logit_bias has the key {text[:80]!r}; keys must be token ids")
    return int(text)
