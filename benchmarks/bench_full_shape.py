"""Check whether one coordinator opens and runs the whole 122B shape within its memory.

`python -m benchmarks.bench_full_shape [--json] [--quick] [--folder DIR]`. The model is a sparse file of its true size
(74 GB, of which some MB are stored): 48 layers, 256 experts each, 248,320 tokens, every weight 0. It is opened with
slots as a backbone opens it, and two tokens go through all layers, every expert computed here. Zeros cost what other
weights cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from backbone.engine.dispatch.counters import Tally
from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.model.batch import Batch, SlotTokens
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from benchmarks.machine import describe_commit, describe_machine, memory_of
from benchmarks.shape.model import QUICK, RealShape, write_sparse_shape

FULL = RealShape(n_layer=48, n_vocab=248_320)
N_SLOT, N_CTX = 4, 4096


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run; times are wall seconds."""

    model_bytes: int
    stored_bytes: int
    open_s: float
    first_token_s: float
    token_s: float
    n_pairs: int  # routed pairs that were computed for both tokens
    peak_bytes: int
    own_bytes: int
    finished: bool


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a tiny model: a smoke run whose figures mean nothing")
    parser.add_argument("--folder", type=Path, help="where to make the model (default: the system's temporary folder)")
    options = parser.parse_args()
    shape = replace(QUICK, n_layer=4) if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=options.folder) as folder:
        figures = measure(write_sparse_shape(Path(folder) / "model.gguf", shape), shape)
    print(json.dumps(as_keys(figures)) if options.json else as_table(figures))


def measure(model: Path, shape: RealShape) -> Figures:
    """Open the model and run two tokens of one sequence."""
    status = model.stat()
    started = time.perf_counter()
    with LoadedModel.open(model, n_slot=N_SLOT, n_ctx=min(N_CTX, shape.n_ctx), n_threads=1) as loaded:
        opened = time.perf_counter()
        tally = Tally()
        experts = ExpertDispatcher(loaded.store, NoWorkers(), on_served=tally.add)
        slot, marks, finished = loaded.model.cache.allocate(), [opened], True
        for token in (1, 2):
            batch = Batch.of([SlotTokens(slot, [token])], loaded.model.cache)
            logits = asyncio.run(loaded.model.forward(batch, experts))
            finished &= logits.shape == (1, shape.n_vocab) and bool(torch.isfinite(logits).all())
            marks.append(time.perf_counter())
        peak_bytes, own_bytes = memory_of(os.getpid())
    n_pairs = tally.n_fallback
    return Figures(
        status.st_size,
        status.st_blocks * 512,
        opened - started,
        marks[1] - marks[0],
        marks[2] - marks[1],
        n_pairs,
        peak_bytes,
        own_bytes,
        finished and n_pairs == 2 * shape.n_layer * shape.n_used,
    )


def as_keys(figures: Figures) -> dict[str, Any]:
    """The figures under the names that they are published with."""
    return {
        "open_s": round(figures.open_s, 3),
        "rss_gb": round(figures.peak_bytes / 1e9, 3),
        "own_gb": round(figures.own_bytes / 1e9, 3),
        "model_gb": round(figures.model_bytes / 1e9, 3),
        "first_token_s": round(figures.first_token_s, 3),
        "token_s": round(figures.token_s, 3),
        "finished": figures.finished,
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(figures: Figures) -> str:
    """The figures for people."""
    rows = [
        ("model file", f"{figures.model_bytes / 1e9:.1f} GB, {figures.stored_bytes / 1e6:.0f} MB of it stored"),
        ("open_s (tokenizer, slots, all)", f"{figures.open_s:.2f} s"),
        ("first token (pages come in)", f"{figures.first_token_s:.2f} s"),
        ("second token", f"{figures.token_s:.2f} s"),
        ("routed pairs computed", f"{figures.n_pairs}"),
        ("rss_gb, most", f"{figures.peak_bytes / 1e9:.2f} GB, of which {figures.own_bytes / 1e9:.2f} GB are its own"),
        ("finished", str(figures.finished)),
        ("machine", f"{describe_machine()}, commit {describe_commit()}"),
    ]
    return "\n".join(f"{label:<34} {text}" for label, text in rows)


if __name__ == "__main__":
    main()
