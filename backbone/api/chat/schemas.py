"""The bodies and replies of completions and chat, as the OpenAPI page shows them.

Ranges are those of `SamplingParams`; a test checks that both agree. Unknown fields are refused by name. A field of
OpenAI's that is not supported (`errors.UNSUPPORTED`) is accepted with a value that has no effect. None stands for a
field that the client left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from backbone.api.schemas import StrictModel, UsageReply
from backbone.sampling_params import MAX_BIASED_TOKENS, MAX_LOGPROBS, MAX_STOP_LENGTH, MAX_STOPS

MAX_PROMPTS = 16
MAX_MESSAGES = 4096
MAX_TOKEN_ID = (1 << 31) - 1
MAX_TOKENS = 1 << 31
MAX_SEED = (1 << 64) - 1


def _one_or_many(value: Any) -> str:
    """Return the tag of the alternative that a value belongs to, so that an error is about that one alone."""
    return "<many>" if isinstance(value, list) else "<one>"


def _prompt_kind(value: Any) -> str:
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "<token lists>"
    return "<tokens>" if isinstance(first, int) else "<texts>"


StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
StopTexts = Annotated[list[StopText], Field(max_length=MAX_STOPS)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
BiasedToken = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
Nothing = Annotated[list[Any], Field(max_length=0)]
MaxTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS), Tag("<texts>")]
    | Annotated[TokenIds, Tag("<tokens>")]
    | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS), Tag("<token lists>")],
    Discriminator(_prompt_kind),
]


class StreamOptions(StrictModel):
    """With `stream` only."""

    include_usage: bool | None = Field(default=None, description="A last chunk with `usage` and no choices.")
    include_obfuscation: Literal[False] | None = None


class GenerationBody(StrictModel):
    """The fields that completions and chat share."""

    model: str = Field(min_length=1, max_length=200, description="A name from /v1/models.")
    temperature: float | None = Field(default=None, ge=0, le=2, description="0: the likeliest token. Default 1.")
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=1 << 31, description="0: off, the default.")
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10, description="1: off, the default.")
    seed: int | None = Field(
        default=None, ge=0, le=MAX_SEED, description="The same request with the same seed gives the same text."
    )
    stop: (
        Annotated[Annotated[StopText, Tag("<one>")] | Annotated[StopTexts, Tag("<many>")], Discriminator(_one_or_many)]
        | None
    ) = None
    logit_bias: Annotated[dict[BiasedToken, Bias], Field(max_length=MAX_BIASED_TOKENS)] | None = None
    n: int | None = Field(default=None, ge=1, le=8, description="Answers to each prompt. Default 1.")
    max_tokens: MaxTokens | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, description="Accepted and not used.")
    strict: bool | None = Field(
        default=None, description="Kvasir's own: confirm every worker's answer before it is used. Slower."
    )
    metadata: dict[str, str] | None = Field(default=None, description="Accepted and not used.")
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Prompt = Field(description="A text, a list of texts, a list of token ids, or a list of such lists.")
    logprobs: int | None = Field(
        default=None, ge=0, le=MAX_LOGPROBS, description="Log-probabilities of the N likeliest tokens."
    )
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None


class TextPart(StrictModel):
    """A part of a message; only text is supported."""

    type: Literal["text"]
    text: str


class Message(StrictModel):
    """One message. The role `developer` becomes `system`; parts of the content are joined."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[str, Tag("<one>")] | Annotated[list[TextPart], Field(min_length=1), Tag("<many>")],
        Discriminator(_one_or_many),
    ]
    name: str | None = Field(default=None, max_length=200)
    refusal: None = None
    audio: None = None
    annotations: Nothing | None = None
    function_call: None = None
    tool_calls: Nothing | None = None
    tool_call_id: None = None


class ResponseFormat(StrictModel):
    """Plain text, the default."""

    type: Literal["text"]


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: MaxTokens | None = Field(default=None, description="The newer name of `max_tokens`.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS, description="With `logprobs` only.")
    tools: Nothing | None = None
    tool_choice: Literal["none", "auto"] | None = None
    functions: Nothing | None = None
    function_call: Literal["none", "auto"] | None = None
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None
    audio: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None


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
