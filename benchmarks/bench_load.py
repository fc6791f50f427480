"""Measure how fast a model of the 122B shape opens and is cut, and what memory a worker of 64 of its experts takes.

`python -m benchmarks.bench_load [--json] [--quick]`. The model is a sparse file of its true size (78 GB, of which
0.4 GB is stored), made in a temporary folder. Opening means index, model card and fingerprint. Times are wall times
with the header in the page cache; cutting includes fsync. References in the same run: gguf-py's reader, and
`shutil.copyfile` with fsync of the same slice.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf

from benchmarks.machine import describe_commit, describe_machine
from benchmarks.shape.load_model_file import QUICK, ModelShape, fill_experts, write_sparse_model
from benchmarks.shape.load_worker import WorkerMemory, worker_memory
from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import SlicePlan, plan_slice, write_slice

MB = 1_000_000
# 64 experts of the two kinds of layer: down in Q6_K and in Q4_K
RANGES = (ExpertRange(0, 0, 32), ExpertRange(1, 0, 32))


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run; times in seconds."""

    model_bytes: int
    stored_bytes: int
    header_s: float
    index_s: float
    gguf_py_s: float
    plan_s: float
    slice_bytes: int
    write_s: float
    copy_s: float
    memory: WorkerMemory


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a small model: a smoke run whose figures mean nothing")
    parser.add_argument("--folder", type=Path, help="where to make the files (default: the system's temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=options.folder) as folder:
        figures = measure(Path(folder), QUICK if options.quick else ModelShape(), n_runs=2 if options.quick else 5)
    print(json.dumps(as_keys(figures)) if options.json else as_table(figures))


def measure(folder: Path, shape: ModelShape, n_runs: int) -> Figures:
    """Make the model in `folder` and take every figure."""
    model = folder / "model.gguf"
    write_sparse_model(model, shape)
    fill_experts(model, RANGES, shape.n_expert)
    status = model.stat()
    header_times, index_times, plan_times = [], [], []
    for _ in range(n_runs):
        header_times.append(_seconds(lambda: GGUFIndex.open(model).close()))
        index_times.append(_seconds(lambda: _open(model)))
        plan_times.append(_plan_seconds(model))
    gguf_py_s = _seconds(lambda: gguf.GGUFReader(model))
    with GGUFIndex.open(model) as index:
        plan = plan_slice(index, ModelCard.from_index(index), RANGES)
    write_times, copy_times = [], []
    for _ in range(n_runs):
        write_times.append(_seconds(lambda: write_slice(plan, folder / "slice.gguf")))
        copy_times.append(_seconds(lambda: _copy(folder, plan)))
    return Figures(
        model_bytes=status.st_size,
        stored_bytes=status.st_blocks * 512,
        header_s=statistics.median(header_times),
        index_s=statistics.median(index_times),
        gguf_py_s=gguf_py_s,
        plan_s=statistics.median(plan_times),
        slice_bytes=plan.n_bytes,
        write_s=statistics.median(write_times),
        copy_s=statistics.median(copy_times),
        memory=worker_memory(folder / "slice.gguf"),
    )


def as_keys(figures: Figures) -> dict[str, object]:
    """The figures under the names that they are published with."""
    return {
        "index_s": round(figures.index_s, 4),
        "slice_plan_ms": round(figures.plan_s * 1e3, 3),
        "slice_mb_s": round(figures.slice_bytes / MB / figures.write_s, 1),
        "rss_mb": round(figures.memory.total / MB, 1),
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(figures: Figures) -> str:
    """The figures for people, with the references and the goals."""
    memory, slice_mb = figures.memory, figures.slice_bytes / MB
    rows = [
        ("model file", f"{figures.model_bytes / 1e9:.1f} GB, {figures.stored_bytes / 1e9:.2f} GB of it stored"),
        ("header and tensor table", f"{figures.header_s:.3f} s"),
        (
            "index_s (with card and fingerprint)",
            f"{figures.index_s:.3f} s (goal < 1; gguf-py: {figures.gguf_py_s:.1f} s)",
        ),
        ("slice_plan_ms (64 experts)", f"{figures.plan_s * 1e3:.2f} ms"),
        ("slice", f"{slice_mb:.1f} MB"),
        ("slice_mb_s", f"{slice_mb / figures.write_s:.0f} MB/s (plain copy: {slice_mb / figures.copy_s:.0f} MB/s)"),
        ("rss_mb of its worker", f"{memory.total / MB:.1f} MB (goal < {slice_mb + 150:.1f})"),
        ("", f"own {memory.anonymous / MB:.1f} MB, file pages {memory.file / MB:.1f} MB"),
        ("machine", describe_machine()),
    ]
    return "\n".join(f"{label:<36} {text}" for label, text in rows)


def _open(model: Path) -> None:
    with GGUFIndex.open(model) as index:
        ModelCard.from_index(index)


def _plan_seconds(model: Path) -> float:
    with GGUFIndex.open(model) as index:
        card = ModelCard.from_index(index)
        return _seconds(lambda: plan_slice(index, card, RANGES))


def _copy(folder: Path, plan: SlicePlan) -> None:
    """Return what any program can do with these bytes at best: copy the finished file."""
    target = folder / "copy.gguf"
    shutil.copyfile(folder / "slice.gguf", target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    assert target.stat().st_size == plan.n_bytes
    target.unlink()


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
