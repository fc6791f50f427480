"""Measure what an expert costs per row on a GPU: KX1 in WGSL, a float kernel by turns with it, and torch where it has
a GPU.

Called by `bench_webgpu`. On a software adapter the figures are CPU times of this process, which computes; on a real GPU
wall times. KX1's bits are compared with the C kernel's in every call that is timed, and with the golden vectors.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.browser.gpu_float import FloatGpuExpert
from benchmarks.browser.wasm_speed import TYPES
from kvasir.experts import ExpertStack, FloatRows, LayerExperts
from kvasir.kernels.gpu.device import GpuDevice, GpuError, open_device
from kvasir.kernels.gpu.kernel import GpuKX1Kernel
from kvasir.kernels.gpu.tables import Tunables
from kvasir.kernels.kx1 import KX1Kernel
from kvasir.kernels.selftest_inputs import made_weights, plain_rows
from tests.contract.test_kx1_golden import FROZEN_FINGERPRINT, HEADER, array, made_layer, sha256

SHAPE = (3072, 1024)  # d_model, d_ff
SOFTWARE_RUNS = {1: 5, 8: 3, 64: 2}  # rounds for each number of rows
GPU_RUNS = {1: 50, 8: 50, 64: 20, 512: 10}
NEVER = 1 << 30
CHOICES = (Tunables(lanes=1, tiled_from=NEVER), Tunables(lanes=4, tiled_from=NEVER), Tunables(lanes=4, tiled_from=8))


@dataclass(frozen=True, slots=True)
class GpuSpeed:
    """Microseconds per expert-row by number of rows, each the best of CHOICES."""

    device: str
    kx1: Mapping[int, float]
    f32: Mapping[int, float]
    bits_equal: bool
    torch: Mapping[int, float] = field(default_factory=dict)  # without a GPU that torch can use: nothing

    @property
    def ratio_vs_f32(self) -> dict[int, float]:
        """The float kernel's time over KX1's: above 1, KX1 is faster."""
        return {n: self.f32[n] / us for n, us in self.kx1.items()}

    @property
    def rows_per_s(self) -> dict[str, dict[int, float]]:
        """Expert-rows a second, by what computes."""
        times = {"kx1": self.kx1, "f32": self.f32, "torch": self.torch}
        return {name: {n: 1e6 / us for n, us in values.items()} for name, values in times.items() if values}


def measure_software(shape: tuple[int, int] = SHAPE, runs: Mapping[int, int] = SOFTWARE_RUNS) -> GpuSpeed:
    """On the adapter that computes on the CPU. Raises GpuError where none is installed."""
    return _measure(open_device(software=True), shape, runs, time.process_time)


def measure_gpu(shape: tuple[int, int] = SHAPE, runs: Mapping[int, int] = GPU_RUNS) -> GpuSpeed | None:
    """On a real GPU, or None where there is none."""
    try:
        device = open_device()
    except GpuError:
        return None
    return _measure(device, shape, runs, time.perf_counter)


def made_expert(shape: tuple[int, int]) -> LayerExperts:
    """One expert of the usual types: gate and up Q4_K, down Q6_K."""
    d_model, d_ff = shape
    widths = ((d_ff, d_model), (d_ff, d_model), (d_model, d_ff))
    gate, up, down = (
        ExpertStack(quant_type, n_out, n_in, made_weights(quant_type, n_out, n_in, matrix)[None])
        for matrix, (quant_type, (n_out, n_in)) in enumerate(zip(TYPES, widths, strict=True))
    )
    return LayerExperts(0, gate, up, down)


def _measure(
    device: GpuDevice, shape: tuple[int, int], runs: Mapping[int, int], clock: Callable[[], float]
) -> GpuSpeed:
    experts, cpu = made_expert(shape), KX1Kernel()
    most = max(runs)
    rows = plain_rows(most, shape[0], 1)
    encoded = cpu.encode_rows(rows)
    numbers, ids = np.arange(most, dtype=np.int32), np.zeros(most, np.int32)
    wanted = cpu.load(experts).compute(encoded, numbers, ids)
    kernel = GpuKX1Kernel(device, cpu)
    loaded = kernel.load(experts)
    kx1: dict[int, float] = {}
    f32: dict[int, float] = {}
    bits_equal = True
    for n, n_runs in runs.items():
        kx1[n] = f32[n] = float("inf")
        for tunables in CHOICES:
            kernel.set_tunables(tunables)
            rival = FloatGpuExpert(device, experts, tunables)
            ours, theirs = [], []
            for _ in range(n_runs + 1):
                begin = clock()
                outputs = loaded.compute(encoded[:n], numbers[:n], ids[:n])
                middle = clock()
                rival.compute(rows[:n])
                ours.append(middle - begin)
                theirs.append(clock() - middle)
                bits_equal &= outputs.tobytes() == wanted[:n].tobytes()
            kx1[n] = min(kx1[n], statistics.median(ours[1:]) / n * 1e6)
            f32[n] = min(f32[n], statistics.median(theirs[1:]) / n * 1e6)
    on_torch = {} if device.is_software else measure_torch(experts, rows, runs, "cuda")
    return GpuSpeed(device.name, kx1, f32, bits_equal and meets_golden_vectors(kernel), on_torch)


def meets_golden_vectors(kernel: GpuKX1Kernel) -> bool:
    """Return whether every golden expert comes out to the bit, by matvec and by tiles, and the self-test with them."""
    for tunables in CHOICES[1:]:
        kernel.set_tunables(tunables)
        for case in (case for case in HEADER["cases"] if case["kind"] in {"expert", "expert hash"}):
            is_whole = case["kind"] == "expert"
            made = plain_rows(case.get("n_rows", 0), case["d_model"], case.get("rows_seed", 0))
            packed = array(case, "packed") if is_whole else kernel.encode_rows(made)
            numbers = np.arange(len(packed), dtype=np.int32)
            outputs = kernel.load(made_layer(case)).compute(packed, numbers, 0 * numbers)
            wanted = sha256(array(case, "outputs")) if is_whole else case["sha256"]
            if sha256(outputs) != wanted:
                return False
    return kernel.fingerprint == FROZEN_FINGERPRINT


def measure_torch(experts: LayerExperts, rows: FloatRows, runs: Mapping[int, int], where: str) -> dict[int, float]:
    """The same expert dequantised to 16 bits in torch: wall microseconds per row, by number of rows.

    Copies of rows to the device and of outputs back are counted, as they are for KX1. Nothing where torch lacks CUDA.
    """
    import torch
    from gguf.quants import dequantize

    if where == "cuda" and not torch.cuda.is_available():
        return {}
    gate, up, down = (
        torch.tensor(dequantize(stack.data[0].reshape(stack.n_out, -1), stack.quant_type)).to(where, torch.bfloat16)
        for stack in (experts.gate, experts.up, experts.down)
    )

    def compute(part: FloatRows) -> Any:
        x = torch.from_numpy(part).to(where).to(torch.bfloat16)
        hidden = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
        return (hidden @ down.T).float().cpu()

    figures = {}
    with torch.inference_mode():
        for n, n_runs in runs.items():
            taken = []
            for _ in range(n_runs + 1):
                begin = time.perf_counter()
                compute(rows[:n])
                taken.append(time.perf_counter() - begin)
            figures[n] = statistics.median(taken[1:]) / n * 1e6
    return figures
