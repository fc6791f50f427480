"""One request inside the engine: its tokens, its text so far, its place in the cache, and why it ended.

`engine` makes and advances sequences, `scheduler` reads them. A sequence knows no model and no logits' origin.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backbone.engine.drafts.drafter import Drafter
from backbone.engine.drafts.length import HeadShare
from backbone.engine.sampling.choice import RandomDraw, Sampled, TokenHistory, sample
from backbone.engine.text.detokenizer import IncrementalDetokenizer, StopMatcher
from backbone.engine.text.tokenizer import Tokenizer
from backbone.sampling_params import SamplingParams
from kvasir.errors import RequestError


class FinishReason(StrEnum):
    """Why a sequence ended, in the API's words."""

    STOP = "stop"  # an end-of-generation token, or a stop string
    LENGTH = "length"  # max_tokens, or the context is full
    CANCELLED = "cancelled"
    FAILED = "failed"  # its step, or the choice of its token, raised


class Progress(NamedTuple):
    """What one sampled token did: the text that may be shown now, and the end if it was the last."""

    sampled: Sampled
    text: str
    finish_reason: FinishReason | None


class Sequence:
    """A prompt and its answer.

    `n_cached` tokens of prompt and output are in the cache of `slot`; the last output token is not yet, it is the
    next decode row. `choice` numbers the answers to one request, so that they differ under one seed.
    """

    def __init__(
        self,
        request_id: str,
        prompt_ids: Tokens[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        *,
        choice: int = 0,
        is_strict: bool = False,
        max_drafts: int = 0,
    ) -> None:
        """`is_strict`: every worker's answer is confirmed before it is used. RequestError when the prompt is empty.

        `max_drafts` bounds the tokens of a draft; 0 drafts nothing.
        """
        if not prompt_ids:
            raise RequestError("the prompt is empty: give at least one token")
        self.request_id = request_id
        self.prompt_ids = tuple(prompt_ids)
        self.params = params
        self.choice = choice
        self.is_strict = is_strict
        self.slot: int | None = None
        self.n_cached = 0
        self.output_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._eog_ids = tokenizer.eog_ids
        self._history = TokenHistory(prompt_ids)
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stop = StopMatcher(params.stop)
        self._drafter = Drafter(prompt_ids, max_drafts) if max_drafts else None

    @property
    def n_tokens(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def n_pending(self) -> int:
        """Tokens that the model has not seen yet: the rest of the prompt, or the last sampled token."""
        return self.n_tokens - self.n_cached

    def next_tokens(self, limit: int) -> list[int]:
        """The next tokens to run, at most `limit`."""
        n_prompt = len(self.prompt_ids)
        if self.n_cached < n_prompt:
            return list(self.prompt_ids[self.n_cached : self.n_cached + limit])
        return self.output_ids[self.n_cached - n_prompt :][:limit]

    @property
    def may_draft(self) -> bool:
        """Whether it was made with room for drafts."""
        return self._drafter is not None

    def draft(self, row_cost: float, limit: int, n_ctx: int) -> tuple[int, ...]:
        """Tokens that probably follow the pending one, at most `limit` and none that could not count.

        See `drafts.length` for the relative `row_cost`.
        """
        if self._drafter is None:
            return ()
        return self._drafter.draft(self.output_ids, row_cost, min(limit, self._n_most_drafts(n_ctx)))

    def head_drafts(self, row_cost: float, head_cost: float, limit: int, n_ctx: int, known: HeadShare) -> int:
        """How many tokens the MTP head had better draft in place of `draft`. See `Drafter` for costs and shares."""
        if self._drafter is None:
            return 0
        room = min(limit, self._n_most_drafts(n_ctx))
        return self._drafter.head_drafts(self.output_ids, row_cost, head_cost, room, known)

    def note_head(self, guessed: Tokens[int]) -> None:
        """The MTP head's guesses of the next tokens, so that its share of right ones is known."""
        if self._drafter is not None:
            self._drafter.note_head(self.output_ids, guessed)

    def _n_most_drafts(self, n_ctx: int) -> int:
        """Drafted tokens that could count: the last token of all needs no row."""
        ends_at = n_ctx - len(self.prompt_ids)
        if self.params.max_tokens is not None:
            ends_at = min(ends_at, self.params.max_tokens)
        return ends_at - len(self.output_ids) - 1

    def advance(self, logits: NDArray[np.float32], n_ctx: int) -> Progress:
        """Sample the next token from f32 [n_vocab] and say where the sequence must end; the engine ends it.

        An end-of-generation token is counted but shows no text. Raises RequestError when the logits are not finite.
        """
        sampled = sample(logits, self._history, self.params, self._draw())
        self._history.add(sampled.token)
        self.output_ids.append(sampled.token)
        if sampled.token in self._eog_ids:
            return Progress(sampled, self._flush(), FinishReason.STOP)
        update = self._stop.push(self._detokenizer.push(sampled.token))
        if update.stop is not None:
            return Progress(sampled, update.text, FinishReason.STOP)
        if len(self.output_ids) == self.params.max_tokens or self.n_tokens >= n_ctx:
            return Progress(sampled, update.text + self._flush(), FinishReason.LENGTH)
        return Progress(sampled, update.text, None)

    def _draw(self) -> RandomDraw | None:
        if self.params.is_greedy:
            return None
        if self.params.seed is None:
            raise RequestError("sampling needs a seed: the engine sets one where the request has none")
        return RandomDraw(self.params.seed, self.choice, len(self.output_ids))

    def _flush(self) -> str:
        """Text that was held back; it may still complete a stop string."""
        update = self._stop.push(self._detokenizer.finish())
        return update.text + self._stop.finish()
