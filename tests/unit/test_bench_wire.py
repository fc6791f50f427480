"""The benchmark of bytes on the wire publishes the keys that it promises."""

from __future__ import annotations

import pytest

from tests.unit.test_bench_keys import quick_run

pytestmark = pytest.mark.long


def test_bench_wire() -> None:
    figures = quick_run("bench_wire")
    by_workers = {f"{name}_{n}" for n in (4, 8) for name in ("mb_per_token", "workers_per_row", "sum_bits")}
    assert set(figures) == by_workers | {
        "mb_by_hot_part", "hot_share_by_part", "hot_part", "mb_per_token", "mb_one_bit_less", "busy_share", "lift",
        "demo_workers_per_row",
        "sum_rel_err_shape", "kx1_rel_err_shape", "ppl_f32", "ppl_sum", "ppl_float", "sum_rel_err", "kx1_rel_err",
        "commit",
    }  # fmt: skip
    ways = figures["mb_per_token_4"]
    assert set(ways) == {
        reply + way for reply in ("f32", "f16", "sum") for way in ("", "_colocated", "_hot", "_colocated_hot")
    }
    assert ways["sum"]["up"] < ways["f16"]["up"] < ways["f32"]["up"]
    assert ways["sum_hot"]["total"] < ways["sum"]["total"]
    assert figures["mb_per_token"] == ways["sum_colocated_hot"]["total"]
    assert 0 < figures["sum_rel_err"] < figures["kx1_rel_err"] < 0.1
    for n_workers, by_order in figures["demo_workers_per_row"].items():
        assert 1 <= by_order["colocated"] < by_order["plain"] < min(int(n_workers), 2)  # two experts a row
    assert abs(figures["ppl_sum"] / figures["ppl_f32"] - 1) < 0.01
