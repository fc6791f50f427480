"""From a checked body to the requests that travel to the backbone: defaults, names, seeds, rules between fields.

Called by `api`. One body may be several requests: one for each prompt. Ids and seeds come from the injected source.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backbone.api.chat.schemas import MAX_SEED, MAX_TOKEN_ID, ChatBody, CompletionBody, GenerationBody, Message
from backbone.api.errors import ApiError
from backbone.stream.payloads import GenerationRequest, RequestKind

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for completions; a chat may fill the context
_PASSED_ON = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for. `requests` are one for each prompt, each with `n` choices."""

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
        """The reply's `id`, as OpenAI's clients know it."""
        prefix = "chatcmpl" if self.kind is RequestKind.CHAT else "cmpl"
        return f"{prefix}-{self.requests[0].request_id}"

    @property
    def prompt_field(self) -> str:
        """Where the client gave its text."""
        return "messages" if self.kind is RequestKind.CHAT else "prompt"


@dataclass(frozen=True, slots=True)
class RequestMaker:
    """Makes requests. `random_bits(n)` gives n random bits, for ids and for seeds that the client left to us.

    `owner` is the public id of the key that asks.
    """

    deadline_s: float
    owner: str = ""
    clock: Callable[[], float] = time.time
    random_bits: Callable[[int], int] = secrets.randbits

    def completion(self, body: CompletionBody) -> Asked:
        """One request for each prompt, all with the same sampling. Raises ApiError."""
        sampling = self._sampling(body, body.max_tokens or DEFAULT_COMPLETION_TOKENS)
        if body.logprobs is not None:
            sampling["logprobs"] = body.logprobs
        return self._asked(body, RequestKind.COMPLETION, [{"prompt": prompt} for prompt in _prompts(body)], sampling)

    def chat(self, body: ChatBody) -> Asked:
        """One request. Raises ApiError for fields that contradict each other."""
        given = {value for value in (body.max_tokens, body.max_completion_tokens) if value is not None}
        if len(given) > 1:
            raise ApiError(
                400, "invalid_value", "max_tokens and max_completion_tokens differ: give one", param="max_tokens"
            )
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "invalid_value", "top_logprobs needs logprobs to be true", param="top_logprobs")
        sampling = self._sampling(body, next(iter(given), None))
        if body.logprobs:
            sampling["logprobs"] = body.top_logprobs or 0
        messages = tuple(_message(message) for message in body.messages)
        return self._asked(body, RequestKind.CHAT, [{"messages": messages}], sampling)

    def _sampling(self, body: GenerationBody, max_tokens: int | None) -> dict[str, Any]:
        sampling = {name: value for name in _PASSED_ON if (value := getattr(body, name)) is not None}
        if "seed" not in sampling:
            sampling["seed"] = self.random_bits(64) & MAX_SEED
        if max_tokens is not None:
            sampling["max_tokens"] = max_tokens
        if body.stop is not None:
            sampling["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
        if body.logit_bias:
            sampling["logit_bias"] = body.logit_bias
            _check_biased(body.logit_bias)
        return sampling

    def _asked(
        self, body: GenerationBody, kind: RequestKind, texts: list[dict[str, Any]], sampling: Mapping[str, Any]
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
            wants_logprobs="logprobs" in sampling,
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
    told = {"role": "system" if message.role == "developer" else message.role, "content": text}
    return told if message.name is None else told | {"name": message.name}


def _check_biased(bias: Mapping[str, float]) -> None:
    for token in bias:
        if int(token) > MAX_TOKEN_ID:
            raise ApiError(400, "invalid_value", f"logit_bias: token {token} is too large", param="logit_bias")
