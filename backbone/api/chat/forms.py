"""The two forms in which OpenAI's API writes choices, whole and as chunks of a stream.

A form belongs to one reply and knows how far each choice is. `chat.replies` and `chat.streaming` put the envelope
around.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

from backbone.api.chat.logprobs import TextOffsets, chat_logprobs, completion_logprobs
from backbone.stream.events import Token
from backbone.stream.payloads import RequestKind

Choice = dict[str, Any]


class Form(Protocol):
    """`index` counts the choices of the whole reply; `tokens` have log-probabilities when they were asked for."""

    whole_object: str
    chunk_object: str

    def whole(self, index: int, tokens: Sequence[Token], finish_reason: str) -> Choice:
        """A complete choice."""

    def first(self, index: int) -> Choice | None:
        """What a stream says of a choice before its first token."""

    def delta(self, index: int, token: Token) -> Choice | None:
        """One token of a stream; None when there is nothing to show yet."""

    def last(self, index: int, finish_reason: str) -> Choice:
        """A choice's end in a stream."""


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
    """A new form for one reply."""
    if kind is RequestKind.CHAT:
        return ChatForm(wants_logprobs=wants_logprobs)
    return CompletionForm(wants_logprobs=wants_logprobs)
