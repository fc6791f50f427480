"""Measure what an expert costs per row, how exact it is, and what the whole worker path adds, in the real shape.

`python -m benchmarks.bench_expert [--json] [--quick]`. One layer of 64 experts of 3072 x 1024 (gate and up in Q4_K,
down in Q6_K), top-8, 1 to 512 tokens a call, one thread. The reference is ggml's `mul_mat_id`
(`libggml-python`), run by turns with ours. Times of kernels are CPU times, those of the worker wall times; medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.expert.error import Distance, Float64Experts, measure_error
from benchmarks.expert.model import QUICK, ExpertShape, write_expert_model
from benchmarks.expert.speed import Speed, measure_speed
from benchmarks.expert.worker import worker_ratios
from benchmarks.machine import describe_commit, describe_machine
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.kx1 import KX1Kernel
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import model_experts
from tests.oracles.ggml_experts import GgmlExperts

N_THREADS = 1
RUNS = {1: 160, 8: 40, 64: 12, 512: 5}  # repetitions for each number of tokens
GOALS = {1: 1.0, 8: 1.25, 64: 2.0, 512: 2.0}  # speedup with AVX-512
WORKER_GOAL = 1.15


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run, by number of tokens."""

    isa: str
    speed: Mapping[int, Speed]
    ours: Mapping[int, Distance]
    ggml: Mapping[int, Distance]
    worker: Mapping[int, float]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a small layer: a smoke run whose figures mean nothing")
    parser.add_argument("--folder", type=Path, help="where to make the files (default: the system's temporary folder)")
    options = parser.parse_args()
    runs = dict.fromkeys(RUNS, 2) if options.quick else RUNS
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=options.folder) as folder:
        figures = measure(Path(folder), QUICK if options.quick else ExpertShape(), runs)
    print(json.dumps(as_keys(figures)) if options.json else as_table(figures))


def measure(folder: Path, shape: ExpertShape, runs: Mapping[int, int]) -> Figures:
    """Make the model in `folder` and take every figure."""
    model = folder / "model.gguf"
    write_expert_model(model, shape)
    kernel = KX1Kernel(n_threads=N_THREADS)
    with GGUFIndex.open(model) as index:
        experts = model_experts(index, ModelCard.from_index(index), 0)
        loaded, ggml, reference = kernel.load(experts), GgmlExperts(experts, N_THREADS), Float64Experts(experts)
        errors = {n: measure_error(kernel, loaded, ggml, reference, shape, n) for n in runs}
        loaded.read_scales()
        speed = {n: measure_speed(kernel, loaded, ggml, experts, shape, n, n_runs) for n, n_runs in runs.items()}
    return Figures(
        isa=kernel.isa_name,
        speed=speed,
        ours={n: ours for n, (ours, _) in errors.items()},
        ggml={n: theirs for n, (_, theirs) in errors.items()},
        worker=worker_ratios(model, kernel, N_THREADS, shape, list(runs.items())),
    )


def as_keys(figures: Figures) -> dict[str, object]:
    """The figures under the names that they are published with, each by number of tokens."""
    speed = figures.speed.items()
    return {
        "us_per_expert_row": {str(n): round(s.us_per_expert_row, 1) for n, s in speed},
        "speedup_vs_ggml": {str(n): round(s.speedup_vs_ggml, 3) for n, s in speed},
        "rel_err": {
            str(n): {"ours": float(f"{ours.rel_err:.4g}"), "ggml": float(f"{figures.ggml[n].rel_err:.4g}")}
            for n, ours in figures.ours.items()
        },
        "min_cosine": {
            str(n): {"ours": round(ours.min_cosine, 6), "ggml": round(figures.ggml[n].min_cosine, 6)}
            for n, ours in figures.ours.items()
        },
        "gb_s": {str(n): round(s.gb_s, 2) for n, s in speed},
        "share_of_stream_bandwidth": {str(n): round(s.share_of_stream_bandwidth, 3) for n, s in speed},
        "ratio_worker_vs_kernel": {str(n): round(ratio, 3) for n, ratio in figures.worker.items()},
        "machine": _machine(figures),
        "commit": describe_commit(),
    }


def as_table(figures: Figures) -> str:
    """The figures for people, with the goals."""
    lines = [
        f"{'tokens':>6} {'us/row':>8} {'vs ggml':>8} {'goal':>5} {'GB/s':>6} {'of stream':>9}"
        f" {'worker':>7} {'rel err':>9} {'(ggml)':>9} {'min cos':>9} {'(ggml)':>9}"
    ]
    for n, s in figures.speed.items():
        ours, ggml = figures.ours[n], figures.ggml[n]
        lines.append(
            f"{n:>6} {s.us_per_expert_row:>8.1f} {s.speedup_vs_ggml:>8.2f} {GOALS.get(n, 0):>5.2f} {s.gb_s:>6.1f}"
            f" {s.share_of_stream_bandwidth:>9.2f} {figures.worker[n]:>7.2f} {ours.rel_err:>9.2e}"
            f" {ggml.rel_err:>9.2e} {ours.min_cosine:>9.5f} {ggml.min_cosine:>9.5f}"
        )
    return "\n".join([*lines, f"the worker's goal is {WORKER_GOAL} from 8 tokens on; {_machine(figures)}"])


def _machine(figures: Figures) -> str:
    return f"{describe_machine()}, KX1 {figures.isa}, {N_THREADS} thread"


if __name__ == "__main__":
    main()
