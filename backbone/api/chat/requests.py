"""Requests for the backbone, made from a validated body: defaults, names, seeds, rules between fields.

`routes` calls it. A body with several prompts becomes one request for each. Ids and seeds come from an injected source.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from backbone.api.chat.schemas import MAX_SEED, MAX_TOKEN_ID, ChatBody, CompletionBody, GenerationBody, Message
from backbone.api.errors import ApiError
from backbone.sampling_params import SamplingParams
from backbone.stream.payloads import GenerationRequest, RequestKind

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for completions; a chat may fill the context


@dataclass(frozen=True, slots=True)
class Asked:
    """A body's requests, one for each prompt and each with `n` choices, and how the reply is written."""

    kind: RequestKind
    model: str
    created: int
    requests: tuple[GenerationRequest, ...]
    n: int
    stream: bool
    include_usage: bool
    wants_logprobs: bool

    @property
    def reply_id(self) -> str:
        """Return the reply's `id` in OpenAI's form."""
        prefix = "chatcmpl" if self.kind is RequestKind.CHAT else "cmpl"
        return f"{prefix}-{self.requests[0].request_id}"

    @property
    def prompt_field(self) -> str:
        """Return the name of the body's field that holds the text."""
        return "messages" if self.kind is RequestKind.CHAT else "prompt"


@dataclass(frozen=True, slots=True)
class RequestMaker:
    """Makes requests for the key with the public id `owner`.

    `random_bits(n)` returns n random bits, for ids and for the seed where the client sets none.
    """

    deadline_s: float
    owner: str = ""
    clock: Callable[[], float] = time.time
    random_bits: Callable[[int], int] = secrets.randbits

    def completion(self, body: CompletionBody) -> Asked:
        """Make one request for each prompt, all with the same sampling. Raises ApiError."""
        sampling = self._sampling(body, max_tokens=body.max_tokens or DEFAULT_COMPLETION_TOKENS)
        return self._asked(body, RequestKind.COMPLETION, [{"prompt": prompt} for prompt in _prompts(body)], sampling)

    def chat(self, body: ChatBody) -> Asked:
        """Make one request. Raises ApiError for fields that contradict each other."""
        given = {value for value in (body.max_tokens, body.max_completion_tokens) if value is not None}
        if len(given) > 1:
            raise ApiError(
                400, "invalid_value", "max_tokens and max_completion_tokens differ: give one", param="max_tokens"
            )
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "invalid_value", "top_logprobs needs logprobs to be true", param="top_logprobs")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        sampling = self._sampling(body, max_tokens=next(iter(given), None), logprobs=logprobs)
        messages = tuple(_message(message) for message in body.messages)
        return self._asked(body, RequestKind.CHAT, [{"messages": messages}], sampling)

    def _sampling(self, body: GenerationBody, **own: Any) -> SamplingParams:
        """Take the body's fields that are named like a sampling parameter, except for those in `own`."""
        values = {field.name: getattr(body, field.name) for field in fields(SamplingParams)} | own
        if values["seed"] is None:
            values["seed"] = self.random_bits(64) & MAX_SEED
        if isinstance(body.stop, str):
            values["stop"] = [body.stop]
        _check_biased(body.logit_bias or {})
        return SamplingParams.from_values(values)

    def _asked(
        self, body: GenerationBody, kind: RequestKind, texts: list[dict[str, Any]], sampling: SamplingParams
    ) -> Asked:
        stream = bool(body.stream)
        if body.stream_options is not None and not stream:
            raise ApiError(400, "invalid_value", "stream_options needs stream to be true", param="stream_options")
        n, created = body.n or 1, self.clock()
        requests = tuple(
            GenerationRequest(
                request_id=f"{self.random_bits(128):032x}",
                model=body.model,
                kind=kind,
                deadline_s=self.deadline_s,
                created=created,
                n=n,
                sampling=sampling,
                strict=bool(body.strict),
                owner=self.owner,
                **text,
            )
            for text in texts
        )
        return Asked(
            kind=kind,
            model=body.model,
            created=int(created),
            requests=requests,
            n=n,
            stream=stream,
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            wants_logprobs=sampling.logprobs is not None,
        )


def _prompts(body: CompletionBody) -> list[str | tuple[int, ...]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    tokens = tuple(part for part in prompt if isinstance(part, int))
    if tokens:
        return [tokens]
    return [part if isinstance(part, str) else tuple(part) for part in prompt if not isinstance(part, int)]


def _message(message: Message) -> dict[str, str]:
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    flat = {"role": "system" if message.role == "developer" else message.role, "content": text}
    return flat if message.name is None else flat | {"name": message.name}


def _check_biased(bias: Mapping[str, float]) -> None:
    for token in bias:
        if int(token) > MAX_TOKEN_ID:
            raise ApiError(400, "invalid_value", f"logit_bias: token {token} is too large", param="logit_bias")
