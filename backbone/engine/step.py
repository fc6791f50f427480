"""What one forward knows beside its rows: local to it, so that several forwards can be in flight at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from backbone.engine.batch import Batch
from backbone.engine.expert_caller import ExpertCaller
from backbone.engine.kv_cache import SlotCache
from backbone.engine.model_config import RopeConfig
from backbone.engine.ops import Segment
from backbone.engine.rope import RopeTable


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One forward over T rows."""

    segments: tuple[Segment, ...]
    slots: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    rotations: Mapping[RopeConfig, tuple[Tensor, Tensor]]  # cosines and sines at the rows' positions
    cache: SlotCache
    experts: ExpertCaller

    @classmethod
    def of(cls, batch: Batch, cache: SlotCache, ropes: Mapping[RopeConfig, RopeTable], experts: ExpertCaller) -> Step:
        """Work out each row's slot and position."""
        slots = [segment.slot for segment in batch.segments for _ in range(segment.n_rows)]
        positions = torch.tensor(
            [segment.position + row for segment in batch.segments for row in range(segment.n_rows)], dtype=torch.int64
        )
        return cls(
            segments=batch.segments,
            slots=torch.tensor(slots, dtype=torch.int64),
            positions=positions,
            rotations={config: table.at(positions) for config, table in ropes.items()},
            cache=cache,
            experts=experts,
        )
