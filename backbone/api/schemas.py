"""Types of replies that several endpoints share or that have no folder of their own, for the OpenAPI page.

Replies are written as plain JSON, without these types; a test checks that they match.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Refuses unknown fields and values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ModelFacts(StrictModel):
    """Kvasir's own facts about a model: its context in tokens, its architecture, the fingerprint of its computation.

    `chat`: whether its file has a chat template; without one the model only completes prompts.
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
    """All models that are served now."""

    object: Literal["list"]
    data: list[ModelReply]


class SwarmUsage(StrictModel):
    """The reply's row-experts (one token's row through one expert) and the share of each source; shares sum to 1.

    `unconfirmed` are workers whose answers were used before a check, `flagged_workers` those of them that are known to
    have lied. `requests` are the ids of the records at /v1/requests/{id}, one for each prompt. `n_drafted` tokens were
    guessed and computed ahead; the model then chose `n_accepted` of them.
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
    """Tokens, and the swarm's share."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    kvasir: SwarmUsage


class Flag(StrictModel):
    """A worker that is proven to have lied, and the evidence's id. `operator` stands for the operator's own workers."""

    worker: str
    evidence_id: str


class RecordTokens(StrictModel):
    """The tokens of an answered request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class RecordShares(StrictModel):
    """An answered request's row-experts and the share of each source; shares sum to 1."""

    row_experts: int
    workers: float
    hot: float
    fallback: float


class RequestReply(StrictModel):
    """The record of a request that has ended. Times are in Unix seconds."""

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
    """A worker by its node's id (`operator` stands for the operator's own workers), or the backbone itself."""

    kind: Literal["worker", "hot", "fallback"]
    worker: str | None


class TraceReply(StrictModel):
    """Where the last tokens of a request's first answer were computed.

    The first of `tokens` has the index `first_token` in the answer. A token has for each of `layers` the sources that
    computed something for it, as pairs: the index in `sources`, and the number of row-experts.
    """

    id: str
    object: Literal["request.trace"]
    first_token: int
    layers: list[int]
    sources: list[TraceSourceReply]
    tokens: list[list[list[tuple[int, int]]]]


class GuestKeyReply(StrictModel):
    """A guest's key for the playground. `expires` is in Unix seconds."""

    object: Literal["playground.key"]
    key: str
    expires: int


class ErrorFacts(StrictModel):
    """The error. docs/use/api.md lists the codes."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(StrictModel):
    """Any error; in a stream the data of an `error` event."""

    error: ErrorFacts
