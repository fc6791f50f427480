"""Measure what an expert costs per row, ours and ggml's, and what the memory could deliver, for `bench_expert`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.expert.model import ExpertShape
from kvasir.experts import FloatRows, LayerExperts
from kvasir.kernels.api import ExpertKernel, LoadedExperts
from tests.oracles.ggml_experts import GgmlExperts

ExpertIds = npt.NDArray[np.int32]  # [n, n_used]


@dataclass(frozen=True, slots=True)
class Speed:
    """Medians of one number of tokens. Times are CPU seconds of one call."""

    n: int
    ours_s: float
    ggml_s: float
    weight_bytes: float  # of the distinct experts of a call
    stream_bytes_per_s: float
    n_pairs: int

    @property
    def us_per_expert_row(self) -> float:
        return self.ours_s / self.n_pairs * 1e6

    @property
    def speedup_vs_ggml(self) -> float:
        return self.ggml_s / self.ours_s

    @property
    def gb_s(self) -> float:
        return self.weight_bytes / self.ours_s / 1e9

    @property
    def share_of_stream_bandwidth(self) -> float:
        return self.weight_bytes / self.ours_s / self.stream_bytes_per_s


def draw_ids(rng: np.random.Generator, n: int, shape: ExpertShape) -> ExpertIds:
    """Different random experts for every row."""
    return np.argsort(rng.random((n, shape.n_expert)), axis=1)[:, : shape.n_used].astype(np.int32)


def as_pairs(expert_ids: ExpertIds) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Row numbers and local ids, pair by pair."""
    n, n_used = expert_ids.shape
    return np.repeat(np.arange(n, dtype=np.int32), n_used), expert_ids.reshape(-1)


def compute(kernel: ExpertKernel, loaded: LoadedExperts, rows: FloatRows, expert_ids: ExpertIds) -> FloatRows:
    """Our outputs [n, n_used, d_model], from f32 rows as ggml takes them."""
    outputs = loaded.compute(kernel.encode_rows(rows), *as_pairs(expert_ids))
    return outputs.reshape(*expert_ids.shape, loaded.d_model)


def measure_speed(
    kernel: ExpertKernel,
    loaded: LoadedExperts,
    ggml: GgmlExperts,
    experts: LayerExperts,
    shape: ExpertShape,
    n: int,
    n_runs: int,
) -> Speed:
    """Run both kernels and the stream by turns; each has its own experts, so none finds the other's cached."""
    rng = np.random.default_rng(n)
    ggml.prepare(n, shape.n_used)
    ours, theirs, streams, n_experts = [], [], [], []
    for run in range(n_runs + 1):
        rows = rng.standard_normal((n, shape.d_model), dtype=np.float32)
        ids, other_ids = draw_ids(rng, n, shape), draw_ids(rng, n, shape)
        ggml_s = _cpu_seconds(partial(ggml.compute, rows, other_ids))
        ours_s = _cpu_seconds(partial(compute, kernel, loaded, rows, ids))
        if run:  # the first one warms up
            theirs.append(ggml_s)
            ours.append(ours_s)
            n_experts.append(len(np.unique(ids)))
        if run % 4 == 0:
            streams.append(_stream_bytes_per_s(experts))
    bytes_read = statistics.median(n_experts) * _expert_bytes(experts)
    ours_s, ggml_s, stream = (statistics.median(values) for values in (ours, theirs, streams))
    return Speed(n, ours_s, ggml_s, bytes_read, stream, n_pairs=n * shape.n_used)


def _expert_bytes(experts: LayerExperts) -> int:
    return sum(stack.data[0].nbytes for stack in (experts.gate, experts.up, experts.down))


def _stream_bytes_per_s(experts: LayerExperts) -> float:
    """Return how fast one thread reads the mapped weights when it does next to nothing with them."""
    data = experts.gate.data.reshape(-1)
    words = data[: data.size // 8 * 8].view(np.uint64)
    return words.nbytes / _cpu_seconds(lambda: np.bitwise_xor.reduce(words))


def _cpu_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start
