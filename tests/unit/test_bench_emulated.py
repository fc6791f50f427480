"""The benchmarks over the emulated swarm publish the keys that they promise."""

from __future__ import annotations

from tests.unit.test_bench_keys import quick_run


def test_bench_scale() -> None:
    figures = quick_run("bench_scale")
    assert set(figures) == {"tok_s", "efficiency_8", "backbone_utilisation", "groups", "kind", "model", "commit"}
    assert figures["kind"] == "phone"
    for key in ("tok_s", "backbone_utilisation", "groups"):
        assert list(figures[key]) == ["1", "2", "8"]
        assert all(value > 0 for value in figures[key].values())
    assert figures["efficiency_8"] > 0


def test_bench_latency_hiding() -> None:
    figures = quick_run("bench_latency_hiding")
    ratios = {f"throughput_vs_rtt0_{n}" for n in (1, 8, 64)} | {"one_group_vs_rtt0_64"}
    assert set(figures) == ratios | {"tok_s", "groups", "texts_identical", "model", "commit"}
    assert figures["texts_identical"] is True
    assert all(value > 0 for key in ratios for value in figures[key].values())
    assert list(figures["tok_s"]) == ["1", "8", "64"]
    assert set(figures["throughput_vs_rtt0_64"]) == {"20"}
