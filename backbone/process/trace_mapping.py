"""The engine's trace of an answer in the API's words. `record_keeper` asks for it, off the engine's thread."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backbone.engine.serving.token_sources import Source, TokenTrace, count_sources
from backbone.stream.request_trace import COUNT_TYPE, FALLBACK, HOT, MOST_COUNTED, WORKER, RequestTrace, TraceSource


def request_trace(trace: TokenTrace, shown_worker: Callable[[str], str]) -> RequestTrace:
    """Count the tokens of a trace, which has some. Workers come first, by the names that `shown_worker` gives them."""
    counted = count_sources(trace)
    layers = sorted({source.layer for source in counted.sources})
    shown = [_shown(source, shown_worker) for source in counted.sources]
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


def _shown(source: Source, shown_worker: Callable[[str], str]) -> TraceSource:
    if source.worker_id is not None:
        return TraceSource(WORKER, shown_worker(source.worker_id))
    return TraceSource(HOT if source.is_hot else FALLBACK)
