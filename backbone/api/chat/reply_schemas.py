"""What the API answers, for the OpenAPI page.

Replies are built as plain JSON by `chat.forms`, `chat.replies` and `api.errors`; a test holds them against these types.
"""

from __future__ import annotations

from typing import Literal

from backbone.api.chat.schemas import StrictModel


class ModelFacts(StrictModel):
    """What Kvasir adds to a model: its context in tokens, its architecture, the fingerprint of what computes it.

    `chat`: whether its file has a chat template, without which it only goes on from prompts.
    """

    n_ctx: int
    architecture: str
    system_fingerprint: str
    chat: bool


class ModelReply(StrictModel):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    kvasir: ModelFacts


class ModelList(StrictModel):
    """All models."""

    object: Literal["list"]
    data: list[ModelReply]


class SwarmUsage(StrictModel):
    """Who computed this reply's row-experts (a row of one token times an expert); the shares add up to 1.

    `unconfirmed` are the workers whose answers were used before anybody had checked them, `flagged_workers` those of
    them that have lied. `requests` are the ids of the records at /v1/requests/{id}, one for each prompt. `n_drafted`
    tokens were guessed and computed ahead, `n_accepted` of them were the ones that the model chose.
    """

    row_experts: int
    workers: float
    hot: float
    fallback: float
    flagged: bool
    flagged_workers: list[str]
    unconfirmed: list[str]
    requests: list[str]
    n_drafted: int
    n_accepted: int


class UsageReply(StrictModel):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    kvasir: SwarmUsage


class Flag(StrictModel):
    """A worker that is proven to have lied, and the evidence's id. `operator`: one of the operator's own."""

    worker: str
    evidence_id: str


class RecordTokens(StrictModel):
    """Tokens of a request that was answered."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class RecordShares(StrictModel):
    """Who computed an answered request's row-experts; the shares add up to 1."""

    row_experts: int
    workers: float
    hot: float
    fallback: float


class RequestReply(StrictModel):
    """What is kept of a request that has ended. Times are unix seconds."""

    id: str
    object: Literal["request"]
    model: str
    created: int
    ended: int
    strict: bool
    error_code: str | None
    usage: RecordTokens | None
    shares: RecordShares | None
    flagged: bool
    flags: list[Flag]
    unconfirmed: list[str]


class TraceSourceReply(StrictModel):
    """Who computed: a worker by its node's id (`operator`: one of the operator's own), or the backbone itself."""

    kind: Literal["worker", "hot", "fallback"]
    worker: str | None


class TraceReply(StrictModel):
    """Where the last tokens of a request's first answer were computed.

    The first of `tokens` is number `first_token` of the answer, from 0. A token has for each of `layers` the sources
    that computed something for it: the index in `sources`, and how many row-experts it computed.
    """

    id: str
    object: Literal["request.trace"]
    first_token: int
    layers: list[int]
    sources: list[TraceSourceReply]
    tokens: list[list[list[tuple[int, int]]]]


class GuestKeyReply(StrictModel):
    """A key for a visitor of the playground. `expires` is in unix seconds."""

    object: Literal["playground.key"]
    key: str
    expires: int


class CompletionLogprobs(StrictModel):
    """Log-probabilities of a completion's tokens: the model's own, before any sampling."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(StrictModel):
    """One answer."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class CompletionReply(StrictModel):
    """The reply of /v1/completions. A stream has the same object in each chunk."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageReply | None


class ChatTopLogprob(StrictModel):
    """One of the likeliest tokens."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(ChatTopLogprob):
    """A token of the answer."""

    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(StrictModel):
    """Log-probabilities of a chat's tokens: the model's own, before any sampling."""

    content: list[ChatTokenLogprob]
    refusal: None


class ChatMessage(StrictModel):
    """The answer."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(StrictModel):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatReply(StrictModel):
    """The reply of /v1/chat/completions. A stream has `chat.completion.chunk` objects with `delta`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageReply


class ErrorFacts(StrictModel):
    """What went wrong. Codes are listed in docs/use/api.md."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(StrictModel):
    """Any error; in a stream the data of an `error` event."""

    error: ErrorFacts
