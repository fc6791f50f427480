"""Whether experts fit into a worker's memory, asked before anything is downloaded.

    bytes needed = WORKER_OVERHEAD_BYTES + sum over the experts of their stored bytes

The agent asks with what an offer says of its layers; the slice store asks again with the manifest's true sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvasir.errors import ConfigError
from kvasir.experts import ExpertRange
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES
from kvasir.slicing.expert_ranges import merge_ranges

ExpertBytes = Callable[[int], int]  # of one expert of a layer


def memory_needed(ranges: Iterable[ExpertRange], expert_bytes: ExpertBytes) -> int:
    """Bytes of memory that a worker of these experts takes; an expert in two ranges counts once."""
    weights = sum(item.n_experts * expert_bytes(item.layer) for item in merge_ranges(ranges))
    return WORKER_OVERHEAD_BYTES + weights


def fits(budget_bytes: int, ranges: Iterable[ExpertRange], expert_bytes: ExpertBytes) -> bool:
    """Whether a worker of all these experts, those it holds and those it is offered, stays within its budget.

    Raises ConfigError for a negative budget.
    """
    if budget_bytes < 0:
        raise ConfigError(f"a budget of {budget_bytes} bytes is not possible; it must be 0 or more")
    return memory_needed(ranges, expert_bytes) <= budget_bytes
