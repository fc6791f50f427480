"""The browser's half of the benchmark, on experts so small that its figures mean nothing: every kernel, every key."""

from __future__ import annotations

import pytest

from benchmarks.browser.page_speed import measure_browser_speed

pytestmark = pytest.mark.long


def test_every_figure_is_there_and_the_bits_are_those_of_the_c_kernel() -> None:
    runs = {"wasm": {1: 2, 8: 1}, "webgpu": {1: 1, 3: 1}}
    speed = measure_browser_speed(runs, shape=(512, 256), n_experts=2, with_vectors=False)
    assert speed.bits_equal
    assert {name: list(us) for name, us in speed.us_per_row.items()} == {"wasm": [1, 8], "webgpu": [1, 3]}
    assert min(us for times in speed.us_per_row.values() for us in times.values()) > 0
    assert speed.heatmap_ms > 0
