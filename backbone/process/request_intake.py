"""The intake of requests: each is claimed in Redis, at most once, and becomes a job of the engine.

`backbone_process` calls it on a task's thread, so that a long prompt does not delay a step. A job has the tokens of the
prompt or of the rendered chat template, sampling parameters and a deadline. Nothing here generates.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from redis import Redis

from backbone.engine.serving.jobs import JobSpec
from backbone.engine.text.chat_template import ChatTemplate
from backbone.engine.text.tokenizer import Tokenizer
from backbone.process.event_mapping import ModelNotFound
from backbone.stream.events import EventError, Failed, event_from_json, event_to_json, is_last
from backbone.stream.keys import (
    CLAIM_MARGIN_S,
    EVENT_FIELD,
    KEEP_S,
    cancelled_key,
    entry_id,
    entry_number,
    lease_key,
    owner_key,
    stream_key,
)
from backbone.stream.payloads import GenerationRequest
from kvasir.errors import RequestError

logger = logging.getLogger(__name__)

_REDELIVERED = Failed(502, "backbone_lost", "the backbone that took this request has stopped; send it again")


class Claim(Enum):
    """The result of claiming a request."""

    OURS = "this backbone owns the request"
    CANCELLED = "this backbone owns the request, which was cancelled while it waited"
    TAKEN = "the request was claimed before and must not be generated"


def claim(client: Redis, request_id: str, backbone_id: str, deadline_s: float) -> Claim:
    """Claim a request in one atomic step. Raises Redis's errors."""
    commands = client.pipeline(transaction=True)
    commands.set(owner_key(request_id), backbone_id, nx=True, ex=int(deadline_s) + CLAIM_MARGIN_S)
    commands.get(cancelled_key(request_id))
    is_owner, cancelled = commands.execute()
    if not is_owner:
        return Claim.TAKEN
    return Claim.OURS if cancelled is None else Claim.CANCELLED


def refuse_redelivery(client: Redis, request_id: str, backbone_id: str) -> bool:
    """End the stream of a request that was delivered again, unless another live backbone owns it.

    Not to be called for a request that runs here. Return True if an error was written. Raises Redis's errors.
    """
    owner: Any = client.get(owner_key(request_id))
    if owner not in {None, backbone_id} and client.exists(lease_key(str(owner))):
        logger.warning("request %s was delivered again while %s serves it: ignored", request_id, owner)
        return False
    last: Any = client.xrevrange(stream_key(request_id), count=1)
    number = 0
    if last:
        number = entry_number(last[0][0])
        try:
            if is_last(event_from_json(last[0][1][EVENT_FIELD])):
                return False
        except (EventError, KeyError):
            logger.warning("the last entry of request %s cannot be read", request_id)
    logger.error("request %s was delivered again after %s had claimed it: refused", request_id, owner)
    fields: Any = {EVENT_FIELD: event_to_json(_REDELIVERED)}
    client.xadd(stream_key(request_id), fields, id=entry_id(number + 1))
    client.expire(stream_key(request_id), KEEP_S)
    return True


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
