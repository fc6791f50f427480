"""The MTP head of a model with its state by slot.

`Model.forward` passes it every row, and `draft_sources` has it guess. Its keys and values lie in the model's cache, as
the layer after the decoding ones. It changes no answer: guesses are verified, and a sequence that it cannot follow goes
on without it.

Its row of position p needs the token of p + 1, so it is one row behind the model and keeps the last hidden state. Rows
of rejected drafts beyond that are overwritten before anything reads them.
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
    """Follows the sequences in a model's slots. Not thread-safe: the event loop that owns the cache owns it."""

    def __init__(
        self, layer: MtpLayer, cache: SlotCache, ropes: Mapping[RopeConfig, RopeTable], experts: ExpertCaller
    ) -> None:
        """`experts` computes the layer's routed experts."""
        self._layer = layer
        self._cache = cache
        self._ropes = ropes
        self._experts = experts
        ops, d_model = layer.ops, layer.joint.n_out
        self._n_seen = [_LOST] * cache.n_slot  # tokens whose hidden states were seen
        self._hidden = torch.zeros(cache.n_slot, d_model, dtype=ops.dtype, device=ops.device)  # the last of them
        self._tentative: dict[int, Tensor] = {}  # hidden states [n, d_model] of tentative rows

    def see(self, batch: Batch, hidden: Tensor) -> None:
        """Follow a forward's rows, given the hidden states [T, d_model] of its tokens."""
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
        """Keep the first rows of tentative segments and drop the others."""
        for slot, n_rows in kept:
            rows = self._tentative.pop(slot, None)
            if rows is not None and n_rows:
                self._n_seen[slot] += n_rows
                self._hidden[slot] = rows[n_rows - 1]

    def forget(self, slots: Iterable[int]) -> None:
        """Stop following the sequences in these slots, until new ones begin there."""
        for slot in slots:
            self._n_seen[slot] = _LOST
            self._tentative.pop(slot, None)

    def is_ready(self, slot: int, n_cached: int) -> bool:
        """Return whether it saw all of a slot's `n_cached` tokens, so that it can guess what follows the next one."""
        return n_cached > 0 and self._n_seen[slot] == n_cached and slot not in self._tentative

    def hidden(self, slots: Sequence[int]) -> Tensor:
        """Return the last hidden states [n, d_model] of slots that are ready."""
        return self._hidden[list(slots)]

    async def guess(self, tokens: Sequence[SlotToken], hidden: Tensor) -> Guessed:
        """Guess the token after each of these, and return the hidden states from which to guess the next one.

        `hidden` [n, d_model] are those of the tokens before. Raises KernelError when a value is not finite.
        """
        segments = [Segment(token.slot, row, 1, token.position - 1) for row, token in enumerate(tokens)]
        token_ids = torch.tensor([token.token_id for token in tokens], dtype=torch.int64)
        return await self._layer.guess(token_ids, hidden, self._step(segments))

    def _remember(self, batch: Batch, hidden: Tensor) -> None:
        """Write the keys and values of the batch's tokens, each computed with the hidden state before it."""
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
        """Return whether a segment continues where the slot's rows were last seen."""
        return self._n_seen[slot] == position

    def _step(self, segments: Sequence[Segment]) -> Step:
        return Step(tuple(segments), self._cache, self._ropes, self._experts)
