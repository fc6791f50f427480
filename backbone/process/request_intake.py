"""Turns a request into a job of the engine: chat template, tokens, sampling parameters, deadline.

`backbone_process` calls it on a task's thread, so that a long prompt does not delay a step. It never generates.
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
    """The intake of one model. May be used from several threads."""

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
        """Return whether the model has a chat template; without one it only completes prompts."""
        return self._template is not None

    def job(self, request: GenerationRequest) -> JobSpec:
        """Return the engine's job for a request. Raises RequestError if the client must change the request."""
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
