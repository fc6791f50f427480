"""Measure what an expert costs per row in Chromium, in WebAssembly and on its software GPU, and what a redraw of the
map costs.

Called by `bench_webgpu`. Wall times of one page, since a page has no CPU time: read them beside a machine that does
nothing else. Both kernels compute the same rows, and their bits are compared with each other and with the C kernel's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.browser.wasm_speed import native_experts
from kvasir.kernels.kx1 import KX1Kernel
from kvasir.kernels.selftest_inputs import plain_rows
from tests.browser.chromium import Chromium, browse
from tests.browser.static_site import static_site

SHAPE = (3072, 1024)  # d_model, d_ff
N_EXPERTS = 4
RUNS = {"wasm": {1: 15, 8: 9, 64: 3}, "webgpu": {1: 3, 8: 2, 64: 1}}  # calls for each number of rows
HEATMAP = {"nLayer": 48, "nExpert": 256, "nRuns": 60}
DEADLINE_S = 900.0


@dataclass(frozen=True, slots=True)
class BrowserSpeed:
    """Wall microseconds per expert-row by backend ("wasm", "webgpu") and number of rows."""

    us_per_row: Mapping[str, Mapping[int, float]]
    descriptions: Mapping[str, str]
    bits_equal: bool
    heatmap_ms: float


def measure_browser_speed(
    runs: Mapping[str, Mapping[int, int]] = RUNS,
    shape: tuple[int, int] = SHAPE,
    n_experts: int = N_EXPERTS,
    with_vectors: bool = True,
) -> BrowserSpeed:
    """Take every figure in a Chromium of its own. Needs one that is installed. The golden vectors take a minute."""

    async def scenario(browser: Chromium) -> BrowserSpeed:
        page = await browser.open(f"{url}/blank.html")
        call = "([name, wanted]) => import('/benchmarks/page_speed.js').then((speed) => speed[name](wanted))"
        kernels: dict[str, dict[str, Any]] = {}
        for backend, counts in runs.items():
            wanted = {"backend": backend, "dModel": shape[0], "dFf": shape[1], "nExperts": n_experts}
            runs_by_text = {str(n): n_runs for n, n_runs in counts.items()}
            kernels[backend] = await page.evaluate(call, ["measureKernel", {**wanted, "runs": runs_by_text}])
        heatmap_ms = float(await page.evaluate(call, ["measureHeatmap", HEATMAP]))
        missed = await page.evaluate(call, ["missedVectors", None]) if with_vectors else []
        return BrowserSpeed(
            us_per_row={name: {int(n): us for n, us in told["usPerRow"].items()} for name, told in kernels.items()},
            descriptions={name: told["description"] for name, told in kernels.items()},
            bits_equal=not missed
            and all(told["hashes"] == _native_hashes(shape, n_experts, runs[name]) for name, told in kernels.items()),
            heatmap_ms=heatmap_ms,
        )

    with static_site(benchmarks=Path(__file__).parent) as url:
        return browse(scenario, seconds=DEADLINE_S)


def _native_hashes(shape: tuple[int, int], n_experts: int, runs: Mapping[int, int]) -> dict[str, list[str]]:
    """Return what the C kernel gives for every call of `runs`: one more a number of rows than is timed."""
    experts = native_experts(shape, n_experts)
    hashes = {}
    for n_rows, n_runs in runs.items():
        encoded = KX1Kernel().encode_rows(plain_rows(n_rows, shape[0], 1))
        pair_rows = np.arange(n_rows, dtype=np.int32)
        by_expert = [
            hashlib.sha256(experts.compute(encoded, pair_rows, np.full(n_rows, e, np.int32)).tobytes()).hexdigest()
            for e in range(n_experts)
        ]
        hashes[str(n_rows)] = [by_expert[run % n_experts] for run in range(n_runs + 1)]
    return hashes
