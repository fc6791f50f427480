"""The JSON of choices and their log-probabilities in OpenAI's two forms, whole and as chunks of a stream.

A form belongs to one reply and tracks the progress of its choices. `chat.replies` writes the JSON around the choices.
"""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

from backbone.stream.events import Token, TopLogprob
from backbone.stream.payloads import RequestKind

Choice = dict[str, Any]


class Form(Protocol):
    """`index` counts the choices of the whole reply; `tokens` have log-probabilities if the request wants them."""

    whole_object: str
    chunk_object: str

    def whole(self, index: int, tokens: Sequence[Token], finish_reason: str) -> Choice:
        """Return a complete choice."""

    def first(self, index: int) -> Choice | None:
        """Return the chunk that comes before a choice's first token, if the form has one."""

    def delta(self, index: int, token: Token) -> Choice | None:
        """Return the chunk of one token; None if the token has nothing to show yet."""

    def last(self, index: int, finish_reason: str) -> Choice:
        """Return the chunk that ends a choice."""


class CompletionForm:
    """/v1/completions."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, *, wants_logprobs: bool) -> None:
        self._wants_logprobs = wants_logprobs
        self._offsets: defaultdict[int, TextOffsets] = defaultdict(TextOffsets)

    def whole(self, index: int, tokens: Sequence[Token], finish_reason: str) -> Choice:
        text = "".join(token.text for token in tokens)
        return self._choice(index, text, self._logprobs(index, tokens), finish_reason)

    def first(self, index: int) -> Choice | None:
        return None

    def delta(self, index: int, token: Token) -> Choice | None:
        if not token.text and not self._wants_logprobs:
            return None
        return self._choice(index, token.text, self._logprobs(index, [token]), None)

    def last(self, index: int, finish_reason: str) -> Choice:
        return self._choice(index, "", None, finish_reason)

    def _logprobs(self, index: int, tokens: Sequence[Token]) -> dict[str, Any] | None:
        return completion_logprobs(tokens, self._offsets[index]) if self._wants_logprobs else None

    @staticmethod
    def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None) -> Choice:
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish_reason}


class ChatForm:
    """/v1/chat/completions."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, *, wants_logprobs: bool) -> None:
        self._wants_logprobs = wants_logprobs

    def whole(self, index: int, tokens: Sequence[Token], finish_reason: str) -> Choice:
        message = {"role": "assistant", "content": "".join(token.text for token in tokens), "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(tokens),
            "finish_reason": finish_reason,
        }

    def first(self, index: int) -> Choice | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def delta(self, index: int, token: Token) -> Choice | None:
        if not token.text and not self._wants_logprobs:
            return None
        return self._chunk(index, {"content": token.text}, self._logprobs([token]), None)

    def last(self, index: int, finish_reason: str) -> Choice:
        return self._chunk(index, {}, None, finish_reason)

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        return chat_logprobs(tokens) if self._wants_logprobs else None

    @staticmethod
    def _chunk(index: int, delta: dict[str, str], logprobs: dict[str, Any] | None, finish_reason: str | None) -> Choice:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def form_for(kind: RequestKind, *, wants_logprobs: bool) -> Form:
    """Return a new form for one reply."""
    if kind is RequestKind.CHAT:
        return ChatForm(wants_logprobs=wants_logprobs)
    return CompletionForm(wants_logprobs=wants_logprobs)


def shown(data: bytes) -> str:
    """Return a token's bytes as text; incomplete characters as `bytes:\\xe2\\x80`, like OpenAI's older API."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class TextOffsets:
    """The offset of each token in a choice's text, in characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_characters = 0

    def next(self, data: bytes) -> int:
        """Return the offset of the next token, which has these bytes."""
        offset = self._n_characters
        self._n_characters += len(self._decoder.decode(data))
        return offset


def chat_logprobs(tokens: Sequence[Token]) -> dict[str, Any]:
    """Return `choices[].logprobs` of a chat."""
    content = [
        {**_chat_entry(token.data or b"", token.logprob), "top_logprobs": [_chat_top(t) for t in token.top_logprobs]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[Token], offsets: TextOffsets) -> dict[str, Any]:
    """Return `choices[].logprobs` of a completion."""
    return {
        "tokens": [shown(token.data or b"") for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_completion_tops(token.top_logprobs) for token in tokens],
        "text_offset": [offsets.next(token.data or b"") for token in tokens],
    }


def _completion_tops(tops: Sequence[TopLogprob]) -> dict[str, float]:
    """Return them by text, likeliest first; of tokens with the same text the likelier one counts."""
    found: dict[str, float] = {}
    for top in tops:
        found.setdefault(shown(top.data), top.logprob)
    return found


def _chat_top(top: TopLogprob) -> dict[str, Any]:
    return _chat_entry(top.data, top.logprob)


def _chat_entry(data: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": shown(data), "logprob": logprob, "bytes": list(data)}
