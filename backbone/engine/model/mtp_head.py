"""The MTP head of a model with its state by slot: what it knows of the running sequences, and its guesses.

`Model.forward` shows it every row, `draft_sources` asks it. Its keys and values lie in the model's cache, one layer
behind the decoding ones. It changes no answer: what it guesses is verified, and what it cannot follow it leaves alone.

Its row of position p needs the token of p + 1. So it is one row behind the model, and keeps the last hidden state.
Whatever lies in its cache beyond that, of drafts that were not kept, is overwritten before anything reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from backbone.engine.model.batch import Batch, Step
from backbone.engine.model.expert_caller import ExpertCaller
from backbone.engine.model.kv_cache import Kept, SlotCache
from backbone.engine.model.mtp_layer import Guessed, MtpLayer
from backbone.engine.ops.interface import RopeTable, Segment
from backbone.engine.ops.model_config import RopeConfig
from kvasir.errors import KvasirError

logger = logging.getLogger(__name__)

_LOST = -1


class SlotToken(NamedTuple):
    """A token of the sequence in a slot."""

    slot: int
    position: int
    token_id: int


class MtpHead:
    """Follows the slots of one model. Not thread-safe: one event loop owns it, as the cache."""

    def __init__(
        self, layer: MtpLayer, cache: SlotCache, ropes: Mapping[RopeConfig, RopeTable], experts: ExpertCaller
    ) -> None:
        """`experts` computes those of the layer."""
        self._layer = layer
        self._cache = cache
        self._ropes = ropes
        self._experts = experts
        ops, d_model = layer.ops, layer.joint.n_out
        self._n_seen = [_LOST] * cache.n_slot  # tokens whose hidden states were seen, the last of these kept:
        self._hidden = torch.zeros(cache.n_slot, d_model, dtype=ops.dtype, device=ops.device)
        self._tentative: dict[int, Tensor] = {}  # hidden states [n, d_model] of rows that may not be kept

    def see(self, batch: Batch, hidden: Tensor) -> None:
        """Take note of a forward's rows, hidden states [T, d_model] of its tokens."""
        try:
            self._remember(batch, hidden)
        except KvasirError as error:
            logger.warning("the MTP head drops %d sequences, which go on without it: %s", len(batch.segments), error)
            self.forget(segment.slot for segment in batch.segments)
            return
        n_firm = len(batch.segments) - batch.n_tentative
        slots, rows = [], []
        for number, (slot, first, n_rows, position) in enumerate(batch.segments):
            if not self._follows(slot, position):
                self._n_seen[slot] = _LOST
            elif number < n_firm:
                self._n_seen[slot] = position + n_rows
                slots.append(slot)
                rows.append(first + n_rows - 1)
            else:
                self._tentative[slot] = hidden[first : first + n_rows].clone()
        if slots:
            self._hidden[slots] = hidden[rows]

    def settle(self, kept: Iterable[Kept]) -> None:
        """Keep the first rows of tentative segments."""
        for slot, n_rows in kept:
            rows = self._tentative.pop(slot, None)
            if rows is not None and n_rows:
                self._n_seen[slot] += n_rows
                self._hidden[slot] = rows[n_rows - 1]

    def forget(self, slots: Iterable[int]) -> None:
        """Follow the sequences in these slots no longer; the next ones in them are followed again."""
        for slot in slots:
            self._n_seen[slot] = _LOST
            self._tentative.pop(slot, None)

    def is_ready(self, slot: int, n_cached: int) -> bool:
        """Whether it knows all of a slot's `n_cached` tokens, so that it can guess what follows the next one."""
        return n_cached > 0 and self._n_seen[slot] == n_cached and slot not in self._tentative

    def hidden(self, slots: Sequence[int]) -> Tensor:
        """The last hidden states [n, d_model] of slots that are ready."""
        return self._hidden[list(slots)]

    async def guess(self, tokens: Sequence[SlotToken], hidden: Tensor) -> Guessed:
        """What comes after each of these tokens, and the hidden states for guessing on from it.

        `hidden` [n, d_model] are those of the tokens before. Raises KernelError when a value is not finite.
        """
        segments = [Segment(token.slot, row, 1, token.position - 1) for row, token in enumerate(tokens)]
        token_ids = torch.tensor([token.token_id for token in tokens], dtype=torch.int64)
        return await self._layer.guess(token_ids, hidden, self._step(segments))

    def _remember(self, batch: Batch, hidden: Tensor) -> None:
        """Write the keys and values that the batch's tokens complete, each with the hidden state before it."""
        before = torch.roll(hidden, 1, 0)
        segments: list[Segment] = []
        rows: list[int] = []
        known_slots, known_rows = [], []
        for slot, first, n, position in batch.segments:
            self._tentative.pop(slot, None)
            n_first = 0
            if position == 0:
                self._n_seen[slot], n_first = 0, 1  # nothing is before the first token
            elif self._follows(slot, position):
                known_slots.append(slot)
                known_rows.append(first)
            else:
                continue
            if n > n_first:
                segments.append(Segment(slot, len(rows), n - n_first, position + n_first - 1))
                rows += range(first + n_first, first + n)
        if known_slots:
            before[known_rows] = self._hidden[known_slots]
        if segments:
            self._layer.remember(batch.token_ids[rows], before[rows], self._step(segments))

    def _follows(self, slot: int, position: int) -> bool:
        """Whether a segment goes on where this slot's rows were last seen."""
        return self._n_seen[slot] == position

    def _step(self, segments: Sequence[Segment]) -> Step:
        return Step(tuple(segments), self._cache, self._ropes, self._experts)
