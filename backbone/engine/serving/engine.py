"""The engine: running and waiting sequences over one model. `step` is schedule, forward, choose, and nothing else.

Callers add sequences and run steps from one event loop. The engine knows no request protocol; what a step produced
comes back as events. Drafts are verified by choosing each token as ever: one that differs from its draft drops the
rows after it, so that a text is the same with and without drafts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from backbone.engine.model.batch import Batch, SlotTokens
from backbone.engine.model.expert_caller import ExpertCaller, RequestRows, StepAware, StepRows
from backbone.engine.model.kv_cache import Kept
from backbone.engine.model.model import Model
from backbone.engine.sampling.choice import Sampled
from backbone.engine.serving.draft_sources import DraftSources
from backbone.engine.serving.scheduler import Chunk, plan_step, rows_left
from backbone.engine.serving.sequence import FinishReason, Sequence
from backbone.engine.serving.token_choice import Choice, Logits, TokenChooser
from kvasir.errors import RequestError


class TokenEvent(NamedTuple):
    """One new token of a sequence; `sampled` is None when the sequence failed, and `error` is then why."""

    sequence: Sequence
    sampled: Sampled | None
    text: str
    finish_reason: FinishReason | None
    error: Exception | None = None


class Engine:
    """Sequences that share a model's steps. Not thread-safe: one event loop owns it."""

    def __init__(
        self,
        model: Model,
        experts: ExpertCaller,
        *,
        max_rows: int = 512,
        on_logits: Callable[[Sequence, Logits], None] = lambda sequence, logits: None,
        on_chunks: Callable[[tuple[Chunk, ...]], None] = lambda chunks: None,
        clock: Callable[[], float] = time.perf_counter,
        chooser: TokenChooser | None = None,
    ) -> None:
        """`max_rows` bounds the rows of a step beyond one for each decoding sequence.

        `on_logits` sees the f32 [n_vocab] that each token was sampled from, `on_chunks` a step's rows before they run.
        Several engines may share a model: what they run is on different slots. The clock only decides how far
        sequences with drafts draft. Without a `chooser` tokens are chosen on the loop's thread.
        """
        self._model = model
        self._experts = experts
        self._max_rows = max_rows
        self._on_logits = on_logits
        self._on_chunks = on_chunks
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._in_step: set[Sequence] = set()
        self._chooser = chooser or TokenChooser()
        self._clock = clock
        self._sources = DraftSources(model.mtp_head, self.n_ctx, clock)

    @property
    def n_sequences(self) -> int:
        """Sequences that wait or run, those included that were cancelled within the step in flight."""
        return len(self._waiting) + len(self._running)

    @property
    def n_ctx(self) -> int:
        """Tokens that one sequence may have, prompt and answer."""
        return self._model.cache.n_ctx

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self._waiting or self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises RequestError when its prompt leaves no room for an answer."""
        n_prompt = len(sequence.prompt_ids)
        if n_prompt >= self.n_ctx:
            raise RequestError(
                f"the prompt has {n_prompt} tokens and the context holds {self.n_ctx}: at least one must be left"
            )
        sequence.params.check_vocabulary(self._model.n_vocab)
        self._waiting.append(sequence)

    @property
    def movable(self) -> tuple[Sequence, ...]:
        """Sequences that `hand_over` takes now: all but those of a step in flight."""
        return tuple(s for s in (*self._running, *self._waiting) if s not in self._in_step)

    def hand_over(self, sequence: Sequence, other: Engine) -> None:
        """Let another engine over the same model go on with a movable sequence; its slot stays its own."""
        if sequence.slot is None:
            self._waiting.remove(sequence)
            other._waiting.append(sequence)
        else:
            self._running.remove(sequence)
            other._running.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence; one that has ended stays as it is. Its slot is free now, or when the step in flight ends."""
        if sequence.finish_reason is None:
            sequence.finish_reason = FinishReason.CANCELLED
            if sequence not in self._in_step:
                self._remove(sequence)

    async def step(self) -> list[TokenEvent]:
        """Run one step; returns the new tokens, and an event with `error` for each sequence that failed and is out.

        A forward that raises fails the sequences in it, a token that cannot be chosen its own sequence alone. One step
        at a time. When it is cancelled, its sequences must be cancelled.
        """
        cache, queues, max_rows = self._model.cache, (self._running, self._waiting), self._max_rows
        rule = await self._sources.next_rule(self._running, lambda: rows_left(*queues, cache.n_free, max_rows))
        plan = plan_step(*queues, cache.n_free, max_rows, rule)
        if not plan.chunks:
            return []
        for sequence in plan.admitted:
            sequence.slot = cache.allocate()
            self._running.append(sequence)
            self._waiting.remove(sequence)
        sampling = [chunk for chunk in plan.chunks if chunk.is_sampling]
        self._on_chunks(plan.chunks)
        if isinstance(self._experts, StepAware):
            self._experts.begin_step(StepRows.of(_request_rows(chunk) for chunk in plan.chunks))
        self._in_step = {chunk.sequence for chunk in plan.chunks}
        began = self._clock()
        try:
            logits, chosen = await self._compute(plan.chunks, sampling)
        except Exception as error:  # whatever it was, the other sequences go on
            self._leave_step()
            return [self._fail(chunk.sequence, error) for chunk in plan.chunks if chunk.sequence.slot is not None]
        finally:
            self._leave_step()
        for chunk in plan.chunks:
            chunk.sequence.n_cached += chunk.n_own
        events = self._take(sampling, logits, chosen)
        if len(logits) == sum(chunk.n_rows for chunk in plan.chunks):  # rows of prompts cost less
            self._sources.note_step(len(logits), len(events), self._clock() - began)
        return events

    def _take(self, sampling: list[Chunk], logits: Logits, chosen: list[list[Choice]]) -> list[TokenEvent]:
        """The new tokens of each chunk's sequence, in order; what was drafted and not chosen is forgotten."""
        events, kept, row = [], [], 0
        for chunk, choices in zip(sampling, chosen, strict=True):
            sequence = chunk.sequence
            if sequence.finish_reason is None:
                events += [self._event(sequence, logits[row + n], choice) for n, choice in enumerate(choices)]
                if chunk.drafts and sequence.slot is not None:
                    sequence.n_cached += len(choices) - 1
                    kept.append(Kept(sequence.slot, chunk.n_own + len(choices) - 1))
            row += 1 + len(chunk.drafts)
        if kept:
            self._model.settle(kept)
        return events

    def _leave_step(self) -> None:
        """Take out what was cancelled while its rows were computed or its tokens chosen."""
        cancelled = [sequence for sequence in self._in_step if sequence.finish_reason is not None]
        self._in_step = set()
        for sequence in cancelled:
            self._remove(sequence)

    async def _compute(self, chunks: tuple[Chunk, ...], sampling: list[Chunk]) -> tuple[Logits, list[list[Choice]]]:
        logits = await self._forward(chunks, sampling)
        return logits, await self._chooser.choose(sampling, logits, self.n_ctx)

    async def _forward(self, chunks: tuple[Chunk, ...], sampling: list[Chunk]) -> Logits:
        """Logits of the chunks that reach their sequence's end, of its last row and of each draft's."""
        batch = Batch.of([_slot_tokens(chunk) for chunk in chunks], self._model.cache)
        wanted = {id(chunk) for chunk in sampling}
        rows: list[int] = []
        for chunk, last in zip(chunks, batch.last_rows, strict=True):
            if id(chunk) in wanted:
                rows += range(last - len(chunk.drafts), last + 1)
        logits = await self._model.forward(batch, self._experts, rows)
        return logits.float().cpu().numpy()

    def _event(self, sequence: Sequence, logits: Logits, choice: Choice) -> TokenEvent:
        self._on_logits(sequence, logits)
        if choice.progress is None:
            return self._fail(sequence, choice.error)
        sampled, text, reason = choice.progress
        if reason is not None:
            sequence.finish_reason = reason
            self._remove(sequence)
        return TokenEvent(sequence, sampled, text, reason)

    def _fail(self, sequence: Sequence, error: Exception | None) -> TokenEvent:
        sequence.finish_reason = FinishReason.FAILED
        self._remove(sequence)
        return TokenEvent(sequence, None, "", FinishReason.FAILED, error)

    def _remove(self, sequence: Sequence) -> None:
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
            self._model.cache.free(sequence.slot)
            sequence.slot = None


def _request_rows(chunk: Chunk) -> RequestRows:
    return RequestRows(chunk.sequence.request_id, chunk.n_rows, chunk.sequence.is_strict)


def _slot_tokens(chunk: Chunk) -> SlotTokens:
    sequence = chunk.sequence
    if sequence.slot is None:
        raise RequestError(f"sequence {sequence.request_id} has no slot")
    return SlotTokens(sequence.slot, [*sequence.next_tokens(chunk.n_own), *chunk.drafts], bool(chunk.drafts))
