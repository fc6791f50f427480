"""A batch, the flat rows of several sequences, and the step that runs it: prefill chunks beside single decode tokens.

The engine makes batches, the model runs them and makes a `Step` for each forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from backbone.engine.model.expert_caller import ExpertCaller
from backbone.engine.model.kv_cache import SlotCache
from backbone.engine.ops.interface import RopeTable, Segment
from backbone.engine.ops.model_config import RopeConfig
from kvasir.errors import RequestError


class SlotTokens(NamedTuple):
    """The next tokens of the sequence in a slot."""

    slot: int
    token_ids: Sequence[int]
    is_tentative: bool = False  # the rows that are kept are chosen after the forward


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of one forward. Segments are in row order and cover all rows; the last `n_tentative` may lose rows."""

    token_ids: Tensor  # int64 [T]
    segments: tuple[Segment, ...]
    n_tentative: int = 0

    @classmethod
    def of(cls, parts: Iterable[SlotTokens | tuple[int, Sequence[int]]], cache: SlotCache) -> Batch:
        """Build a batch of the next tokens of some slots, each at its length in the cache, tentative ones last.

        Raises RequestError if a part is empty or out of this order.
        """
        token_ids: list[int] = []
        segments: list[Segment] = []
        n_tentative = 0
        for slot, tokens, is_tentative in (SlotTokens(*part) for part in parts):
            if n_tentative and not is_tentative:
                raise RequestError(f"slot {slot} is not tentative and comes after one that is")
            n_tentative += is_tentative
            if len(tokens) == 0:
                raise RequestError(f"slot {slot} has no token to compute")
            segments.append(Segment(slot, len(token_ids), len(tokens), cache.length(slot)))
            token_ids.extend(tokens)
        if not segments:
            raise RequestError("a batch needs at least one token")
        return cls(torch.tensor(token_ids, dtype=torch.int64), tuple(segments), n_tentative)

    @property
    def n_rows(self) -> int:
        """Return T, the rows of all segments."""
        return int(self.token_ids.shape[0])

    @property
    def last_rows(self) -> list[int]:
        """Return the last row of each segment, where the next token is sampled."""
        return [segment.first_row + segment.n_rows - 1 for segment in self.segments]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The state of one forward, apart from its rows. Several steps can be in flight at once.

    The rows that are kept of the last `n_tentative` segments are chosen after it.
    """

    segments: tuple[Segment, ...]
    cache: SlotCache
    ropes: Mapping[RopeConfig, RopeTable]
    experts: ExpertCaller
    n_tentative: int = 0
