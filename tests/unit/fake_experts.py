"""A kernel that is easy to check: expert e turns a row x of f32 into x * (e + 1). For tests of the worker."""

from __future__ import annotations

import threading

import numpy as np

from kvasir.errors import KernelError
from kvasir.experts import ExpertRange, FloatRows, LayerExperts
from kvasir.kernels.api import EncodedRows, LoadedExperts, Pairs, RowFormat
from kvasir.worker.serving.holdings import Holdings

D_MODEL = 4
N_EXPERT = 8
MODEL, KERNEL = "0a" * 32, "0b" * 32


class FakeKernel:
    """Implements ExpertKernel as far as a worker asks."""

    name = "fake"
    row_format = RowFormat.F32
    fingerprint = KERNEL

    def refusal(self, experts: LayerExperts) -> str | None:
        return None

    def load(self, experts: LayerExperts) -> LoadedExperts:
        return FakeExperts(experts.layer)

    def encode_rows(self, rows: FloatRows) -> EncodedRows:
        return rows.view(np.uint8)

    def row_bytes(self, d_model: int) -> int:
        return 4 * d_model


class FakeExperts:
    """Implements LoadedExperts. Clear `may_go` to hold computations; `calls` has the pairs of each."""

    n_expert = N_EXPERT
    d_model = D_MODEL

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.calls: list[int] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.is_broken = False

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        self.calls.append(len(pair_ids))
        if not self.may_go.wait(20):
            raise TimeoutError("the test never let the computation go")
        if self.is_broken:
            raise ZeroDivisionError("a defect")
        values = np.ascontiguousarray(rows).view(np.float32)
        if not np.isfinite(values).all():
            raise KernelError("a row is not finite")
        return expected(values, pair_rows, pair_ids)


def expected(values: FloatRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
    """What the fake experts answer."""
    outputs: FloatRows = values[pair_rows] * (pair_ids[:, None] + 1).astype(np.float32)
    return outputs


def fake_holdings(*layers: FakeExperts) -> Holdings:
    """Holdings of all experts of these layers."""
    ranges = tuple(ExpertRange(layer.layer, 0, N_EXPERT) for layer in layers)
    return Holdings(MODEL, "fake", D_MODEL, ranges, FakeKernel(), {layer.layer: layer for layer in layers}, 0)
