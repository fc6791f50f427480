"""From a request to a job of the engine: the chat template, the tokens, the sampling parameters, the deadline.

Runs on a task's thread in the backbone process, so that a long prompt costs no step any time. It never generates.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace

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
        params = request.sampling
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(63))
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
