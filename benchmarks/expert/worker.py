"""The whole path of a worker over loopback TCP against its kernel called in this process, for `bench_expert`.

Encoding, frames, checks, sockets and the reply are on top of the same computation with the same number of threads.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.expert.model import ExpertShape
from benchmarks.expert.speed import as_pairs, compute, draw_ids
from kvasir.edge.tcp_edge import TcpEdge
from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.api import ExpertKernel
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slice_file import SliceFile
from kvasir.slicing.slices import plan_slice, write_slice
from kvasir.wire.frames import Hello, Role
from kvasir.wire.split import ExpertCall

DEADLINE_S = 120.0


def worker_ratios(
    model: Path, kernel: ExpertKernel, n_threads: int, shape: ExpertShape, runs: Sequence[tuple[int, int]]
) -> dict[int, float]:
    """Wall time of a dispatch over that of the kernel here, for each (number of tokens, number of runs)."""
    slice_path = model.with_name("slice.gguf")
    with GGUFIndex.open(model) as index:
        plan = plan_slice(index, ModelCard.from_index(index), [ExpertRange(0, 0, shape.n_expert)])
        write_slice(plan, slice_path)
    with _worker(slice_path, n_threads) as port, SliceFile.open(slice_path) as slice_file:
        return asyncio.run(_measure(slice_file, port, kernel, shape, runs))


async def _measure(
    slice_file: SliceFile, port: int, kernel: ExpertKernel, shape: ExpertShape, runs: Sequence[tuple[int, int]]
) -> dict[int, float]:
    loaded = kernel.load(slice_file.layers[0])
    hello = Hello(Role.BACKBONE, slice_file.model_fingerprint, kernel.fingerprint, kernel.name)
    edge = await TcpEdge.connect("127.0.0.1", port, hello, deadline_s=DEADLINE_S)
    ratios = {}
    for n, n_runs in runs:
        rng = np.random.default_rng(n)
        here, there = [], []
        for run in range(n_runs + 1):
            rows = rng.standard_normal((n, shape.d_model), dtype=np.float32)
            ids, other_ids = draw_ids(rng, n, shape), draw_ids(rng, n, shape)
            start = time.perf_counter()
            compute(kernel, loaded, rows, ids)
            middle = time.perf_counter()
            encoded = kernel.encode_rows(rows)
            await edge.dispatch(ExpertCall(0, encoded, kernel.row_format, *as_pairs(other_ids)), DEADLINE_S)
            end = time.perf_counter()
            if run:
                here.append(middle - start)
                there.append(end - middle)
        ratios[n] = statistics.median(there) / statistics.median(here)
    await edge.close()
    return ratios


@contextmanager
def _worker(slice_path: Path, n_threads: int) -> Iterator[int]:
    """A worker process; yields its port."""
    command = [sys.executable, "-m", "kvasir.worker", "serve", "--slice", str(slice_path)]
    command += ["--listen", "127.0.0.1:0", "--threads", str(n_threads), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the worker ended before it listened; its reason is above")
        yield int(json.loads(line)["port"])
    finally:
        process.terminate()
        process.communicate()
