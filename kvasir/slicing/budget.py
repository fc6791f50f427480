"""How many experts fit into a budget of bytes.

    experts = floor((budget - WORKER_OVERHEAD_BYTES) / bytes of an expert)

Per expert a worker keeps only the mapped bytes of its slice. The constant is the process itself: interpreter, numpy,
buffers of the requests in flight. `kvasir inspect` and workers compute this before anything is downloaded.
"""

from __future__ import annotations

from kvasir.errors import ConfigError
from kvasir.slicing.model_card import ModelCard

# Memory of a worker beside its slice. An idle worker takes about 55 MB of it (measured by benchmarks/bench_load.py);
# the rest is for requests in flight, which --max-inflight-mb and --max-clients bound.
WORKER_OVERHEAD_BYTES = 150_000_000


def experts_for_budget(card: ModelCard, budget_bytes: int, layer: int | None = None) -> int:
    """Return how many experts a worker with this budget can hold, at most those that exist.

    They are of one layer if it is named, else of any layers: then the size of the largest expert counts, so that the
    number holds for any choice. Raises ConfigError for a negative budget, SliceError for a layer without experts.
    """
    if budget_bytes < 0:
        raise ConfigError(f"a budget of {budget_bytes} bytes is not possible; it must be 0 or more")
    largest = max(item.expert_bytes for item in card.layers) if layer is None else card.expert_bytes(layer)
    n_there = card.n_expert * (len(card.layers) if layer is None else 1)
    return min(n_there, max(0, budget_bytes - WORKER_OVERHEAD_BYTES) // largest)


def whole_layers_for_budget(card: ModelCard, budget_bytes: int) -> int:
    """Return how many layers, from the first one on, fit with all of their experts."""
    left = budget_bytes - WORKER_OVERHEAD_BYTES
    n_layers = 0
    for item in card.layers:
        left -= item.expert_bytes * card.n_expert
        if left < 0:
            break
        n_layers += 1
    return n_layers
