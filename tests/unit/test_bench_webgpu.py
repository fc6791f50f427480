"""The benchmark of GPUs and browsers: its parts become one line, and its rival computes the same expert."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.quants import dequantize

from benchmarks.bench_webgpu import merged, native_keys
from benchmarks.browser.gpu_float import FloatGpuExpert
from benchmarks.browser.gpu_speed import GpuSpeed, made_expert, measure_torch
from kvasir.kernels.gpu.device import GpuDevice, open_device
from kvasir.kernels.gpu.tables import Tunables
from kvasir.kernels.selftest_inputs import plain_rows

pytestmark = pytest.mark.long

SHAPE = (512, 256)


@pytest.fixture(scope="module")
def device() -> GpuDevice:
    return open_device(software=True)


def test_parts_become_one_line() -> None:
    parts = {
        "native": {"bits_equal": True, "us_per_expert_row": {"lavapipe": {"1": 2.0}}},
        "wasm": {"bits_equal": False, "us_per_expert_row": {"wasm_node": {"1": 1.0}}, "ratio_wasm_vs_avx2": {}},
    }
    assert merged(parts) == {
        "bits_equal": False,
        "us_per_expert_row": {"lavapipe": {"1": 2.0}, "wasm_node": {"1": 1.0}},
        "ratio_wasm_vs_avx2": {},
    }


@pytest.mark.parametrize("tiled_from", [1, 1000])
@pytest.mark.parametrize("n_rows", [1, 3, 37])
def test_the_float_kernel_computes_the_same_expert(device: GpuDevice, n_rows: int, tiled_from: int) -> None:
    experts = made_expert(SHAPE)
    rows = plain_rows(n_rows, SHAPE[0], 1) * np.float32(30)
    outputs = FloatGpuExpert(device, experts, Tunables(4, tiled_from)).compute(rows)
    gate, up, down = (
        dequantize(stack.data[0].reshape(stack.n_out, -1), stack.quant_type).astype(np.float64)
        for stack in (experts.gate, experts.up, experts.down)
    )
    wide = rows.astype(np.float64)
    g = wide @ gate.T
    wanted = (g / (1 + np.exp(np.minimum(-g, 700))) * (wide @ up.T)) @ down.T
    assert np.abs(outputs - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_ratios_and_rates_are_of_the_times() -> None:
    speed = GpuSpeed("a GPU", {1: 10.0, 8: 5.0}, {1: 20.0, 8: 2.5}, True, {1: 40.0})
    assert speed.ratio_vs_f32 == {1: 2.0, 8: 0.5}
    assert speed.rows_per_s == {"kx1": {1: 1e5, 8: 2e5}, "f32": {1: 5e4, 8: 4e5}, "torch": {1: 2.5e4}}


def test_torch_is_timed_where_it_is_asked_to_compute() -> None:
    assert list(measure_torch(made_expert(SHAPE), plain_rows(8, SHAPE[0], 1), {1: 1, 8: 1}, "cpu")) == [1, 8]


def test_a_quick_run_publishes_what_it_promises() -> None:
    keys = native_keys(quick=True)
    assert keys["bits_equal"] is True
    for name in ("us_per_expert_row", "ratio_vs_f32_wgsl"):
        by_device = keys[name]
        assert isinstance(by_device, dict)
        assert list(by_device["lavapipe"]) == ["1", "8", "64"]
        assert all(value > 0 for value in by_device["lavapipe"].values())
    assert keys["gpu_rows_per_s"]
