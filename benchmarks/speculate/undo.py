"""Measure what undoing rejected drafts costs where layers are recurrent, at the 122B's shape. Used by
`bench_speculate`."""

from __future__ import annotations

import statistics
import time

import torch

from backbone.engine.ops.interface import Segment
from backbone.engine.ops.stable_ops import StableOps
from benchmarks.shape.layout import RealShape

N_LAYERS = 36  # recurrent ones of 48
_N_STATES = 8  # more than the processor's caches hold
_N_ROUNDS = 5


def undo_ms(n_kept: int) -> dict[str, float]:
    """CPU milliseconds of all recurrent layers for one request: a copy of its state, and `n_kept` rows run again."""
    shape, ops = RealShape(), StableOps(n_threads=1)
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> torch.Tensor:
        return torch.rand(*sizes, generator=generator)

    n_key, n_value, d = shape.n_k_head, shape.n_v_head, shape.d_state
    states = [random(2, n_value, d, d) for _ in range(_N_STATES)]
    scratch = torch.zeros(1, n_value, d, d)
    keys, values = random(n_kept, n_key, d) / d, random(n_kept, n_value, d)
    decay, beta, segments = -random(n_kept, n_value), random(n_kept, n_value), [Segment(1, 0, n_kept, 0)]
    copies, again = [], []
    for _ in range(_N_ROUNDS):
        began = time.process_time()
        for layer in range(N_LAYERS):
            scratch[0].copy_(states[layer % _N_STATES][1])
        copied = time.process_time()
        for layer in range(N_LAYERS):
            ops.delta_rule(keys, keys, values, decay, beta, states[layer % _N_STATES], segments)
        copies.append(copied - began)
        again.append(time.process_time() - copied)
    return {
        "copy": round(1000 * statistics.median(copies), 2),
        f"run_{n_kept}_again": round(1000 * statistics.median(again), 2),
    }
