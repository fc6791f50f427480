"""What a budget holds: how many experts fit into the bytes that a node is willing to give.

    experts = floor((budget - WORKER_OVERHEAD_BYTES) / bytes of an expert)

A worker keeps nothing per expert but the slice's own mapped bytes, so the only constant is the process itself:
interpreter, numpy, buffers of the requests in flight. `kvasir inspect` and volunteers ask it before fetching anything.
"""

from __future__ import annotations

from kvasir.errors import ConfigError
from kvasir.slicing.model_card import ModelCard

# The allowance for a worker beside its slice. A worker that waits takes some 55 MB of it (benchmarks/bench_load.py
# measures that); the rest is for requests in flight, which the worker's own --max-inflight-mb and --max-clients bound.
WORKER_OVERHEAD_BYTES = 150_000_000


def experts_for_budget(card: ModelCard, budget_bytes: int, layer: int | None = None) -> int:
    """Experts that a worker with this budget holds, at most those there are.

    Of one layer if it is named; else of any layers, counted with the largest expert, so that the promise holds
    whichever it is given. Raises ConfigError for a negative budget, SliceError for a layer without experts.
    """
    if budget_bytes < 0:
        raise ConfigError(f"a budget of {budget_bytes} bytes is not possible; it must be 0 or more")
    largest = max(item.expert_bytes for item in card.layers) if layer is None else card.expert_bytes(layer)
    n_there = card.n_expert * (len(card.layers) if layer is None else 1)
    return min(n_there, max(0, budget_bytes - WORKER_OVERHEAD_BYTES) // largest)


def whole_layers_for_budget(card: ModelCard, budget_bytes: int) -> int:
    """Layers whose experts fit all together, taken from the first one on."""
    left = budget_bytes - WORKER_OVERHEAD_BYTES
    n_layers = 0
    for item in card.layers:
        left -= item.expert_bytes * card.n_expert
        if left < 0:
            break
        n_layers += 1
    return n_layers
