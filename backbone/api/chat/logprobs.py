"""Log-probabilities in the two forms of OpenAI's API, from the backbone's token events.

Used by `chat.forms`. Bytes that are no whole characters are shown as the older API did: `bytes:\\xe2\\x80`.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from backbone.stream.events import Token, TopLogprob


def shown(data: bytes) -> str:
    """A token's bytes as a text."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class TextOffsets:
    """Where each token begins in a choice's text, counted in characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_characters = 0

    def next(self, data: bytes) -> int:
        """The offset of a token; the next one begins after it."""
        offset = self._n_characters
        self._n_characters += len(self._decoder.decode(data))
        return offset


def chat_logprobs(tokens: Sequence[Token]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""
    content = [
        {**_chat_entry(token.data or b"", token.logprob), "top_logprobs": [_chat_top(t) for t in token.top_logprobs]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[Token], offsets: TextOffsets) -> dict[str, Any]:
    """`choices[].logprobs` of a completion."""
    return {
        "tokens": [shown(token.data or b"") for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_completion_tops(token.top_logprobs) for token in tokens],
        "text_offset": [offsets.next(token.data or b"") for token in tokens],
    }


def _completion_tops(tops: Sequence[TopLogprob]) -> dict[str, float]:
    """Likeliest first; of tokens that look the same the likelier one counts."""
    found: dict[str, float] = {}
    for top in tops:
        found.setdefault(shown(top.data), top.logprob)
    return found


def _chat_top(top: TopLogprob) -> dict[str, Any]:
    return _chat_entry(top.data, top.logprob)


def _chat_entry(data: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": shown(data), "logprob": logprob, "bytes": list(data)}
