"""The engine's trace of an answer in the API's words. `record_keeper` asks for it, off the engine's thread."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backbone.engine.token_sources import TokenTrace, count_sources
from backbone.request_trace import COUNT_TYPE, FALLBACK, MOST_COUNTED, WORKER, RequestTrace, TraceSource


def request_trace(trace: TokenTrace, shown_worker: Callable[[str], str]) -> RequestTrace:
    """Count the tokens of a trace, which has some. Workers come first, by the names that `shown_worker` gives them."""
    counted = count_sources(trace)
    layers = sorted({source.layer for source in counted.sources})
    shown = [_shown(source.worker_id, shown_worker) for source in counted.sources]
    nodes = sorted(set(shown), key=lambda source: (source.kind != WORKER, source.worker or ""))
    cells = [
        layers.index(source.layer) * len(nodes) + nodes.index(node)
        for source, node in zip(counted.sources, shown, strict=True)
    ]
    by_cell = np.zeros((len(trace.tokens), len(layers) * len(nodes)), np.int64)
    # Added, not set: several of the operator's workers are one node here.
    np.add.at(by_cell.T, np.array(cells), counted.counts.T)
    counts = np.minimum(by_cell, MOST_COUNTED).astype(COUNT_TYPE).tobytes()
    return RequestTrace(trace.first_token, tuple(layers), tuple(nodes), counts)


def _shown(worker_id: str | None, shown_worker: Callable[[str], str]) -> TraceSource:
    return TraceSource(FALLBACK) if worker_id is None else TraceSource(WORKER, shown_worker(worker_id))
