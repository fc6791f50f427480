"""What one forward knows beside its rows: local to it, so that several forwards can be in flight at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backbone.engine.model.expert_caller import ExpertCaller
from backbone.engine.model.kv_cache import SlotCache
from backbone.engine.ops.interface import Segment
from backbone.engine.ops.model_config import RopeConfig
from backbone.engine.ops.rope import RopeTable


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One forward over the rows of some segments; of the last `n_tentative` it is not decided which rows are kept."""

    segments: tuple[Segment, ...]
    cache: SlotCache
    ropes: Mapping[RopeConfig, RopeTable]
    experts: ExpertCaller
    n_tentative: int = 0
